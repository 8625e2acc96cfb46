"""What a recording lacks, in words: the cases, the nearest one, and the command that measures them; and what
of a page's subject can neither be replayed nor measured here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import pandas as pd

from rooflab import studies
from rooflab.errors import MissingRecording
from rooflab.lab.profiles import is_skipped
from rooflab.records.case import Case
from rooflab.records.fingerprint import SKIPPED
from rooflab.records.nearest import nearest
from rooflab.studies.base import TOO_LARGE, Study, require_gpu

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


def require_one(lab: Lab, study: str, cases: Sequence[Case], skipped: pd.DataFrame) -> None:
    """MissingRecording, with the reason, where no kernel of ours ran on a shape that the study's own list
    lacks, or on one that the GPU's memory does not hold: who asks for it hears why there is nothing.
    """
    own = {case.id for case in cases if case.kind == "own"}
    unable = skipped[skipped["case"].isin(own)]
    if not own or len(unable) < len(own):
        return
    reasons = unable["identity"].astype(str).str.removeprefix(SKIPPED).str.strip()
    large = reasons[reasons.str.contains(TOO_LARGE)]
    if large.empty and own & {case.id for case in lab.cases(study)}:
        return
    case = unable.loc[large.index[0] if len(large) else reasons.index[0], "case"]
    reason = large.iloc[0] if len(large) else reasons.iloc[0]
    raise MissingRecording(f"`{case}` cannot run on the {lab.run['gpu']}: {reason}.")


def beyond(
    lab: Lab, study: str, names: Sequence[str] = (), tool: str = "", model: str | None = None
) -> list[str]:
    """Of what a page is about, in words, what this lab cannot give: own rows of a study, each of `names` (an
    impl of the study or a roof), of a `model` alone if it is given, and an instrument's answer. Live it can
    give what runs here and was not tried yet; a missing roof is measured.
    """
    of, rows = studies.get(study), lab.store.read(study)
    given = rows[rows["median_us"].notna()]
    cases = lab.cases(study)
    if model is not None:
        given, cases = given[given["model"] == model], [case for case in cases if case.model == model]
    kinds, impls = {*given["kind"]}, {*given["impl"]}
    for case in _untried(lab, of, cases, {*rows["case"]}):
        kinds.add(case.kind)
        impls.add(case.impl)
    found = [] if "own" in kinds else [f"kernel of the study {study}"]
    listed = {case.impl for case in cases}
    found += [name for name in names if name not in impls and (name in listed or name not in lab.roof)]
    if tool:
        held = lab.profile_texts(study, tool)
        asked = chain.from_iterable(c for name, c, _ in of.profiles(lab.effort, lab.sized) if name == tool)
        if is_skipped(held).all() and not any(_untried(lab, of, asked, {*held["case"]})):
            found.append(f"answer of {tool}")
    return found


def _untried(lab: Lab, of: Study, cases: Iterable[Case], tried: set[str]) -> Iterator[Case]:
    """The cases that can be measured here and were not tried yet; none where a recording is replayed."""
    if lab.mode == "live":
        require_gpu()
        yield from (case for case in cases if case.id not in tried and of.fitting([case])[0])
