"""Checks requests against the rules in their protos, once, at the edge (gateway/serving/edge.py).

The rules are protovalidate's, `(buf.validate.field)`; a check takes a few microseconds. The error for a field is worded
from all of its rules and states what is expected: "thread: 256 printable characters at most". Of a client's stream only
the first message is checked, by the servicer that reads it.
"""

import functools
from collections.abc import Sequence
from typing import Any

import protovalidate
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from gateway.errors import InvalidArgument
from gateway.serving.map_sizes import map_sizes
from gateway.v1 import validate_pb2

_VALIDATOR = protovalidate.Validator()
# The protos' pattern for visible characters and spaces.
_PRINTABLE = r"^( |[^\p{C}\p{Z}])*$"
# A request with more items than this is checked up to its first violation only: each violation takes much longer than a
# valid item, and cannot be interrupted.
_LISTED_ITEMS = 64
# The range of google.protobuf.Timestamp, in seconds since 1970; the field type accepts more.
_FIRST_S, _LAST_S, _NANOS = -62_135_596_800, 253_402_300_799, 1_000_000_000


def check(request: object) -> None:
    """Raise InvalidArgument with a violation for each field that breaks its rules.

    Of a request with long lists or maps, only the first violation is reported.
    """
    if not isinstance(request, Message):
        return
    for timestamp in _timestamps(request.DESCRIPTOR):
        _check_timestamp(request, timestamp)
    broken = _VALIDATOR.collect_violations(request, fail_fast=True)
    if not broken:
        return
    if _items(request) <= _LISTED_ITEMS:
        broken = _VALIDATOR.collect_violations(request)
    violations: dict[str, str] = {}
    for one in broken[:16]:
        names = [element.field_name for element in one.proto.field.elements] if one.proto.field is not None else []
        path = ".".join(names) or "request"
        violations.setdefault(path, _expected(request, names) or one.proto.message)
    message = "; ".join(f"{path}: {text}" for path, text in violations.items())
    raise InvalidArgument(message).of_fields(violations)


def check_maps(kind: type[Message], raw: bytes) -> None:
    """Raise InvalidArgument for a map that has too many entries to be decoded. Raises DecodeError."""
    for names, entries in map_sizes(kind, raw):
        if entries > map_limit(kind, *names):
            path, expected = ".".join(names), _expected(kind, names)
            raise InvalidArgument(f"{path}: {expected}").of_fields({path: expected})


def map_limit(kind: type[Message], *names: str) -> int:
    """Return how many entries a map may have, the field at the end of a path."""
    return int(_rules(_field(kind, names)).map.max_pairs)


def _items(message: Message) -> int:
    """Return how many entries the lists and maps of a message have. No request has lists of messages."""
    count = 0
    for field, value in message.ListFields():
        if field.is_repeated:
            count += len(value)
        elif field.message_type is not None:
            count += _items(value)
    return count


@functools.cache
def _timestamps(descriptor: Descriptor) -> tuple[tuple[str, ...], ...]:
    """Return the paths of the timestamps in a message. No request has lists of them."""
    found: list[tuple[str, ...]] = []
    for field in descriptor.fields:
        if field.message_type is None or field.is_repeated:
            continue
        if field.message_type.full_name == Timestamp.DESCRIPTOR.full_name:
            found.append((field.name,))
        else:
            found += [(field.name, *path) for path in _timestamps(field.message_type)]
    return tuple(found)


def _check_timestamp(request: Message, path: tuple[str, ...]) -> None:
    value: Any = request
    for name in path:
        if not value.HasField(name):
            return
        value = getattr(value, name)
    if not (_FIRST_S <= value.seconds <= _LAST_S and 0 <= value.nanos < _NANOS):
        expected = "a timestamp between the years 1 and 9999, its nanos from 0 to 999,999,999"
        raise InvalidArgument(f"{'.'.join(path)}: {expected}").of_fields({".".join(path): expected})


def _expected(request: Message | type[Message], names: Sequence[str]) -> str:
    """Describe a field's rules; empty for rules without a description here, and for the whole request."""
    if not names:
        return ""
    field = _field(request, names)
    return _in_words(_rules(field), field)


def _field(request: Message | type[Message], names: Sequence[str]) -> FieldDescriptor:
    descriptor: Any = request.DESCRIPTOR
    for name in names[:-1]:
        descriptor = descriptor.fields_by_name[name].message_type
    field: FieldDescriptor = descriptor.fields_by_name[names[-1]]
    return field


def _rules(field: FieldDescriptor) -> Any:
    return field.GetOptions().Extensions[validate_pb2.field]  # type: ignore[index]


def _in_words(rules: Any, field: FieldDescriptor) -> str:
    if rules.required:
        return "a value is required"
    match rules.WhichOneof("type"):
        case "string":
            return _text(rules.string)
        case "int32" | "int64" | "uint32" | "uint64" as kind:
            return _number(getattr(rules, kind))
        case "enum" if field.enum_type is not None:
            return f"one of {', '.join(_names(field.enum_type, rules.enum))}"
        case "repeated":
            many = f"{rules.repeated.max_items:,} at most"
            each = _in_words(rules.repeated.items, field)
            return f"{many}, each {each}" if each else many
        case "map":
            many = f"{rules.map.max_pairs:,} entries at most"
            if not rules.map.HasField("keys"):
                return many
            keys, values = _text(rules.map.keys.string), _text(rules.map.values.string)
            return f"{many}; a key has {keys}, a value {values}"
        case _:
            return ""


def _text(rules: Any) -> str:
    allowed = getattr(rules, "in")
    if allowed:
        return f"one of {', '.join(word for word in allowed if word)}"
    if rules.pattern and rules.pattern != _PRINTABLE:
        return f"it must match {rules.pattern}"
    what = "printable characters" if rules.pattern else "characters"
    if rules.min_len:
        return f"between {rules.min_len} and {rules.max_len:,} {what}"
    return f"{rules.max_len:,} {what} at most"


def _number(rules: Any) -> str:
    least = rules.gte if rules.WhichOneof("greater_than") else None
    most = rules.lte if rules.WhichOneof("less_than") else None
    if least is None:
        return f"{most:,} at most"
    return f"{least:,} or more" if most is None else f"between {least:,} and {most:,}"


def _names(enum: EnumDescriptor, rules: Any) -> list[str]:
    """Return the names of an enum's values without their common prefix: POLICY_MODE_PIN is PIN."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return [value.name.removeprefix(prefix) for value in enum.values if value.number not in rules.not_in]
