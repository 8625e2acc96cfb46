"""The errors a user of rooflab meets: each message is one sentence, what is wrong and what would be right."""

from collections.abc import Sequence

# The key, in an output's metadata, of what a notebook says in place of a MissingRecording: a runner finds it.
LACKING = "rooflab_lacking"


class RooflabError(Exception):
    """Base of every error that the command line and notebooks show without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of it."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(RooflabError):
    """An argument, parameter or file that the user gave is not usable as it is."""


class MissingRecording(RooflabError):
    """Replay was asked for cases that no recording holds: `what` says which, `cases` are their ids, `command`
    measures them.
    """

    def __init__(self, what: str, cases: Sequence[str] = (), command: str = "") -> None:
        super().__init__(what, tuple(cases), command)
        self.what, self.cases, self.command = what, tuple(cases), command

    def sentence(self, command: str = "") -> str:
        """What is missing and the command that measures it, or the one given in its place."""
        command = command or self.command
        return f"{self.what} On that GPU `{command}` measures what is missing." if command else self.what

    def __str__(self) -> str:
        return self.sentence()


class GateError(RooflabError):
    """A kernel's output did not pass the correctness gate, so no time exists for it."""


class LaunchError(RooflabError):
    """A launcher refused operands that its kernel cannot handle."""


class DeviceMismatch(RooflabError):
    """Rows of two different GPUs met in one recording."""


class MissingTool(RooflabError):
    """A program or package that this step needs is not installed, or may not be used."""


class OutOfTime(RooflabError):
    """A recording was given a time, and it is up before all was measured."""
