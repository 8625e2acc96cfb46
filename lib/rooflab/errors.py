"""The errors a user of rooflab meets: each message is one sentence, what is wrong and what would be right."""


class RooflabError(Exception):
    """Base of every error that the command line prints without a traceback."""


class UsageError(RooflabError):
    """An argument, parameter or file that the user gave is not usable as it is."""


class MissingRecording(RooflabError):
    """Replay was asked for cases that no recording holds."""


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
