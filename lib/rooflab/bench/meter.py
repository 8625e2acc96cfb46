"""The GPU while a clock takes its samples: SM clock, power, temperature, and whether power holds it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from rooflab.hardware import device

_PAUSE_S = 0.001


@dataclass(frozen=True)
class Reading:
    """Of a contestant's samples: medians of SM clock in MHz, power in W and temperature in degrees Celsius,
    and the share of readings (0 to 1) at which the driver lowered the clock to keep the power limit. None is
    what the driver does not give.
    """

    sm_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    power_capped: float | None


class Meter:
    """A context manager whose thread reads `device.conditions` about every millisecond while it is open."""

    def __init__(self) -> None:
        self._points: list[tuple[float, dict[str, float]]] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        self._thread.join()

    def during(self, spans: Sequence[tuple[float, float]]) -> Reading | None:
        """What was read within `spans` (pairs of time.perf_counter), None if nothing was."""
        inside = [now for at, now in self._points if any(start <= at <= stop for start, stop in spans)]
        if not inside:
            return None

        def values(name: str) -> list[float]:
            return [now[name] for now in inside if name in now]

        def middle(name: str) -> float | None:
            found = values(name)
            return median(found) if found else None

        capped = values("power_capped")
        return Reading(
            sm_mhz=middle("sm_clock_mhz"),
            power_w=middle("power_w"),
            temperature_c=middle("temperature_c"),
            power_capped=fmean(capped) if capped else None,
        )

    def _follow(self) -> None:
        while not self._closing.is_set():
            at = time.perf_counter()
            now = device.conditions()
            if now is None:
                return  # without NVML there is nothing to read
            self._points.append((at, now))
            self._closing.wait(_PAUSE_S)
