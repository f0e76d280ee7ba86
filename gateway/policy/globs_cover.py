"""Whether one path glob holds all that another does, or has a path in common with it, by their texts.

What is compared is the shape: `**` holds any parts, `*` any characters of one part. Two globs that mean the same and
are written very differently may be called different; the answer never includes what a glob does not cover, and globs
are said to have nothing in common only when that is sure.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

from gateway.policy.globs import PathGlob, compile_glob, tokens

_FILLER = "sample"
_LIMIT_STEPS = 20_000
_CHARACTERS_PER_COMPARISON = 16
LIMIT_COMPARISONS = 12_000
"""About a microsecond each; a glob against a glob counts for more."""


class TooComplex(Exception):
    """The comparisons of a call are used up."""


class Budget:
    """What is left of the comparisons of a call."""

    def __init__(self, limit: float = LIMIT_COMPARISONS) -> None:
        self._left = limit

    def spend(self, comparisons: int) -> None:
        """Raise TooComplex when nothing is left."""
        self._left -= comparisons
        if self._left < 0:
            raise TooComplex


UNLIMITED = Budget(float("inf"))


def covers(a: PathGlob, b: PathGlob) -> bool:
    """Return whether every path that `b` matches is surely one that `a` matches."""
    if a.text == b.text:
        return True
    if a.shape == "tree":
        return f"{b.text if b.shape == 'path' else b.root}/".startswith(f"{a.root}/")
    # What every path of `a` contains stands in `b` too, or `b` has paths without it.
    if a.needle not in b.text or _begin_apart(a.components, b.components, _part_holds):
        return False
    return _same(a.components, b.components, "**", _part_holds, both=False)


def may_meet(a: PathGlob, b: PathGlob, budget: Budget = UNLIMITED) -> bool:
    """Return whether some path may match both globs: False only when that is sure. Raises TooComplex."""
    one, other = a.components, b.components
    if _begin_apart(one, other, _parts_meet):
        return False
    if b.shape == "tree":  # which has whatever `a` has from there on
        return "**" in one or len(one) >= len(other) - 1
    if _begin_apart(one[::-1], other[::-1], _parts_meet):
        return False
    budget.spend(len(a.text) * len(b.text) // _CHARACTERS_PER_COMPARISON)
    return _same(one, other, "**", _parts_meet, both=True)


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
    parts = ["".join(map(_sample, tokens(part))) for part in glob.components if part != "**"]
    path = "/" + "/".join(parts)
    # `/a/**` matches /a as well, but a file below it says more.
    below = f"{path.rstrip('/')}/{_FILLER}" if glob.components[-1:] == ("**",) else path
    return next((found for found in (below, path) if glob.matches(found)), None)


def _same(
    a: Sequence[str], b: Sequence[str], any_number: str, agree: Callable[[str, str], bool], *, both: bool
) -> bool:
    """Return whether `a` may be what `b` is; `any_number` stands for any number of items, of `b` only with `both`.

    So without `both` it is whether all that `b` can be is surely within what `a` can be.
    """
    if len(a) * len(b) > _LIMIT_STEPS:
        return both
    # same[j]: the rest of `a` may be the rest of `b` from j on; the rests grow from the end.
    same = [False] * len(b) + [True]
    for place in reversed(range(len(b) if both else 0)):
        same[place] = b[place] == any_number and same[place + 1]
    for item in reversed(a):
        longer = [item == any_number and same[-1]] * (len(b) + 1)
        for place in reversed(range(len(b))):
            if item == any_number or (both and b[place] == any_number):
                # What stands for anything takes what the other has there, or is over.
                longer[place] = same[place] or longer[place + 1]
            else:
                longer[place] = same[place + 1] and b[place] != any_number and agree(item, b[place])
        same = longer
    return same[0]


@lru_cache(maxsize=4096)
def _parts_meet(a: str, b: str) -> bool:
    """Return whether two parts between slashes may be the same text."""
    if a in (b, "*") or b == "*":
        return True
    return _same(tokens(a), tokens(b), "*", _characters_meet, both=True)


def _characters_meet(a: str, b: str) -> bool:
    if "?" in (a, b) or (len(a) > 1 and len(b) > 1):
        return True
    return a == b or _character_holds(a, b) or _character_holds(b, a)


@lru_cache(maxsize=4096)
def _part_holds(a: str, b: str) -> bool:
    """Return whether one part between slashes holds another; a part is never empty."""
    if a in (b, "*"):
        return True
    return _same(tokens(a), tokens(b), "*", _character_holds, both=False)


def _character_holds(a: str, b: str) -> bool:
    if a in (b, "?"):
        return True
    return len(a) > 1 and len(b) == 1 and b != "?" and compile_glob("/" + a).matches("/" + b)


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
