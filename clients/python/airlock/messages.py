"""Requests and answers of the gateway as the Python client's own types."""

import functools
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, get_args, get_type_hints

from google.protobuf.timestamp_pb2 import Timestamp

from airlock.errors import InvalidArgument

_Message = TypeVar("_Message")
_Record = TypeVar("_Record")
Fields = dict[str, Any]


def message(kind: type[_Message], /, **fields: Any) -> _Message:
    """Return a request. Raises InvalidArgument if a field does not accept its value.

    An enum's value is given by the name that `enum_name` returns, 0 for none; a time without a zone is local. An empty
    `request_id` is replaced with a new one.
    """
    known = kind.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]
    try:
        for name, value in fields.items():
            if isinstance(value, datetime):
                fields[name] = Timestamp()
                fields[name].FromDatetime(value.astimezone(UTC))
            elif name == "request_id" and not value:
                fields[name] = str(uuid.uuid4())
            elif known[name].enum_type is not None:
                many = known[name].is_repeated
                fields[name] = [_number(known[name], one) for one in value] if many else _number(known[name], value)
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"an argument has the wrong type or is out of range: {error}") from error


def _number(field: Any, name: object) -> int:
    if name == 0:
        return 0
    numbers = {enum_name(field, one.number): int(one.number) for one in field.enum_type.values if one.number}
    if name not in numbers:
        raise InvalidArgument(f"{field.name}: {name!r} is not one of {', '.join(numbers)}")
    return numbers[str(name)]


def enum_name(field: Any, number: int) -> str:
    """Return the name of an enum's value in lower case and without its prefix: VERDICT_DENY is deny.

    A number that this client does not know is "unspecified".
    """
    names = _enum_names(field.enum_type)
    return names.get(number, names[0])


@functools.cache
def _enum_names(enum: Any) -> Mapping[int, str]:
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {one.number: one.name.removeprefix(prefix).lower() for one in enum.values}


def record(kind: type[_Record], one: Any, /, **given: Any) -> _Record:
    """Return a dataclass made of a message's fields of the same names, except for those that are `given`.

    An unset field is None, a time is in UTC, an enum is its name, a repeated field a tuple, a map a dict, and a message
    the dataclass of the annotation. `x` is decoded from `x_json` if the message has that, None if it is empty.
    """
    for name, source, may_be_unset, convert in _sources(kind, one.DESCRIPTOR):  # type: ignore[arg-type]  # a class is hashable
        if name in given:
            continue
        value = None if may_be_unset and not one.HasField(name) else getattr(one, source)
        given[name] = value if value is None or convert is None else convert(value)
    return kind(**given)


@functools.cache
def _sources(kind: type, descriptor: Any) -> tuple[tuple[str, str, bool, Callable[[Any], Any] | None], ...]:
    """Return the fields of a dataclass: its name, the message's, whether that may be unset, and what converts it."""
    fields = descriptor.fields_by_name
    return tuple(
        (name, name, fields[name].has_presence, _conversion(kind, fields[name]))
        if name in fields
        else (name, f"{name}_json", False, _parsed)
        for name in kind.__dataclass_fields__  # type: ignore[attr-defined]
    )


def reader(kind: type[_Record]) -> Callable[[Any], _Record]:
    """Return the function that makes a dataclass of a message."""
    return functools.partial(record, kind)


def _parsed(text: str) -> Any:
    return json.loads(text) if text else None


def _conversion(kind: type, field: Any) -> Callable[[Any], Any] | None:
    """Return what makes a field's value that of a dataclass; None where it is, or where record() is given that."""
    if field.enum_type is not None:
        return functools.partial(enum_name, field)
    if field.message_type is None:
        return tuple if field.is_repeated else None
    if field.message_type.full_name == Timestamp.DESCRIPTOR.full_name:
        return lambda time: time.ToDatetime(UTC)
    if field.message_type.GetOptions().map_entry:
        return dict
    hint = get_type_hints(kind)[field.name]
    nested = next((one for one in (hint, *get_args(hint)) if isinstance(one, type) and is_dataclass(one)), None)
    if nested is None:
        return None
    one = reader(nested)
    return (lambda values: tuple(map(one, values))) if field.is_repeated else one
