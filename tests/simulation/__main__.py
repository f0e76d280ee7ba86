"""Print the tables of docs/capacity.md; with `--write`, put them there."""

from __future__ import annotations

import sys

from tests.simulation.report import PAGE, TABLES, written

if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        for name, table in TABLES.items():
            print(f"{name}\n\n{table()}\n")
