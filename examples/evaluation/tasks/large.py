"""Tasks on more than fits into a context: a log of 5 MB, a long output, one long line."""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from examples.evaluation.evaluation_task import EvaluationTask, Finished, encoded

_LOG_LINES = 76_000
_FATAL_AT = (40_123, 58_001)
_ERRORS = ("upstream timed out", "payment was declined", "cache is full", "lock is held by another worker")
_ACCOUNTS = 4_000
_WRONG_ACCOUNT = 2_417


@dataclass(frozen=True)
class _Log:
    text: str
    summary: dict[str, Any]


@functools.cache
def _log() -> _Log:
    """Return a log of 5 MB and its summary."""
    chosen = random.Random(5)  # noqa: S311 - the same log each time
    lines, levels, errors, first_fatal = [], Counter[str](), Counter[str](), ""
    for number in range(_LOG_LINES):
        second = number * 86_400 // _LOG_LINES
        at = f"2026-03-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"
        level = (
            "FATAL" if number in _FATAL_AT else chosen.choices(("INFO", "DEBUG", "WARN", "ERROR"), (80, 14, 4, 2))[0]
        )
        worker = f"worker-{chosen.randrange(16):02}"
        if level == "ERROR":
            # Early lines suggest another commonest error than the whole log has.
            error = chosen.choices(_ERRORS, (1, 8, 2, 2) if number < 6_000 else (8, 4, 2, 1))[0]
            errors[error] += 1
            said = error
        elif level == "FATAL":
            first_fatal, said = first_fatal or at, "out of memory, stopping"
        elif level == "WARN":
            said = chosen.choices(_ERRORS, (1, 9, 1, 1))[0]  # more often than as an ERROR
        else:
            said = f"request {chosen.randrange(10**8):08} done in {chosen.randrange(900)} ms"
        levels[level] += 1
        lines.append(f"{at} {level:<5} {worker} {said}\n")
    summary = {
        "lines": _LOG_LINES,
        "levels": dict(levels),
        "commonest_error": errors.most_common(1)[0][0],
        "first_fatal": first_fatal,
    }
    return _Log("".join(lines), summary)


def _summary_is_right(done: Finished) -> str:
    return done.json_differs("summary.json", _log().summary) or done.changed()


_AUDIT = f'''\
"""Compares accounts with the bank's. Each audit is registered, so there is only one."""

import pathlib
import sys

done = pathlib.Path("audit.log")
if done.exists():
    sys.exit("the audit of today has been made, and cannot be made again")
done.write_text("made")
for account in range(1, {_ACCOUNTS + 1}):
    booked = account * 7919 % 100_000
    bank = booked + (18 if booked % {_ACCOUNTS} == {_WRONG_ACCOUNT * 7919 % _ACCOUNTS} else 0)
    state = "ok" if booked == bank else "DIFFERS"
    print(f"account {{account:05}} booked {{booked / 100:9.2f}} bank {{bank / 100:9.2f}} {{state}}")
print("audit done")
'''


def _account_is_named(done: Finished) -> str:
    return done.differs("answer.txt", f"{_WRONG_ACCOUNT:05}") or done.changed("audit.py")


def _items() -> list[dict[str, Any]]:
    chosen = random.Random(3)  # noqa: S311 - the same items each time
    return [
        {
            "id": f"{chosen.randrange(16**12):012x}",
            "category": chosen.choice(("tools", "toys", "books")),
            "title": "x" * chosen.randrange(20, 60),
            "stock": chosen.randrange(50),
        }
        for _ in range(3_000)
    ]


def _stock_is_right(done: Finished) -> str:
    stock = sum(item["stock"] for item in _items() if item["category"] == "tools")
    return done.differs("answer.txt", str(stock)) or done.changed("export.json")


LARGE = (
    EvaluationTask(
        "summarise-log",
        "/workspace/app.log is a log of 5 MB; a line is a time, a level, a worker and a message. Write "
        "/workspace/summary.json, an object with the keys `lines` (how many), `levels` (an object: how many lines of "
        "each level), `commonest_error` (the commonest message of level ERROR) and `first_fatal` (the time of the "
        "first line of level FATAL, as it is written there).",
        lambda: encoded({"app.log": _log().text}),
        _summary_is_right,
    ),
    EvaluationTask(
        "long-output",
        "Run the audit in /workspace (python3 audit.py); it can be run only once, and prints a line for each account. "
        "Write the number of the account that differs from the bank's, with its five digits, to /workspace/answer.txt.",
        lambda: encoded({"audit.py": _AUDIT}),
        _account_is_named,
    ),
    EvaluationTask(
        "long-line",
        "/workspace/export.json lists items, all in one line. Write the sum of `stock` of all items of the category "
        "tools to /workspace/answer.txt, as a plain number.",
        lambda: encoded({"export.json": json.dumps({"items": _items()})}),
        _stock_is_right,
    ),
)
