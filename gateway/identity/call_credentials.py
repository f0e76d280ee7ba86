"""A copy of the credentials that a call came with.

A guard checks the credential again while the call is in progress. The call may end meanwhile, and the grpc context of
an ended call points to freed memory.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import grpc.aio

Context = grpc.aio.ServicerContext[Any, Any]
"""The grpc context of a call; authenticators also accept `CallCredentials` in its place."""


@dataclass(frozen=True, slots=True)
class CallCredentials:
    """The part of a context that authenticators read: metadata, peer and, without a key, the certificate."""

    metadata: tuple[tuple[str, str | bytes], ...]
    address: str
    certificate: Mapping[str, Iterable[bytes]]

    @classmethod
    def by(cls, context: Any) -> Self:
        metadata = tuple((name, value) for name, value in context.invocation_metadata() or ())
        with_key = any(name == "authorization" for name, _ in metadata)
        return cls(metadata, context.peer(), {} if with_key else dict(context.auth_context()))

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self.metadata

    def peer(self) -> str:
        return self.address

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return self.certificate
