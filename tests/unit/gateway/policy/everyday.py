"""Commands as coding agents, data people and operators give them."""

from __future__ import annotations

from pathlib import Path


def everyday() -> list[str]:
    """Return the commands of everyday.txt: one a line, and each further line of a command begins with "..."."""
    entries: list[str] = []
    for line in (Path(__file__).parent / "everyday.txt").read_text().splitlines():
        if line.startswith("..."):
            entries[-1] += "\n" + line[4:]
        else:
            entries.append(line)
    return entries
