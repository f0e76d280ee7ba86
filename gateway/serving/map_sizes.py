"""How many entries the maps of an encoded message have, found before it is decoded.

Decoding a map takes time in the square of its entries: 4 MiB of them keep the event loop busy for seconds. Here, the
same decoder reads them as a list of bytes instead, which takes some milliseconds.
"""

import functools
from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

# The maps of a smaller message decode in a few milliseconds.
_SMALL_BYTES = 64 * 1024


def map_sizes(kind: type[Message], raw: bytes) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the path of each map of a large message and the number of its entries. Raises DecodeError."""
    counting = _counting(kind.DESCRIPTOR) if len(raw) > _SMALL_BYTES else None
    if counting is not None:
        yield from _lists(counting.FromString(raw))


def _lists(message: Message, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    for field, value in message.ListFields():
        here = (*path, field.name)
        if field.is_repeated:
            yield here, len(value)
        else:
            yield from _lists(value, here)


@functools.cache
def _counting(source: Descriptor) -> type[Message] | None:
    """Return a message with the maps of another as lists of bytes, and with no other field; None if it has no maps."""
    file = FileDescriptorProto(name="map_sizes.proto", package=source.file.package, syntax="proto3")
    message = file.message_type.add(name=source.name)
    _add_maps(source, message)
    if not message.field:
        return None
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(source.full_name))


def _add_maps(source: Descriptor, target: DescriptorProto) -> None:
    """Add the maps of a message, and the messages that contain maps. No request has lists of messages."""
    for field in source.fields:
        if field.message_type is None:
            continue
        added = FieldDescriptorProto(name=field.name, number=field.number)
        if field.message_type.GetOptions().map_entry:
            added.label, added.type = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.TYPE_BYTES
            target.field.append(added)
        elif not field.is_repeated:
            nested = DescriptorProto(name=f"Of_{field.name}")
            _add_maps(field.message_type, nested)
            if nested.field:
                added.label, added.type = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.TYPE_MESSAGE
                added.type_name = nested.name
                target.nested_type.append(nested)
                target.field.append(added)
