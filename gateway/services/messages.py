"""Protobuf messages made from the objects that the services return."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

M = TypeVar("M", bound=Message)


def timestamp(at_us: int) -> Timestamp:
    """Return a database time, UTC microseconds since 1970, as a message."""
    return Timestamp(seconds=at_us // 1_000_000, nanos=at_us % 1_000_000 * 1000)


def message(kind: type[M], source: object, /, **given: Any) -> M:
    """Return a message with the attributes of `source` that have a field's name, and the `given` fields.

    A field `x_at` or `at` takes its time from `x_us` or `at_us`. What is None stays unset.
    """
    for name in kind.DESCRIPTOR.fields_by_name.keys() - given.keys():
        value = getattr(source, name, None)
        if name == "at" or name.endswith("_at"):
            at_us = getattr(source, "at_us" if name == "at" else f"{name.removesuffix('_at')}_us")
            value = None if at_us is None else timestamp(at_us)
        given[name] = value
    return kind(**given)


def numbers(enum: EnumTypeWrapper, prefix: str) -> dict[str, Any]:
    """Return the numbers of an enum's values by their names without the prefix, in lower case."""
    return {name.removeprefix(prefix).lower(): number for name, number in enum.items() if number}
