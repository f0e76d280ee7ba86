"""Measuring things beside each other: samples are taken in turn, so that a drifting machine slows all of them alike."""

from __future__ import annotations

import gc
import re
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Self

Sample = Callable[[], Awaitable[None]]

_PEAK_RSS = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
_RSS = re.compile(r"^VmRSS:\s+(\d+) kB", re.MULTILINE)


async def seconds(sample: Sample, repeat: int = 1) -> float:
    """Return how long one call of `sample` takes, in seconds, over `repeat` calls."""
    started = time.perf_counter()
    for _ in range(repeat):
        await sample()
    return (time.perf_counter() - started) / repeat


async def medians_s(rows: Mapping[str, tuple[Sample, int]], *, samples: int, warmup: int) -> dict[str, float]:
    """Return each row's median in seconds; a row is what to call and how often per sample."""
    taken: dict[str, list[float]] = {name: [] for name in rows}
    for n in range(warmup + samples):
        for name, (sample, repeat) in rows.items():
            value = await seconds(sample, repeat)
            if n >= warmup:
                taken[name].append(value)
    return {name: statistics.median(values) for name, values in taken.items()}


class PeakMemory:
    """How much more memory this process had resident than at the start of the `with`, at its worst, in bytes."""

    growth_bytes = 0

    def __enter__(self) -> Self:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        self._before_bytes = _status_bytes(_RSS)
        return self

    def __exit__(self, *_: object) -> None:
        self.growth_bytes = max(0, _status_bytes(_PEAK_RSS) - self._before_bytes)


def _status_bytes(line: re.Pattern[str]) -> int:
    found = line.search(Path("/proc/self/status").read_text())
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {line.pattern}")
    return int(found[1]) * 1024
