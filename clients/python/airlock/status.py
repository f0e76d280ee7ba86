"""What a gRPC status carries besides its code and text: the messages of google.rpc that the gateway sends.

The messages are described here and live in a pool of their own. Their usual package would be another dependency, and a
copy of its files would conflict with that package in a process that has it.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_KEY = "grpc-status-details-bin"
# As google/rpc/status.proto and error_details.proto number them; on the wire, a map is a list of entries.
_MESSAGES: Mapping[str, Iterable[tuple[str, int, str]]] = {
    "Status": (("details", 3, "*Any"),),
    "Any": (("type_url", 1, "string"), ("value", 2, "bytes")),
    "ErrorInfo": (("reason", 1, "string"), ("metadata", 3, "*Entry")),
    "Entry": (("key", 1, "string"), ("value", 2, "string")),
    "RetryInfo": (("retry_delay", 1, "Duration"),),
    "Duration": (("seconds", 1, "int64"), ("nanos", 2, "int32")),
    "BadRequest": (("field_violations", 1, "*FieldViolation"),),
    "FieldViolation": (("field", 1, "string"), ("description", 2, "string")),
}


@dataclass(frozen=True)
class Details:
    """The details of a status; `violations` are a BadRequest's, by field."""

    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None
    violations: Mapping[str, str] = field(default_factory=dict)


def details_of(error: grpc.aio.AioRpcError) -> Details:
    """Return the details of a status; those that cannot be read are empty."""
    trailing: Any = error.trailing_metadata() or ()
    status = _read("Status", next((value for key, value in trailing if key == _KEY), b""))
    found = {one.type_url.rpartition(".")[2]: one.value for one in status.details}
    info = _read("ErrorInfo", found.get("ErrorInfo", b""))
    delay = _read("RetryInfo", found["RetryInfo"]).retry_delay if "RetryInfo" in found else None
    request = _read("BadRequest", found.get("BadRequest", b""))
    return Details(
        reason=info.reason,
        metadata={one.key: one.value for one in info.metadata},
        retry_after_s=None if delay is None else delay.seconds + delay.nanos / 1e9,
        violations={one.field: one.description for one in request.field_violations},
    )


def _read(name: str, data: bytes) -> Any:
    kind = _kinds()[name]
    try:
        return kind.FromString(data)
    except DecodeError:
        return kind()


@functools.cache
def _kinds() -> Mapping[str, Any]:
    """Return the classes of the messages by name."""
    file = descriptor_pb2.FileDescriptorProto(name="airlock/status.proto", package="airlock.status", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            made = message.field.add(name=field_name, number=number)
            made.label = kinds.LABEL_REPEATED if kind.startswith("*") else kinds.LABEL_OPTIONAL
            if (plain := kind.removeprefix("*")) in _MESSAGES:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".{file.package}.{plain}"
            else:
                made.type = kinds.Type.Value(f"TYPE_{plain.upper()}")
    pool: Any = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    get: Callable[[Any], Any] = message_factory.GetMessageClass
    return {name: get(pool.FindMessageTypeByName(f"{file.package}.{name}")) for name in _MESSAGES}
