"""What a call presented of its caller, copied while it is under way.

Whoever asks for the credential again does so beside the call, which may have ended by then; and grpc's context of a
call that has ended points at memory that is no longer its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import grpc.aio

Context = grpc.aio.ServicerContext[Any, Any]
"""What grpc knows of a call under way; `CallCredentials` stands in for it where an authenticator asks."""


@dataclass(frozen=True, slots=True)
class CallCredentials:
    """Answers what an authenticator asks of a context: metadata, peer and, where there is no key, certificate."""

    metadata: tuple[tuple[str, str | bytes], ...]
    address: str
    certificate: Mapping[str, Iterable[bytes]]

    @classmethod
    def by(cls, context: Any) -> Self:
        """Copy what a call presents."""
        metadata = tuple((name, value) for name, value in context.invocation_metadata() or ())
        with_key = any(name == "authorization" for name, _ in metadata)
        return cls(metadata, context.peer(), {} if with_key else dict(context.auth_context()))

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return the metadata."""
        return self.metadata

    def peer(self) -> str:
        """Return the peer's address, as grpc writes it."""
        return self.address

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return what TLS says of the peer."""
        return self.certificate
