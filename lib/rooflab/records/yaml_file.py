"""The course's own YAML files, read by libyaml where PyYAML has it: six times as fast, and the same."""

from pathlib import Path
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def loaded(path: Path) -> Any:
    """What the file holds."""
    return yaml.load(path.read_text("utf-8"), _LOADER)
