"""Measure here or replay a recording: what notebooks and commands call.

`open(MODE, DEVICE)` gives a Lab; its `measure(study, cases)` returns one DataFrame whether it measured just
now or read data/<device>/<study>.csv. `record` measures whole studies; `freshness` lists what of a recording
is stale.
"""

from rooflab.lab.opening import EFFORTS, MODES, open, recordings
from rooflab.lab.profiles import TOOLS
from rooflab.lab.recording import record
from rooflab.lab.session import Lab
from rooflab.lab.staleness import freshness

__all__ = ["EFFORTS", "MODES", "TOOLS", "Lab", "freshness", "open", "record", "recordings"]
