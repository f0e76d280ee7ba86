"""Whether one path glob holds all that another does, or has a path in common with it, by their texts.

What is compared is the shape: `**` holds any parts, `*` any characters of one part. Two globs that mean the same and
are written very differently may be called different; the answer never includes what a glob does not cover, and globs
are said to have nothing in common only when that is sure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from gateway.policy.budget import UNLIMITED, Budget
from gateway.policy.globs import PathGlob, compile_glob

_TOKEN = re.compile(r"\[[!^]?.[^]]*\]|.", re.DOTALL)
_FILLER = "sample"
_LIMIT_STEPS = 20_000
_CHARACTERS_PER_COMPARISON = 16
T = TypeVar("T")


def covers(a: PathGlob, b: PathGlob) -> bool:
    """Return whether every path that `b` matches is surely one that `a` matches."""
    if a.text == b.text:
        return True
    # What every path of `a` contains stands in `b` too, or `b` has paths without it.
    if a.needle not in b.text or _begin_apart(a.components, b.components, _part_holds):
        return False
    return _holds(a.components, b.components, "**", _part_holds)


def may_meet(a: PathGlob, b: PathGlob, budget: Budget = UNLIMITED) -> bool:
    """Return whether some path may match both globs: False only when that is sure. Raises TooComplex."""
    one, other = a.components, b.components
    budget.spend(1)
    if _begin_apart(one, other, _parts_meet) or _begin_apart(one[::-1], other[::-1], _parts_meet):
        return False
    budget.spend(len(a.text) * len(b.text) // _CHARACTERS_PER_COMPARISON)
    return _meet(one, other, "**", _parts_meet)


def _begin_apart(a: Sequence[str], b: Sequence[str], agree: Callable[[str, str], bool]) -> bool:
    """Return whether two parts at the same place before any `**` do not agree, which most globs do not."""
    for one, other in zip(a, b, strict=False):
        if one == "**" or other == "**":
            return False
        if one != other and not agree(one, other):
            return True
    return False


def sample_path(glob: PathGlob) -> str | None:
    """Return a path that a glob matches, "sample" where it leaves the name open; None where none was found."""
    parts = ["".join(map(_sample, _tokens(part))) for part in glob.components if part != "**"]
    path = "/" + "/".join(parts)
    # `/a/**` matches /a as well, but a file below it says more.
    below = f"{path.rstrip('/')}/{_FILLER}" if glob.components[-1:] == ("**",) else path
    return next((found for found in (below, path) if glob.matches(found)), None)


def _holds(a: Sequence[T], b: Sequence[T], any_number: T, one_holds: Callable[[T, T], bool]) -> bool:
    """Return whether what `b` can be is surely within what `a` can be; `any_number` stands for any number of items."""
    if len(a) * len(b) > _LIMIT_STEPS:
        return False
    # held[j]: the rest of `a` holds the rest of `b` from j on; the rests grow from the end.
    held = [False] * len(b) + [True]
    for item in reversed(a):
        longer = [False] * (len(b) + 1)
        for place in range(len(b), -1, -1):
            if item == any_number:
                longer[place] = held[place] or (place < len(b) and longer[place + 1])
            elif place < len(b) and b[place] != any_number:
                longer[place] = held[place + 1] and one_holds(item, b[place])
        held = longer
    return held[0]


def _meet(a: Sequence[T], b: Sequence[T], any_number: T, two_meet: Callable[[T, T], bool]) -> bool:
    """Return whether `a` and `b` may be the same; `any_number` stands for any number of items."""
    if len(a) * len(b) > _LIMIT_STEPS:
        return True
    # met[j]: the rest of `a` may be the rest of `b` from j on; the rests grow from the end.
    met = [False] * len(b) + [True]
    for place in range(len(b) - 1, -1, -1):
        met[place] = b[place] == any_number and met[place + 1]
    for item in reversed(a):
        longer = [item == any_number and met[-1]] * (len(b) + 1)
        for place in range(len(b) - 1, -1, -1):
            if item == any_number or b[place] == any_number:
                # What stands for anything takes what the other has there, or is over.
                longer[place] = met[place] or longer[place + 1]
            else:
                longer[place] = met[place + 1] and two_meet(item, b[place])
        met = longer
    return met[0]


@lru_cache(maxsize=4096)
def _parts_meet(a: str, b: str) -> bool:
    """Return whether two parts between slashes may be the same text."""
    if a in (b, "*") or b == "*":
        return True
    return _meet(_tokens(a), _tokens(b), "*", _characters_meet)


def _characters_meet(a: str, b: str) -> bool:
    if "?" in (a, b) or (len(a) > 1 and len(b) > 1):
        return True
    return a == b or _character_holds(a, b) or _character_holds(b, a)


@lru_cache(maxsize=4096)
def _part_holds(a: str, b: str) -> bool:
    """Return whether one part between slashes holds another; a part is never empty."""
    if a in (b, "*"):
        return True
    return _holds(_tokens(a), _tokens(b), "*", _character_holds)


def _character_holds(a: str, b: str) -> bool:
    if a in (b, "?"):
        return True
    return len(a) > 1 and len(b) == 1 and b != "?" and compile_glob("/" + a).matches("/" + b)


@lru_cache(maxsize=4096)
def _tokens(part: str) -> tuple[str, ...]:
    """Return a part's characters, with each [...] as one."""
    return tuple(_TOKEN.findall(part))


def _sample(piece: str) -> str:
    if piece == "*":
        return _FILLER
    if piece == "?":
        return _FILLER[:1]
    if len(piece) == 1:
        return piece
    wanted = compile_glob("/" + piece)
    candidates = (*piece[1:-1], *(chr(code) for code in range(0x21, 0x7F)))
    return next((character for character in candidates if wanted.matches("/" + character)), "")
