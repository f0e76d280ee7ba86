"""How many pooled sandboxes of each kind are worth having: as many as are asked for while one is made."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

Kind = TypeVar("Kind", bound=Hashable)

# A kind that was asked for has one pooled sandbox at least for so long.
MEMORY_S = 300.0
# Half of what a busy moment asked for is still kept ready so much later.
_HALF_LIFE_S = 60.0
# A guess, until the first was made.
_FIRST_MAKING_S = 2.0
# The newest making counts as much as all before it.
_WEIGHT = 0.5
_ASKED_LIMIT = 1024


class Demand:
    """What was asked for of one kind. `clock` is in seconds, from any moment on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asked_s: deque[float] = deque(maxlen=_ASKED_LIMIT)
        self._level = 0.0
        self._level_s = clock()
        self._making_s = _FIRST_MAKING_S

    def asked(self) -> None:
        """Note a request for one."""
        now_s = self._clock()
        self._asked_s.append(now_s)
        while now_s - self._asked_s[0] > self._making_s:
            self._asked_s.popleft()
        self._level = max(self._decayed(now_s), float(len(self._asked_s)))
        self._level_s = now_s

    def made(self, making_s: float) -> None:
        """Note how long one took to make."""
        self._making_s += _WEIGHT * (making_s - self._making_s)

    @property
    def wanted(self) -> int:
        """How many pooled sandboxes to have; 0 without recent requests."""
        now_s = self._clock()
        if not self._asked_s or now_s - self._asked_s[-1] > MEMORY_S:
            return 0
        return max(1, math.ceil(self._decayed(now_s) - 0.5))

    def _decayed(self, now_s: float) -> float:
        return self._level * math.exp2((self._level_s - now_s) / _HALF_LIFE_S)


def shared_out(wanted: Mapping[Kind, int], limit: int) -> dict[Kind, int]:
    """Return how many each kind gets of a limit: one after another in turns, so that no kind leaves another without."""
    given = dict.fromkeys(wanted, 0)
    left = limit
    while left > 0:
        short = [kind for kind in wanted if given[kind] < wanted[kind]][:left]
        if not short:
            break
        for kind in short:
            given[kind] += 1
        left -= len(short)
    return given
