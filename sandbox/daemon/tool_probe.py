"""What a tool process is, said by one that has just become it. Runs in a child of init."""

import os
from collections.abc import Callable

LOWEST_OOM_SCORE_ADJ = -1000


def describe_tool(output: int, become_tool: Callable[[], None]) -> None:
    """Write /proc/self/status as the tool user to `output`, and a line with the lowest oom_score_adj it can take.

    The kernel tells that bound to nobody, so it is found by trying.
    """
    try:
        # Opened before: a process that changed its user without an exec may not open these files of its own.
        score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        score = -1  # a kernel without, or nobody that init starts may write there (standing.py)
    become_tool()
    lowest = _lowest_score(score) if score >= 0 else _own_score()
    with open("/proc/self/status", "rb") as file:
        os.write(output, file.read() + b"OomScoreAdjMin:\t%d\n" % lowest)


def _lowest_score(score: int) -> int:
    """Halve the range between what is refused and what is taken."""
    refused, taken = LOWEST_OOM_SCORE_ADJ - 1, int(os.pread(score, 16, 0))
    while taken - refused > 1:
        middle = (taken + refused) // 2
        try:
            os.pwrite(score, b"%d" % middle, 0)
            taken = middle
        except OSError:
            refused = middle
    return taken


def _own_score() -> int:
    try:
        with open("/proc/self/oom_score_adj", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
