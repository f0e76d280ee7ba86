"""RuleNumbers: the file rules that init knows, by their numbers."""

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandbox.daemon.supervisor.control_wire import FILE_RULES_LIMIT


class RuleNumbers:
    """Gives a number to each file rules in use, and that of the least recently used ones to new ones."""

    def __init__(self, announce: Callable[[int, bytes], None]) -> None:
        """`announce` tells init what a number means."""
        self._announce = announce
        self._numbers: dict[bytes, int] = {}  # the least recently used first
        self._starts: Counter[int] = Counter()

    @contextmanager
    def used(self, rules: bytes | None) -> Iterator[int]:
        """Have a number of file rules, 0 for none, during a start. BlockingIOError when all have a start under way."""
        if rules is None:
            yield 0
            return
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
        if len(self._numbers) < FILE_RULES_LIMIT:
            return len(self._numbers) + 1
        for rules, number in self._numbers.items():
            if not self._starts[number]:
                del self._numbers[rules]
                return number
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
