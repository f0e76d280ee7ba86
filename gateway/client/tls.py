"""TLS of the Python client: whom it trusts, and the certificate it shows."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import grpc

from gateway.errors import Misconfigured


@dataclass(frozen=True)
class Tls:
    """PEM files. Without `ca` the roots that grpc brings; with `certificate` and `key` the client shows who it is.

    `server_name` is the name in the gateway's certificate where that is not the host of the address.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the channel's credentials; Misconfigured for a file that cannot be read."""
        if (self.certificate is None) != (self.key is None):
            raise Misconfigured("TLS: a client's certificate and its key are given together")
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.certificate))

    def options(self) -> tuple[tuple[str, str], ...]:
        """Return the channel's options."""
        return (("grpc.ssl_target_name_override", self.server_name),) if self.server_name else ()


AMBIENT: ContextVar[Tls | None] = ContextVar("client_tls", default=None)
"""The default of clients; the command line sets it once for all subcommands."""


def _read(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise Misconfigured(f"TLS: {path}: {error.strerror}") from error
