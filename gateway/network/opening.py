"""TLS connections of one tenant that the gateway opens, to see their requests.

It does where a credential is bound to a host, or rules are about methods and paths. Programs in the sandbox trust the
tenant's own certificate authority for that.
"""

import asyncio
import hmac
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import structlog

from gateway.config.network_settings import CredentialSettings
from gateway.network.credentials import Caller, Credentials
from gateway.policy.judge import Policy
from sandbox.errors import NotFound, SandboxError
from sandbox.protocols import PRIVATE_DIRECTORY
from sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from gateway.network.certificates import CertificateAuthority

CERTIFICATE_FILE = f"{PRIVATE_DIRECTORY}/network/ca.pem"
"""The tenant's certificate authority alone, in a sandbox."""
BUNDLE_FILE = f"{PRIVATE_DIRECTORY}/network/ca-bundle.pem"
"""The image's own authorities, and the tenant's."""

# Where Debian and Alpine, Fedora, and SUSE have them.
_IMAGE_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_LIMIT_BUNDLE_BYTES = 4 * 1024 * 1024
_LIMIT_SERVERS = 1000
# Programs that read no variable with an authority, but one with the name of a configuration file.
_APT_FILE, _WGET_FILE = f"{PRIVATE_DIRECTORY}/network/apt.conf", f"{PRIVATE_DIRECTORY}/network/wgetrc"
_CONFIGURATION = {
    _APT_FILE: f'Acquire::https::CAInfo "{BUNDLE_FILE}";\n',
    _WGET_FILE: f"ca_certificate = {BUNDLE_FILE}\n",
}
_VARIABLES = {
    **dict.fromkeys(("NODE_EXTRA_CA_CERTS", "DENO_CERT"), CERTIFICATE_FILE),
    **dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"), BUNDLE_FILE),
    **dict.fromkeys(("PIP_CERT", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE"), BUNDLE_FILE),
    "APT_CONFIG": _APT_FILE,
    "WGETRC": _WGET_FILE,
}
TRUST_FILES = (CERTIFICATE_FILE, BUNDLE_FILE, *_CONFIGURATION)
"""What `install` writes."""


class Trust(NamedTuple):
    """How servers are checked: a context that offers them HTTP/1.1 alone, and one that offers HTTP/2 first."""

    http1: ssl.SSLContext
    http2: ssl.SSLContext


log = structlog.get_logger(__name__)


class Opening:
    """What a tenant's connections are opened with.

    `secret` is that of all gateways of the database; `trust` returns how the gateway checks the servers then.
    """

    def __init__(
        self, tenant: str, settings: Sequence[CredentialSettings], secret: bytes, trust: Callable[[], Trust]
    ) -> None:
        self.trust = trust
        self._tenant = tenant
        self._settings = settings
        self._http1_only: deque[tuple[str, int]] = deque(maxlen=_LIMIT_SERVERS)
        self._secret = secret

    @property
    def has_credentials(self) -> bool:
        return bool(self._settings)

    @cached_property
    def authority(self) -> "CertificateAuthority":
        """The tenant's authority, made on first use."""
        # It needs cryptography, and most gateways open no connection.
        from gateway.network.certificates import CertificateAuthority  # noqa: PLC0415 - as above

        return CertificateAuthority(self._secret, self._tenant)

    @cached_property
    def credentials(self) -> Credentials:
        """The tenant's credentials. All gateways of the database know the same placeholders."""
        if not self._settings:
            return Credentials(())
        names = iter([one.name for one in self._settings])
        key = self.authority.derived_key
        return Credentials(self._settings, lambda: hmac.new(key, next(names).encode(), "sha256").hexdigest()[:40])

    def is_needed(self, policy: Policy) -> bool:
        """Return whether any connection may have to be opened."""
        return any(not one.plain_http for one in self._settings) or policy.judges_requests()

    def opens(self, host: str, port: int, policy: Policy) -> bool:
        """Return whether TLS to a canonical host is opened."""
        return self.credentials.opens(host, port) or policy.judges_requests(host, port)

    def protocol(self, host: str, port: int, alpn: Sequence[str]) -> str:
        """Return what to offer a client, which offers `alpn`, before its server is connected."""
        known = "http/1.1" in alpn and (host, port) in self._http1_only
        return "h2" if "h2" in alpn and not known else "http/1.1"

    def chose_http1(self, host: str, port: int) -> None:
        """Note that a server, which was offered HTTP/2, speaks HTTP/1.1. The last thousand are kept."""
        if (host, port) not in self._http1_only:
            self._http1_only.append((host, port))

    def environment(self, policy: Policy, agent: str) -> Mapping[str, str]:
        """Return the variables of tool code for its credentials and the authority."""
        placeholders = self.credentials.environment(Caller(agent, "execute")) if self._settings else {}
        return {**placeholders, **_VARIABLES} if self.is_needed(policy) else placeholders

    async def install(self, sandbox: Sandbox) -> None:
        """Write the authority's certificate and what names it into a sandbox. Raises SandboxError."""
        # What it imports and makes on first use takes 100 ms.
        authority: CertificateAuthority = await asyncio.to_thread(getattr, self, "authority")
        own = authority.ca_pem.encode()
        await sandbox.files.write(CERTIFICATE_FILE, own)
        await sandbox.files.write(BUNDLE_FILE, await _image_bundle(sandbox) + own)
        for path, content in _CONFIGURATION.items():
            await sandbox.files.write(path, content.encode())


async def _image_bundle(sandbox: Sandbox) -> bytes:
    for path in _IMAGE_BUNDLES:
        found = bytearray()
        try:
            async for piece in sandbox.files.read(path):
                found += piece
                if len(found) > _LIMIT_BUNDLE_BYTES:
                    break
        except NotFound:
            continue
        except SandboxError as error:
            log.info("an image's certificate authorities cannot be read", path=path, error=str(error))
            continue
        if len(found) <= _LIMIT_BUNDLE_BYTES:
            return bytes(found.rstrip(b"\n")) + b"\n"
    return b""
