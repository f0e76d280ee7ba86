"""Path globs: absolute, anchored at both ends; `*`, `?` and `[...]` stop at a slash, `**` does not.

`**` stands alone between slashes and means any number of directories, none too. At the end, `/workspace/**` is
/workspace itself and everything below it. A literal star is written `[*]`. Names that start with a dot are not special.

Matching takes time linear in the path for each wildcard: pieces between wildcards are matched leftmost and then kept
(atomic groups), so no glob that a tenant writes can make a decision slow.

Globs are compared with each other by their texts: `covers` is True only when that is sure, and `may_meet` is False only
when that is sure. So two globs that mean the same and are written very differently may be called different.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Literal

LIMIT_PATH_BYTES = 4096
_LIMIT_KEPT = 16_384
"""More globs than most policies have: a document is checked and then compiled."""

_WILDCARD = frozenset("*?[")
_TOKEN = re.compile(r"\[[!^]?.[^]]*\]|.", re.DOTALL)
_NOT_LITERAL = re.compile(r"/?\*\*|[*?]|\[[!^]?+.[^]]*\]", re.DOTALL)
_FILLER = "sample"
_LIMIT_STEPS = 20_000
_CHARACTERS_PER_COMPARISON = 16
LIMIT_COMPARISONS = 12_000
"""About a microsecond each; a glob against a glob counts for more."""


def path_problem(path: object) -> str | None:
    """Return what keeps a path from being judged, None for an absolute normalised path."""
    if not isinstance(path, str) or not path:
        return "path must be text"
    if "\0" in path:
        return "path contains NUL"
    if not path.startswith("/"):
        return "path is not absolute"
    try:
        length = len(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return "path is not the name of a file: it has half of a surrogate pair"
    if length > LIMIT_PATH_BYTES:
        return f"path is longer than {LIMIT_PATH_BYTES} bytes"
    parts = path[1:].split("/") if path != "/" else []
    if ".." in parts:
        return 'path contains ".."; name the file by its plain path'
    if "" in parts or "." in parts:
        return 'path is not normalised: it has "//", "/./" or a slash at its end'
    return None


@dataclass(frozen=True)
class PathGlob:
    """A compiled glob.

    `root` is its longest leading directory without wildcards ("" for the root itself), `depth` how many names that has;
    `needle` is a text that every path it matches contains, so that most others need no expression. `shape`: it is one
    path, a directory and all below it (`/a/**`), or neither, and only then an expression is needed.
    """

    text: str
    root: str
    needle: str
    components: tuple[str, ...]
    expression: str
    depth: int
    shape: Literal["path", "tree", "pattern"]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The expression made ready: what costs most of a glob, and not each one is ever matched."""
        return re.compile(self.expression, re.DOTALL)

    def matches(self, path: str) -> bool:
        """Return whether an absolute normalised path matches."""
        if self.shape == "path":
            return path == self.text
        if self.shape == "tree":
            return path.startswith(self.root) and path[len(self.root) : len(self.root) + 1] in ("/", "")
        return self.needle in path and self.pattern.fullmatch(path) is not None


def ancestors(path: str) -> Iterator[str]:
    """Yield a path and the directories above it, the root as ""."""
    root = path if path != "/" else ""
    while root:
        yield root
        root = root.rpartition("/")[0]
    yield ""


def escaped(path: str) -> str:
    """Return the glob that matches exactly one path."""
    return "".join(f"[{character}]" if character in _WILDCARD else character for character in path)


@lru_cache(maxsize=4096)
def tree_glob(directory: str) -> PathGlob:
    """Return the glob of a directory and all below it, whatever its name has in it, to be compared with others."""
    root = directory.rstrip("/")
    text = f"{escaped(root)}/**"
    return PathGlob(text, root, "", tuple(text[1:].split("/")), "", root.count("/"), "tree")


@lru_cache(maxsize=_LIMIT_KEPT)
def compile_glob(text: str) -> PathGlob:
    """Compile a glob. Raises ValueError that says what is wrong and what is allowed."""
    glob = read_glob(text)
    if glob.shape == "pattern":
        _ = glob.pattern  # at load, not in a decision
    return glob


@lru_cache(maxsize=_LIMIT_KEPT)
def read_glob(text: str) -> PathGlob:
    """Read a glob that is compared with others and may never be matched. Raises ValueError like compile_glob."""
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is not absolute; a path glob starts with /, for example /workspace/**")
    if "\0" in text or "\\" in text:
        raise ValueError(f"{text!r} contains NUL or a backslash; a literal star is written [*]")
    components = tuple(text[1:].split("/")) if text != "/" else ()
    for component in components:
        if component in ("", ".", ".."):
            raise ValueError(f'{text!r} has an empty, "." or ".." part; no judged path ever has one')
        if "**" in component and component != "**":
            raise ValueError(f"{text!r}: ** must stand alone between slashes, as in /workspace/**/name")
        if component.count("*") > 8:
            raise ValueError(f"{text!r} has more than eight stars between two slashes")
    if components.count("**") > 8:
        raise ValueError(f"{text!r} has more than eight **")
    leading = [*takewhile(_WILDCARD.isdisjoint, components)]
    root = "".join("/" + component for component in leading[: max(len(components) - 1, 0)])
    needle = max(_NOT_LITERAL.split(text[len(root) :]), key=len)
    depth = root.count("/")
    shape: Literal["path", "tree", "pattern"] = "tree" if components[depth:] == ("**",) else "pattern"
    if _WILDCARD.isdisjoint(text):
        shape = "path"
    return PathGlob(text, root, needle, components, _path(components), depth, shape)


def _path(components: tuple[str, ...]) -> str:
    """Return the expression of a whole glob."""
    if not components:
        return "/"
    chunks = [""]
    for component in components:
        if component == "**":
            chunks.append("")
        else:
            chunks[-1] += "/" + _component(component)
    # A path and its parts start with a slash; "/" alone is the root, which has no parts.
    return _leftmost(chunks, "(?:/[^/]+)", end=r"(?=/|\Z)") if any(chunks) else "/.*"


def _component(component: str) -> str:
    """Return the expression of one part between slashes."""
    pieces = [""]
    for piece in tokens(component):
        if piece == "*":
            pieces.append("")
        elif piece[0] == "[":
            pieces[-1] += _character_class(component, piece)
        else:
            pieces[-1] += "[^/]" if piece == "?" else re.escape(piece)
    return _leftmost(pieces, "[^/]")


def _leftmost(pieces: list[str], filler: str, *, end: str = "") -> str:
    """Return the expression of pieces with any number of fillers between each two; `end` is behind a piece."""
    first, *others = pieces
    if not others:
        return first
    *middle, last = others
    return first + "".join(f"(?>{filler}*?{piece}{end})" for piece in middle if piece) + f"{filler}*{last}"


@lru_cache(maxsize=4096)
def tokens(part: str) -> tuple[str, ...]:
    """Return the characters of a part between slashes, with each [...] as one."""
    return tuple(_TOKEN.findall(part))


def _character_class(component: str, piece: str) -> str:
    """Return the expression of a [...]."""
    negated = piece[1:2] in ("!", "^")
    members = piece[1 + negated : -1]
    if not members:
        raise ValueError(f"{component!r}: [ is never closed; a literal bracket is written [[]")
    if "--" in members:
        raise ValueError(f"{component!r}: a range has one - in it")
    for low, high in re.findall(r"(.)-(.)", members, re.DOTALL):
        if low > high:
            raise ValueError(f"{component!r}: the range {low}-{high} is backwards")
    escaped = "".join(character if character == "-" else re.escape(character) for character in members)
    return f"(?!/)[{'^' if negated else ''}{escaped}]"


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
