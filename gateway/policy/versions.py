"""What names the content of a policy: a SHA-256 over its canonical JSON, of both layers where there are two."""

from __future__ import annotations

import hashlib
import json

from gateway.policy.document import PolicyDocument


def digest_of(document: PolicyDocument, operator: PolicyDocument | None = None) -> str:
    """Return the digest in hex; the same content has the same one, however the file is laid out."""
    content: object = document.model_dump(mode="json")
    if operator is not None:
        content = {"operator": operator.model_dump(mode="json"), "tenant": content}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
