"""Hypothesis strategies for what crosses the channel: messages made from their descriptors, and damaged frames.

Most of a message is right, for a peer that is wrong in everything is refused by the first check; a few members are at
the edge of what their type can hold, and then some bytes may be flipped, cut, repeated or given a wrong length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from sandbox.daemon.frames import MAX_FRAME_BYTES

_TEXTS = (
    "",
    ".",
    "..",
    "/",
    "a",
    "a/b",
    "/workspace",
    "/workspace/a",
    "/workspace/a/b.txt",
    "/tmp/x",
    "/proc/1/mem",
    "*",
    "**",
)
_UNSIGNED = (0, 1, 2, 63, 64, 65, 255, 4096, 10_000, 65_536, 1024 * 1024, 2**31, 2**32 - 1)
_WIDE = (2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
_SIGNED = (-(2**31), -1, 0, 1, 127, 128, 255, 256, 2**31 - 1)
_LONGEST_LIST = 3

Values = Mapping[str, st.SearchStrategy[Any]]


class Messages:
    """Strategies for messages. `special` gives values for fields by their name, wherever they are."""

    def __init__(self, special: Values) -> None:
        self._special = special
        self._of_kind: dict[str, st.SearchStrategy[Message]] = {}
        self._of_field: dict[str, st.SearchStrategy[Any]] = {}

    def of(self, kind: Descriptor) -> st.SearchStrategy[Message]:
        """Return messages of a type; made once, for hypothesis takes its time to make a strategy."""
        if kind.full_name not in self._of_kind:
            self._of_kind[kind.full_name] = self._build(kind)
        return self._of_kind[kind.full_name]

    def _build(self, kind: Descriptor) -> st.SearchStrategy[Message]:
        maker = GetMessageClass(kind)
        groups = _groups(kind)

        @st.composite
        def build(draw: st.DrawFn) -> Message:
            message = maker()
            # One member of a oneof; of the others most.
            left_out = draw(st.integers(0, 2 ** len(groups) - 1)) & draw(st.integers(0, 2 ** len(groups) - 1))
            for number, group in enumerate(groups):
                if len(group) > 1:
                    self._put(draw, message, draw(st.sampled_from(group)))
                elif not left_out >> number & 1:
                    self._put(draw, message, group[0])
            return message

        return build()

    def _put(self, draw: st.DrawFn, message: Message, field: FieldDescriptor) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name).update({"NAME": "value"} if draw(st.booleans()) else {})
        elif field.is_repeated:
            for _ in range(draw(st.integers(0, _LONGEST_LIST))):
                value = draw(self._values(field))
                if isinstance(value, Message):
                    getattr(message, field.name).add().CopyFrom(value)
                else:
                    getattr(message, field.name).append(value)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(self._values(field)))
        else:
            setattr(message, field.name, draw(self._values(field)))

    def _values(self, field: FieldDescriptor) -> st.SearchStrategy[Any]:
        if field.full_name not in self._of_field:
            self._of_field[field.full_name] = self._values_of(field)
        return self._of_field[field.full_name]

    def _values_of(self, field: FieldDescriptor) -> st.SearchStrategy[Any]:
        if field.name in self._special:
            given = self._special[field.name]
            is_bytes = field.type == FieldDescriptor.TYPE_BYTES
            return given.map(lambda value: value.encode() if isinstance(value, str) else value) if is_bytes else given
        return self.of(field.message_type) if field.message_type is not None else _plain(field)


def _groups(kind: Descriptor) -> Sequence[Sequence[FieldDescriptor]]:
    real = [oneof for oneof in kind.oneofs if len(oneof.fields) > 1]
    inside = {field.name for oneof in real for field in oneof.fields}
    return [*(oneof.fields for oneof in real), *([field] for field in kind.fields if field.name not in inside)]


def _plain(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_ENUM:
            return st.integers(0, len(field.enum_type.values) + 1)
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return st.one_of(st.sampled_from([text.encode() for text in _TEXTS]), st.binary(max_size=64))
        case FieldDescriptor.CPPTYPE_STRING:
            return st.one_of(st.sampled_from(_TEXTS), st.text(max_size=64))
        case FieldDescriptor.CPPTYPE_INT32 | FieldDescriptor.CPPTYPE_INT64:
            return st.sampled_from(_SIGNED)
        case FieldDescriptor.CPPTYPE_UINT32:
            return st.sampled_from(_UNSIGNED)
        case _:
            return st.sampled_from(_UNSIGNED + _WIDE)


@st.composite
def damaged(draw: st.DrawFn, frames: Sequence[bytes]) -> bytes:
    """Return the bytes of frames as they cross the socket, in half of all cases with something wrong in them."""
    data = bytearray(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 1, 3)))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(("flip", "cut", "repeat", "insert", "length"))):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:]
            case "repeat":
                data[at:at] = data[at : at + draw(st.integers(0, 64))]
            case "insert":
                data[at:at] = draw(st.binary(max_size=32))
            case "length":
                data[:4] = draw(st.sampled_from((0, 1, 4, MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, 2**32 - 1))).to_bytes(
                    4, "big"
                )
    return bytes(data)
