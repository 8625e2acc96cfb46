"""What a recording lacks, in words: the cases, the nearest one, and the command that measures them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from rooflab import studies
from rooflab.errors import MissingRecording
from rooflab.records.nearest import nearest

if TYPE_CHECKING:
    from rooflab.lab.session import Lab


def lacking(lab: Lab, study: str, tool: str, missing: Sequence[str], held: set[str]) -> MissingRecording:
    """The error of a replay: what is missing, what of the recording comes nearest, and the command."""
    of = studies.get(study)
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    table = f"{lab.store.folder.name}/{study}_{tool}".removesuffix("_")
    what = f"The recording {table} lacks `{missing[0]}`{more}"
    if like := nearest(missing[0], held):
        what += f"; the nearest in it is `{like}`"
    if of.everywhere:
        return MissingRecording(f"{what}.", (), f"rooflab trace {study}")
    quick = " --effort quick" * (lab.effort == "quick")
    lists = [lab.cases(study)]
    if tool:
        lists = [cases for name, cases, _ in of.profiles(lab.effort, lab.sized) if name == tool]
    listed = {case.id for case in chain.from_iterable(lists)}
    if set(missing) <= listed:  # a recording that is not complete
        return MissingRecording(f"{what}.", (), f"rooflab record {study}{quick}")
    given = "".join(f" --case '{case}'" for case in missing)
    by = f" --tool {tool}" * bool(tool)
    return MissingRecording(f"{what}.", missing, f"rooflab measure {study}{by}{given}")
