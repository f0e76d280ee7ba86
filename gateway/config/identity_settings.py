"""Who calls, besides API keys: issuers of tokens and names in certificates, as the configuration has them."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from gateway.config.section import Name, Section
from gateway.credentials.keys import ACTING_SCOPES, checked_scopes
from gateway.errors import InvalidArgument

# Public keys only: HS* with what anybody can read would let anybody sign, and "none" needs no key at all.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_JWT_EXAMPLE = "`jwt: [{issuer: https://id.example, audience: airlock, jwks_url: https://id.example/keys}]`"
_CERTIFICATES_EXAMPLE = "`certificates: [{san: spiffe://example/agents, tenant: default}]`"


class JwtSettings(Section):
    """An issuer whose tokens are taken: who signs them, and which tenant and scopes one speaks for."""

    issuer: str = Field(min_length=1, max_length=512, description="as in the claim iss")
    audience: str = Field(min_length=1, max_length=512, description="one of the claim aud")
    jwks_url: str | None = None
    jwks_file: Path | None = None
    tenant_claim: str | None = Field(default=None, description="unset means airlock_tenant, unless `tenants` is given")
    tenants: dict[str, Name] | None = Field(
        default=None, min_length=1, description="tenants by patterns of the claim sub; the first that matches"
    )
    scopes_claim: str = "scope"
    scopes: tuple[str, ...] = Field(default=(), description="of tokens that have no such claim")
    leeway_s: float = Field(default=30.0, ge=0, le=300)
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256", "EdDSA")

    @property
    def named_by(self) -> str:
        """The claim that names the tenant."""
        return self.tenant_claim or "airlock_tenant"

    @model_validator(mode="after")
    def _says_where_its_keys_are(self) -> Self:
        if (self.jwks_url is None) == (self.jwks_file is None):
            raise ValueError("one of jwks_url and jwks_file says where the issuer's public keys are")
        if self.tenants is not None and self.tenant_claim is not None:
            raise ValueError("one of tenant_claim and tenants says which tenant a token is for")
        if self.jwks_url is not None and not _is_safe(self.jwks_url):
            raise ValueError(
                "jwks_url: https:// is expected; http:// only on loopback, for who answers decides who calls"
            )
        if self.scopes:
            _check(self.scopes)
        return self


class CertificateSettings(Section):
    """A name in clients' certificates, and which tenant it speaks for."""

    san: str = Field(min_length=1, max_length=512, description="a URI or a DNS name, exactly as in the certificate")
    tenant: Name
    scopes: tuple[str, ...] = ACTING_SCOPES

    @model_validator(mode="after")
    def _has_scopes_that_go_together(self) -> Self:
        _check(self.scopes)
        return self


class IdentitySettings(Section):
    """Credentials besides API keys."""

    jwt: tuple[JwtSettings, ...] = Field(default=(), examples=[_JWT_EXAMPLE])
    certificates: tuple[CertificateSettings, ...] = Field(default=(), examples=[_CERTIFICATES_EXAMPLE])

    @model_validator(mode="after")
    def _names_nobody_twice(self) -> Self:
        for field, names in (
            ("jwt: issuer", [issuer.issuer for issuer in self.jwt]),
            ("certificates: san", [certificate.san for certificate in self.certificates]),
        ):
            if twice := {name for name in names if names.count(name) > 1}:
                raise ValueError(f"{field} {min(twice)} is written twice")
        return self


class TlsSettings(Section):
    """The listener's certificate, PEM files that may be replaced while it runs, and what it asks clients for."""

    certificate: Path = Field(description="the chain, the gateway's own first")
    key: Path
    client_ca: Path | None = Field(default=None, description="who signs clients' certificates")
    client_certificates: Literal["none", "optional", "required"] | None = Field(
        default=None, description="unset means required where there is a client_ca"
    )

    @property
    def requires_certificates(self) -> bool:
        """Whether a client without a certificate is turned away."""
        return self.client_ca is not None and self.client_certificates != "none"

    @model_validator(mode="after")
    def _can_be_served(self) -> Self:
        if self.client_certificates == "optional":
            raise ValueError(
                "client_certificates: grpc asks every client for a certificate or none; let one gateway require them "
                "and another, on the same database, take keys alone"
            )
        if self.client_certificates == "required" and self.client_ca is None:
            raise ValueError("client_ca: client certificates need the file of those who sign them")
        return self


def _check(scopes: tuple[str, ...]) -> None:
    try:
        checked_scopes(scopes)
    except InvalidArgument as error:
        raise ValueError(str(error)) from error


def _is_safe(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return bool(host)
        return parts.scheme == "http" and (host == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False
