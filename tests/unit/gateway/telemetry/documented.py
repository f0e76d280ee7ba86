"""The tables of docs/telemetry.md: which attributes a span may have, and which labels a metric."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

PAGE = (Path(__file__).parents[4] / "docs" / "telemetry.md").read_text(encoding="utf-8")


def _table(heading: str) -> Mapping[str, tuple[str, ...]]:
    """Return the names in the other cells of each row, by the name in the first."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [re.findall(r"`([^`]+)`", line) for line in section.splitlines() if line.startswith("| `")]
    return {first: tuple(rest) for first, *rest in rows}


SPANS = _table("Spans")
METRIC_LABELS = _table("Metrics")
