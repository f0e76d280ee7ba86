"""What AdminService shows, as messages."""

from __future__ import annotations

from gateway.services.timestamps import timestamp
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
        created_at=timestamp(key.created_us),
        expires_at=None if key.expires_us is None else timestamp(key.expires_us),
        revoked_at=None if key.revoked_us is None else timestamp(key.revoked_us),
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
        at=timestamp(change.at_us),
    )
