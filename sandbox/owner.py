"""The owner of a sandbox, in digests: no text of a tenant reaches a name or a label of an engine."""

from __future__ import annotations

import hashlib

from sandbox.sandbox import SandboxSpec

Owner = tuple[str, str]
"""The digests of a tenant and of one of its threads, which is all that an engine sees."""


def digest(*texts: str) -> str:
    """Return 24 hex digits that stand for texts; no two lists of texts share their input."""
    joined = "".join(f"{len(text)}:{text}" for text in texts)
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def owner_by_name(tenant: str, thread: str) -> Owner:
    """Return the owner of the sandbox of a tenant's thread."""
    return digest(tenant), digest(tenant, thread)


def owner_of(spec: SandboxSpec) -> Owner:
    """Return the owner of a sandbox of a spec."""
    return owner_by_name(spec.tenant, spec.thread)
