"""Values of a state: immutable, and unchanged by a round trip through a store.

They read like a dict or a list, also for json and pydantic; to change one, make a copy: {**value, "key": 1}.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any, NoReturn, Self

from pydantic import AfterValidator, JsonValue

DEPTH_LIMIT = 96
"""Deeper values may fail to dump and load."""


def storable_text(text: str) -> str:
    """Return the text with U+FFFD for each half of a surrogate pair, which stores and endpoints refuse."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    kind = "dict" if isinstance(self, dict) else "list"
    raise TypeError(f"this {kind} belongs to an immutable state: make a copy, and give it to a with_... method")


class NotStorable(ValueError):
    """A value that a store would change."""


class _Frozen:
    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


class FrozenDict(_Frozen, dict[str, Any]):
    """An immutable dict of immutable values, made by freeze() and frozen_arguments()."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> Any:
        return FrozenDict, (dict(self),)


class FrozenList(_Frozen, list[Any]):
    """An immutable list of immutable values."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> Any:
        return FrozenList, (list(self),)


def freeze(value: Any) -> Any:
    """Return a JSON value, frozen; tuples become lists. Raises NotStorable for one that a store would change."""
    return _frozen(value, 0, strict=True)


def levels(value: Any) -> Iterator[list[Any]]:
    """Yield the values at each depth of a JSON value, down to an empty list."""
    level = [value]
    while level:
        yield level
        inner = (one.values() if isinstance(one, dict) else one if isinstance(one, list) else () for one in level)
        level = [one for values in inner for one in values]
    yield level


def with_entry(values: dict[str, Any], key: str, value: Any) -> FrozenDict:
    """Return frozen values with one entry set. Raises NotStorable as freeze does; only the new entry is checked."""
    try:
        return FrozenDict({**values, _key(key): _frozen(value, 1, strict=True)})
    except ValueError as error:
        raise NotStorable(f"what was given for {key!r} is not JSON: {error}") from error


def frozen_arguments(arguments: Any) -> Any:
    """Return the arguments of a tool call, frozen but not checked: agent.tools.intake does that."""
    return _frozen(arguments, 0, strict=False)


def _frozen(value: Any, depth: int, *, strict: bool) -> Any:
    if not isinstance(value, dict | list | tuple):
        if strict:
            _check_scalar(value)
        return value
    if strict and depth >= DEPTH_LIMIT:
        raise NotStorable(f"values are nested more than {DEPTH_LIMIT} deep: make them flatter")
    if not strict and type(value) in (FrozenDict, FrozenList):
        return value
    # Loops, not comprehensions: deeply nested arguments would take two frames per level.
    if isinstance(value, dict):
        entries = {}
        for key, inner in value.items():
            entries[_key(key) if strict else key] = _frozen(inner, depth + 1, strict=strict)
        return FrozenDict(entries)
    items = []
    for inner in value:
        items.append(_frozen(inner, depth + 1, strict=strict))  # noqa: PERF401
    return FrozenList(items)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise NotStorable(f"the key {key!r} is not a str, and would come back from a store as one")
    _check_scalar(key)
    return key


def _check_scalar(value: object) -> None:
    if isinstance(value, str):
        if storable_text(value) is not value:
            raise NotStorable("a text holds half of a surrogate pair, which no store takes")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise NotStorable(f"{value} is not a JSON number")
    elif not (value is None or isinstance(value, bool | int)):
        raise NotStorable(f"{type(value).__name__} is not JSON: str, int, float, bool, None, list and dict are")


Text = Annotated[str, AfterValidator(storable_text)]
Json = Annotated[dict[str, JsonValue], AfterValidator(freeze)]
Arguments = Annotated[dict[str, JsonValue], AfterValidator(frozen_arguments)]
