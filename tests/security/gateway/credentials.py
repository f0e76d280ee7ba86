"""The three kinds of credentials that a gateway takes: what it is configured with, and calls with good and bad ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc
import trustme

from gateway.client import Tls
from gateway.credentials.keys import ACTING_SCOPES, TENANT_SCOPES
from tests.gateway_process import Home
from tests.token_issuer import TokenIssuer

TENANT, OTHER = "default", "strict"


@dataclass(frozen=True)
class Credential:
    """What a call is made with: a connection, and what is sent on it."""

    channel: grpc.Channel
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Keys:
    """Secrets of API keys, by the one scope that each has; and such as open nothing, by what is wrong with them."""

    tenant: Mapping[str, str]
    operator: Mapping[str, str]
    other: Mapping[str, str]
    dead: Mapping[str, str]


@dataclass(frozen=True)
class Credentials:
    """By the one scope that each has: a tenant's, an operator's, another tenant's.

    `nobodys` open nothing, by what is wrong with them; neither do `dead_keys`, and none reads what is wrong with it.
    """

    tenant: Mapping[str, Credential]
    operator: Mapping[str, Credential]
    other: Mapping[str, Credential]
    of_no_tenant_tables: Mapping[str, Credential]
    dead_keys: Mapping[str, Credential]


class Kind(Protocol):
    """A kind of credential."""

    tls: Tls | None

    def serving(self, home: Home) -> contextlib.AbstractContextManager[None]:
        """Configure a gateway that is served in the block."""

    def presented(self, address: str, keys: Keys) -> contextlib.AbstractContextManager[Credentials]:
        """Have connections to it until the block ends."""


def bearer(secret: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a key or a token."""
    return (("authorization", f"Bearer {secret}"),)


class ApiKeys:
    """Keys alone."""

    tls = None

    @contextmanager
    def serving(self, home: Home) -> Iterator[None]:
        del home
        yield

    @contextmanager
    def presented(self, address: str, keys: Keys) -> Iterator[Credentials]:
        with grpc.insecure_channel(address) as channel:
            yield Credentials(
                _by_secret(channel, keys.tenant),
                _by_secret(channel, keys.operator),
                _by_secret(channel, keys.other),
                {"nothing": Credential(channel), **_malformed(channel)},
                _by_secret(channel, keys.dead),
            )


class Tokens:
    """Tokens of an issuer; what operates has a key all the same, for no token can."""

    tls = None

    def __init__(self) -> None:
        self._issuer = TokenIssuer()

    @contextmanager
    def serving(self, home: Home) -> Iterator[None]:
        with self._issuer as issuer:
            home.configure(identity={"jwt": [issuer.settings()]})
            yield
            assert issuer.asked == 1, "the keys are fetched when they are first needed, and kept"

    @contextmanager
    def presented(self, address: str, keys: Keys) -> Iterator[Credentials]:
        token, now = self._issuer.token, time.time()
        with TokenIssuer() as stranger:
            by_stranger = stranger.token(TENANT, *ACTING_SCOPES, iss=self._issuer.url)
        of_no_tenant_tables = {
            "expired": token(TENANT, *ACTING_SCOPES, exp=now - 60),
            "not valid yet": token(TENANT, *ACTING_SCOPES, nbf=now + 3600),
            "for another audience": token(TENANT, *ACTING_SCOPES, aud="elsewhere"),
            "of another issuer": token(TENANT, *ACTING_SCOPES, iss="https://evil.example"),
            "signed by another issuer": by_stranger,
            "of no tenant": token(TENANT, *ACTING_SCOPES, airlock_tenant=None),
            "of a tenant that is none": token("nobody", *ACTING_SCOPES),
            "with approve beside others": token(TENANT, *TENANT_SCOPES),
            "cut off": token(TENANT, *ACTING_SCOPES)[:-20],
        }
        with grpc.insecure_channel(address) as channel:
            yield Credentials(
                {scope: Credential(channel, bearer(token(TENANT, scope))) for scope in TENANT_SCOPES},
                # A token that claims to operate has no scope at all.
                _by_secret(channel, keys.operator) | {"none": Credential(channel, bearer(token(TENANT, "operate")))},
                {scope: Credential(channel, bearer(token(OTHER, scope))) for scope in TENANT_SCOPES},
                {"nothing": Credential(channel), **_by_secret(channel, of_no_tenant_tables), **_malformed(channel)},
                _by_secret(channel, keys.dead),
            )


class Certificates:
    """Certificates of clients, one for each tenant and scope; what operates has a key, on a connection of nobody's."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self._ca = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self._ca))
        self.tls = self._tls("nobody", "nobody.example")

    @contextmanager
    def serving(self, home: Home) -> Iterator[None]:
        certificate, key = self._issued("gateway", "127.0.0.1")
        home.configure(
            tls={"certificate": str(certificate), "key": str(key), "client_ca": str(self._ca)},
            identity={
                "certificates": [
                    {"san": _san(tenant, scope), "tenant": tenant, "scopes": [scope]}
                    for tenant in (TENANT, OTHER)
                    for scope in TENANT_SCOPES
                ]
            },
        )
        yield

    @contextmanager
    def presented(self, address: str, keys: Keys) -> Iterator[Credentials]:
        with ExitStack() as stack:

            def connected(name: str, *sans: str, **more: str) -> grpc.Channel:
                return stack.enter_context(grpc.secure_channel(address, self._tls(name, *sans, **more).credentials()))

            nobody = connected("nobody", "nobody.example")
            of = {
                tenant: {
                    scope: Credential(connected(f"{tenant}-{scope}", _san(tenant, scope))) for scope in TENANT_SCOPES
                }
                for tenant in (TENANT, OTHER)
            }
            two = connected("two", _san(TENANT, "tool"), _san(OTHER, "tool"))
            common = connected("common", "nobody.example", common_name=_san(TENANT, "tool"))
            good = of[TENANT]["tool"].channel
            of_no_tenant_tables = {
                "of nobody": Credential(nobody),
                "of two tenants": Credential(two),
                "with a common name that would be somebody": Credential(common),
                **_malformed(good),
            }
            # A key goes before the certificate, a bad one too.
            yield Credentials(
                of[TENANT],
                _by_secret(nobody, keys.operator),
                of[OTHER],
                of_no_tenant_tables,
                _by_secret(good, keys.dead),
            )

    def _tls(self, name: str, *sans: str, **more: str) -> Tls:
        return Tls(self._ca, *self._issued(name, *sans, **more))

    def _issued(self, name: str, *sans: str, common_name: str | None = None) -> tuple[Path, Path]:
        """Return the files of a certificate and its key."""
        made = self._authority.issue_cert(*sans, common_name=common_name)
        certificate, key = self._directory / f"{name}.crt", self._directory / f"{name}.key"
        certificate.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        key.write_bytes(made.private_key_pem.bytes())
        return certificate, key


def _san(tenant: str, scope: str) -> str:
    return f"{scope}.{tenant}.example"


def _by_secret(channel: grpc.Channel, secrets: Mapping[str, str]) -> dict[str, Credential]:
    return {name: Credential(channel, bearer(secret)) for name, secret in secrets.items()}


def _malformed(channel: grpc.Channel) -> dict[str, Credential]:
    """Return what is no credential of any kind."""
    return {
        "another scheme": Credential(channel, (("authorization", "Basic YWRtaW46YWRtaW4="),)),
        "far too long": Credential(channel, bearer("x" * 5000)),
        "three parts of nothing": Credential(channel, bearer("a.b.c")),
    }
