"""RuleNumbers: the file rules that init knows, by their numbers."""

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandbox.daemon.supervisor.control_wire import FILE_RULES_LIMIT, FILE_RULES_LIMIT_BYTES


class RuleNumbers:
    """Gives a number to each file rules in use, and that of the least recently used ones to new ones."""

    def __init__(self, announce: Callable[[int, bytes], None]) -> None:
        """`announce` tells init what a number means."""
        self._announce = announce
        self._numbers: dict[bytes, int] = {}  # the least recently used first
        self._starts: Counter[int] = Counter()

    @contextmanager
    def used(self, rules: bytes | None) -> Iterator[int]:
        """Have a number of file rules, 0 for none, during a start.

        BlockingIOError when all have a start under way; OSError for rules that are too long, which init would cut.
        """
        if rules is None:
            yield 0
            return
        if len(rules) > FILE_RULES_LIMIT_BYTES:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        number = self._numbers.pop(rules, 0)
        if not number:
            number = self._free()
            self._announce(number, rules)
        self._numbers[rules] = number
        self._starts[number] += 1
        try:
            yield number
        finally:
            self._starts[number] -= 1

    def _free(self) -> int:
        # Also one that could not be announced, so not the next after those in use.
        free = set(range(1, FILE_RULES_LIMIT + 1)).difference(self._numbers.values())
        if free:
            return min(free)
        for rules, number in self._numbers.items():
            if not self._starts[number]:
                del self._numbers[rules]
                return number
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
