"""Times on the wire."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp


def timestamp(at_us: int) -> Timestamp:
    """Return a time of the database, UTC microseconds since 1970, as a message."""
    return Timestamp(seconds=at_us // 1_000_000, nanos=at_us % 1_000_000 * 1000)
