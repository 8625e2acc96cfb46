"""SHA256SUMS: the digests of a recording's files, by which a change after the recording is found.

The form is that of `sha256sum`, so a change that is meant is sealed by that program as well as by `seal`.
While a recording is written to, it has no seal; the end of a run seals it.
"""

import hashlib
import re
from pathlib import Path

from rooflab.errors import UsageError
from rooflab.records.csv_table import write_atomically

NAME = "SHA256SUMS"
RESEAL = "If the change is meant: `cd {} && sha256sum *.csv profiles/*.csv > " + NAME + "`."


def seal(folder: Path) -> None:
    """Write the digests of the folder's tables as they are now."""
    lines = [f"{digest}  {name}\n" for name, digest in sorted(_digests(folder).items())]
    write_atomically(folder / NAME, "".join(lines))


def unseal(folder: Path) -> None:
    """Remove the seal, before a table is written."""
    (folder / NAME).unlink(missing_ok=True)


def is_sealed(folder: Path) -> bool:
    return (folder / NAME).is_file()


def changes(folder: Path) -> dict[str, str]:
    """What differs from the seal: a sentence for each file by its name. UsageError for a damaged seal."""
    path = folder / NAME
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = ["damaged"]
    parts = [re.fullmatch(r"([0-9a-f]{64}) [ *]([\w./-]+)", line) for line in lines]
    if not parts or not all(parts):
        raise UsageError(f"{path} is damaged: restore it. " + RESEAL.format(folder))
    sealed = {found[2]: found[1] for found in parts if found}
    now = _digests(folder)
    found = {name: "it is in the seal and not in the folder." for name in sealed if name not in now}
    found |= {name: "it was added after the recording was sealed." for name in now if name not in sealed}
    found |= {
        name: "it was changed after the recording was sealed."
        for name in now
        if name in sealed and now[name] != sealed[name]
    }
    return found


def require(folder: Path) -> None:
    """UsageError if the folder is sealed and a file is not as it was then."""
    if is_sealed(folder) and (found := changes(folder)):
        name = sorted(found)[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise UsageError(f"{folder / name}{more}: {found[name]} Restore it. {RESEAL.format(folder)}")


def _digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*.csv") if path.is_file() and not path.name.startswith(".")]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
