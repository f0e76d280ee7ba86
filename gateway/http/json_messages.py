"""Messages as JSON: protobuf's own mapping (ProtoJSON) with the field names of the protos, and two differences.

A field of bytes `x` comes as `x_text` if it is UTF-8, else as `x` in base64; a request may have either. A string field
`x_json` that holds JSON comes as the value `x`, and a request may have `x` or `x_json`.
"""

import base64
import functools
import json
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from gateway.errors import InvalidArgument, TooLarge
from gateway.support.printable_text import printable

_JSON, _TEXT = "_json", "_text"
_DEPTH_LIMIT = 64
# Each value takes much more time and memory than its text, and decoding cannot be interrupted.
VALUES_LIMIT = 100_000
_PARTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]', re.DOTALL)
_SHOWN_CHARACTERS = 500


def to_json(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object, with all fields but unset messages and unset optional ones."""
    found: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return _shown(_type_of(message), found)


def encoded(message: Message) -> str:
    """Return a message as JSON text of ASCII characters, so that it holds any string."""
    return json.dumps(to_json(message), separators=(",", ":"))


def from_json(message: Message, value: object) -> None:
    """Fill a message from a JSON object; raises InvalidArgument."""
    if not isinstance(value, dict):
        raise InvalidArgument("the body is not a JSON object")
    try:
        json_format.ParseDict(_taken(_type_of(message), value), message, max_recursion_depth=_DEPTH_LIMIT)
    except json_format.ParseError as error:
        why = _shown_text(" ".join(str(error).split()))
        raise InvalidArgument(f"the request does not fit {_type_of(message).name}: {why}") from None


def refuse_many_parts(body: bytes) -> None:
    """Raise TooLarge for a JSON text that would take too long to decode. It must be UTF-8, whatever decodes it."""
    if len(body) > VALUES_LIMIT and sum(1 for _ in islice(_PARTS.finditer(body), VALUES_LIMIT + 1)) > VALUES_LIMIT:
        raise TooLarge(f"the body has more than {VALUES_LIMIT:,} parts: strings, commas, lists and objects")


def parse(body: bytes) -> Any:
    """Return a JSON text as a value, {} for none; raises InvalidArgument, TooLarge."""
    refuse_many_parts(body)
    try:
        return json.loads(body.decode()) if body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}") from None


def set_field(tree: dict[str, Any], descriptor: Descriptor, path: str, values: list[str]) -> None:
    """Set the field at a dotted path to the values of a query string or a path; raises InvalidArgument."""
    *outer, name = path.split(".")
    for one in outer:
        field = descriptor.fields_by_name.get(one)
        if field is None or field.message_type is None:
            raise InvalidArgument(f"{path}: there is no such field")
        descriptor = field.message_type
        tree = tree.setdefault(one, {})
        if not isinstance(tree, dict):
            raise InvalidArgument(f"{one}: it is not a JSON object")
    field = descriptor.fields_by_name.get(name)
    if field is None:
        raise InvalidArgument(f"{path}: there is no such field")
    if not field.is_repeated and len(values) > 1:
        raise InvalidArgument(f"{path}: it is given {len(values)} times but may be given only once")
    converted = [_converted(field, value) for value in values]
    tree[name] = converted if field.is_repeated else converted[0]


def _converted(field: FieldDescriptor, value: str) -> Any:
    if field.type == FieldDescriptor.TYPE_BOOL and value in {"true", "false"}:
        return value == "true"
    return value


@functools.cache
def _differs(descriptor: Descriptor) -> bool:
    """Return whether a type, or one in it, has fields that are not shown as ProtoJSON does."""
    return _any_differs(descriptor, set())


def _any_differs(descriptor: Descriptor, seen: set[str]) -> bool:
    if descriptor.full_name in seen or descriptor.full_name.startswith("google."):
        return False
    seen.add(descriptor.full_name)
    return any(
        _is_bytes(field)
        or _is_json(field)
        or (field.message_type is not None and _any_differs(field.message_type, seen))
        for field in descriptor.fields
    )


def _is_bytes(field: FieldDescriptor) -> bool:
    return field.type == FieldDescriptor.TYPE_BYTES and not field.is_repeated


def _is_json(field: FieldDescriptor) -> bool:
    return field.type == FieldDescriptor.TYPE_STRING and field.name.endswith(_JSON) and not field.is_repeated


def json_name(field: FieldDescriptor) -> str:
    """Return the name under which the value of a field is shown."""
    return field.name.removesuffix(_JSON) if _is_json(field) else field.name


def _shown(descriptor: Descriptor, found: dict[str, Any]) -> dict[str, Any]:
    if not _differs(descriptor):
        return found
    for field in descriptor.fields:
        name = field.name
        if name not in found:
            continue
        if _is_json(field):
            text = found.pop(name)
            try:
                found[json_name(field)] = _value_of(text) if text else None
            except (ValueError, RecursionError):
                found[name] = text
        elif _is_bytes(field):
            raw = base64.b64decode(found[name])
            try:
                found[name + _TEXT] = raw.decode()
                del found[name]
            except UnicodeDecodeError:
                pass
        elif (kind := _inner(field)) is not None:
            inner = found[name]
            found[name] = [_shown(kind, one) for one in inner] if field.is_repeated else _shown(kind, inner)
    return found


def _value_of(text: str) -> Any:
    """Return a JSON text as a value that can be written as JSON again; raises ValueError, RecursionError.

    A number such as 1e999 becomes an infinity, which cannot. In an answer the value is in some lists and objects more.
    """
    value = json.loads(text)
    json.dumps([[[[[[[[value]]]]]]]], allow_nan=False)
    return value


def _taken(descriptor: Descriptor, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ParseDict takes for what a caller gave; raises InvalidArgument for a field that does not exist."""
    taken = dict(value)
    if unknown := taken.keys() - _names(descriptor):
        known = ", ".join(json_name(field) for field in descriptor.fields)
        raise InvalidArgument(
            f"{_shown_text(min(unknown))}: there is no such field; {descriptor.name} has {known or 'none'}"
        )
    for field in descriptor.fields:
        name = field.name
        if _is_json(field) and json_name(field) in taken:
            taken[name] = json.dumps(taken.pop(json_name(field)))
        elif _is_bytes(field) and isinstance(taken.get(name + _TEXT), str):
            taken[name] = base64.b64encode(_encoded(name + _TEXT, taken.pop(name + _TEXT))).decode()
        elif (kind := _inner(field)) is not None:
            inner = taken.get(name)
            if isinstance(inner, dict):
                taken[name] = _taken(kind, inner)
            elif isinstance(inner, list) and field.is_repeated:
                taken[name] = [_taken(kind, one) if isinstance(one, dict) else one for one in inner]
    return taken


@functools.cache
def _names(descriptor: Descriptor) -> frozenset[str]:
    """Return the names that fields of a type may have in a request."""
    names = {name for field in descriptor.fields for name in (field.name, field.json_name, json_name(field))}
    return frozenset(names | {field.name + _TEXT for field in descriptor.fields if _is_bytes(field)})


def _shown_text(text: str) -> str:
    """Return what a caller wrote as an error quotes it."""
    return printable(text[:_SHOWN_CHARACTERS])


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name}: it has a surrogate, which is not a character") from None


def _inner(field: FieldDescriptor) -> Descriptor | None:
    """Return the type of a field that holds messages of ours, and no map."""
    kind = field.message_type
    ours = kind is not None and not kind.GetOptions().map_entry and not kind.full_name.startswith("google.")
    return kind if ours else None


def _type_of(message: Message) -> Descriptor:
    return cast(Descriptor, message.DESCRIPTOR)
