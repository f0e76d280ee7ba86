"""TLS of the listeners. The files are checked before each handshake, so a renewed certificate needs no restart."""

import os
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import structlog

from gateway.config.identity_settings import TlsSettings
from gateway.errors import Misconfigured

log = structlog.get_logger(__name__)
_Stamp = tuple[tuple[int, int, int], ...]
Resolve = Callable[[Path], Path]


def server_credentials(settings: TlsSettings, resolve: Resolve) -> grpc.ServerCredentials:
    """Return the listener's credentials; Misconfigured if its files are unusable. `resolve` makes paths absolute."""
    files = TlsFiles(settings, resolve)
    # grpc-stubs do not know that None means "unchanged".
    changed: Callable[[], grpc.ServerCertificateConfiguration] = files.changed  # type: ignore[assignment]
    return grpc.dynamic_ssl_server_credentials(files.first(), changed, settings.requires_certificates)


def server_context(settings: TlsSettings, resolve: Resolve) -> ssl.SSLContext:
    """Return the same for a listener that Python serves; Misconfigured as above."""
    context = _Following(ssl.PROTOCOL_TLS_SERVER)
    context.follow(TlsFiles(settings, resolve))
    return context


class _Following(ssl.SSLContext):
    """Makes each connection with a context of the files' present content.

    A session of an earlier content cannot be resumed: its client's certificate may no longer be trusted.
    """

    def follow(self, files: "TlsFiles") -> None:
        files.first()
        self._files = files
        self._current = files.context()

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Return the server's end of a connection, as asyncio asks for it."""
        if self._files.changed() is not None:
            self._current = self._files.context()
        return self._current.wrap_bio(*args, **options)


class TlsFiles:
    """The PEM files. grpc's threads call `changed` before each handshake."""

    def __init__(self, settings: TlsSettings, resolve: Resolve) -> None:
        self._certificate = resolve(settings.certificate)
        self._key = resolve(settings.key)
        self._client_ca = resolve(settings.client_ca) if settings.requires_certificates and settings.client_ca else None
        self._stamp: _Stamp = ()

    def first(self) -> grpc.ServerCertificateConfiguration:
        try:
            self._stamp = self._now()
            return self._read()
        except (OSError, ValueError) as error:
            raise Misconfigured(f"tls: {_describe(error)}") from error

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the content of the files, None if unchanged. Files that do not fit together change nothing."""
        try:
            stamp = self._now()
            if stamp == self._stamp:
                return None
            read = self._read()
        except (OSError, ValueError) as error:
            # One of the files may still be on its way: the next handshake checks again.
            log.warning("the last good certificate stays in use", error=_describe(error))
            return None
        self._stamp = stamp
        log.info("the certificate was reloaded", file=str(self._certificate))
        return read

    def context(self) -> ssl.SSLContext:
        """Return a context with the files' present content, which was read before."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(self._certificate, self._key, _no_password)
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self._client_ca)
        return context

    def _now(self) -> _Stamp:
        files = [self._certificate, self._key, *([self._client_ca] if self._client_ca else [])]
        stats = [path.stat() for path in files]
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        certificate, key = self._certificate.read_bytes(), self._key.read_bytes()
        ca = self._client_ca.read_bytes() if self._client_ca else None
        _check(certificate, key, ca)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)


def _check(certificate: bytes, key: bytes, ca: bytes | None) -> None:
    """Raise if the key does not match the certificate or a file has none: grpc would only fail each handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile(prefix="airlock-tls-") as both:  # readable by its owner only
        both.write(key + b"\n" + certificate)
        both.flush()
        context.load_cert_chain(both.name, password=_no_password)
    if ca is not None:
        context.load_verify_locations(cadata=ca.decode("ascii"))


def _no_password() -> str:
    raise ValueError("the key is encrypted: give the gateway an unencrypted key that only it can read")


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.filename:
        return f"{os.fspath(error.filename)}: {error.strerror}"
    return str(error)
