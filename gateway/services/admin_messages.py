"""What AdminService shows, as messages."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from gateway.storage.key_store import StoredKey
from gateway.storage.policy_store import Change
from gateway.v1 import admin_service_pb2 as pb


def key_message(key: StoredKey) -> pb.Key:
    """Return a key without its secret."""
    return pb.Key(
        id=key.id,
        tenant=key.tenant,
        shown=key.shown,
        scopes=key.scopes,
        name=key.name,
        created_at=_time(key.created_us),
        expires_at=None if key.expires_us is None else _time(key.expires_us),
        revoked_at=None if key.revoked_us is None else _time(key.revoked_us),
        replaced_by=key.replaced_by or "",
    )


def change_message(change: Change, version: str) -> pb.PolicyChange:
    """Return a change of a policy."""
    return pb.PolicyChange(
        tenant=change.tenant,
        version=version,
        kind=change.kind,
        by=change.by,
        comment=change.comment,
        at=_time(change.at_us),
    )


def _time(us: int) -> Timestamp:
    return Timestamp(seconds=us // 1_000_000, nanos=us % 1_000_000 * 1000)
