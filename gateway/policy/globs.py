"""Path globs: absolute, anchored at both ends; `*`, `?` and `[...]` stop at a slash, `**` does not.

`**` stands alone between slashes and means any number of directories, none too. At the end, `/workspace/**` is
/workspace itself and everything below it. A literal star is written `[*]`. Names that start with a dot are not special.

Matching takes time linear in the path for each wildcard: pieces between wildcards are matched leftmost and then kept
(atomic groups), so no glob that a tenant writes can make a decision slow.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

LIMIT_PATH_BYTES = 4096
_LIMIT_KEPT = 16_384
"""More globs than most policies have: a document is checked and then compiled."""

_WILDCARD = frozenset("*?[")
_TOKEN = re.compile(r"\[[!^]?.[^]]*\]|.", re.DOTALL)
_NOT_LITERAL = re.compile(r"/?\*\*|[*?]|\[[!^]?+.[^]]*\]", re.DOTALL)


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
    literal = 0
    while literal < len(components) and not _WILDCARD & set(components[literal]):
        literal += 1
    if literal == len(components):
        literal -= 1
    root = "".join("/" + component for component in components[: max(literal, 0)])
    needle = max(_NOT_LITERAL.split(text[len(root) :]), key=len)
    depth = root.count("/")
    shape: Literal["path", "tree", "pattern"] = "tree" if components[depth:] == ("**",) else "pattern"
    if not _WILDCARD & set(text):
        shape = "path"
    return PathGlob(text, root, needle, components, _path(components), depth, shape)


def _path(components: tuple[str, ...]) -> str:
    """Return the expression of a whole glob."""
    if not components:
        return "/"
    chunks: list[list[str]] = [[]]
    for component in components:
        if component == "**":
            chunks.append([])
        else:
            chunks[-1].append(component)
    expressions = ["".join("/" + _component(component) for component in chunk) for chunk in chunks]
    first, *others = expressions
    if not others:
        return first
    *middle, last = others
    # A path and its parts start with a slash; "/" alone is the root, which has no parts.
    result = first
    for expression in middle:
        if expression:
            result += f"(?>(?:/[^/]+)*?{expression}(?=/|\\Z))"
    if last:
        return result + f"(?:/[^/]+)*{last}"
    return result + ("(?:/.*)?" if first or any(middle) else "/.*")


def _component(component: str) -> str:
    """Return the expression of one part between slashes."""
    pieces: list[str] = [""]
    for piece in tokens(component):
        if piece == "*":
            pieces.append("")
        elif piece[0] == "[":
            pieces[-1] += _character_class(component, piece)
        else:
            pieces[-1] += "[^/]" if piece == "?" else re.escape(piece)
    first, *others = pieces
    if not others:
        return first
    *middle, last = others
    return first + "".join(f"(?>[^/]*?{piece})" for piece in middle if piece) + f"[^/]*{last}"


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
