"""Requests and answers of the gateway as the Python client's own types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from gateway.errors import InvalidArgument

_Message = TypeVar("_Message")
_Record = TypeVar("_Record")


def message(kind: Callable[..., _Message], /, **fields: Any) -> _Message:
    """Return a request; InvalidArgument where a field does not accept its value."""
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"an argument has the wrong type or is out of range: {error}") from error


def record(kind: type[_Record], one: Any, /, **given: Any) -> _Record:
    """Return a dataclass whose fields come from a message's fields of the same names, but for those that are `given`.

    A field that is not set is None, a time is in UTC, a repeated field is a tuple and a map is a dict.
    """
    fields = one.DESCRIPTOR.fields_by_name
    for name in kind.__dataclass_fields__:  # type: ignore[attr-defined]
        if name not in given:
            given[name] = None if fields[name].has_presence and not one.HasField(name) else _plain(getattr(one, name))
    return kind(**given)


def _plain(value: Any) -> Any:
    if isinstance(value, Timestamp):
        return value.ToDatetime(UTC)
    if isinstance(value, Mapping):
        return dict(value)
    return tuple(value) if isinstance(value, MutableSequence) else value


def timestamp(at: datetime | None) -> Timestamp | None:
    """Return a time for a request; one without a zone is in this machine's."""
    if at is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(at.astimezone(UTC))
    return stamp


def enum_name(enum: Any, number: int) -> str:
    """Return the name of an enum's value in lower case and without its prefix: VERDICT_DENY is deny.

    A number that this client does not know is "unspecified".
    """
    unspecified = enum.Name(0)
    name = enum.Name(number) if number in enum.values() else unspecified
    return str(name.removeprefix(unspecified.removesuffix("UNSPECIFIED")).lower())


def enum_number(enum: Any, name: str, field: str) -> int:
    """Return the number of an enum's value by the name that `enum_name` gives it; InvalidArgument if it has none."""
    numbers = {enum_name(enum, number): int(number) for number in enum.values() if number}
    if name not in numbers:
        raise InvalidArgument(f"{field}: {name!r} is not one of {', '.join(numbers)}")
    return numbers[name]
