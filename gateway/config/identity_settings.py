"""The sections `identity` and `tls`: token issuers, client certificates and the listener's certificate."""

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from gateway.config.section import Name, Section, is_loopback
from gateway.credentials.keys import ACTING_SCOPES, checked_scopes
from gateway.errors import InvalidArgument

# Public keys only: with HS* anyone who can read the key can sign, and "none" needs no key.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_JWT_EXAMPLE = "`jwt: [{issuer: https://id.example, audience: airlock, jwks_url: https://id.example/keys}]`"
_CERTIFICATES_EXAMPLE = "`certificates: [{san: spiffe://example/agents, tenant: default}]`"


class JwtSettings(Section):
    """A trusted token issuer: its keys, and how its tokens map to tenants and scopes."""

    issuer: str = Field(min_length=1, max_length=512, description="the claim iss")
    audience: str = Field(min_length=1, max_length=512, description="a value of the claim aud")
    jwks_url: str | None = None
    jwks_file: Path | None = None
    tenant_claim: str | None = Field(default=None, description="unset means airlock_tenant, unless `tenants` is set")
    tenants: dict[str, Name] | None = Field(
        default=None, min_length=1, description="tenants by patterns of the claim sub; the first match wins"
    )
    scopes_claim: str = "scope"
    scopes: tuple[str, ...] = Field(default=(), description="for tokens without that claim")
    leeway_s: float = Field(default=30.0, ge=0, le=300)
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256", "EdDSA")

    @property
    def named_by(self) -> str:
        return self.tenant_claim or "airlock_tenant"

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if (self.jwks_url is None) == (self.jwks_file is None):
            raise ValueError("set either jwks_url or jwks_file: where the issuer's public keys are")
        if self.tenants is not None and self.tenant_claim is not None:
            raise ValueError("set either tenant_claim or tenants: which tenant a token is for")
        if self.jwks_url is not None and not _is_safe(self.jwks_url):
            raise ValueError("jwks_url: https:// is expected (http:// on loopback only)")
        if self.scopes:
            _check(self.scopes)
        return self


class CertificateSettings(Section):
    """A name in client certificates, and the tenant it maps to."""

    san: str = Field(min_length=1, max_length=512, description="a URI or DNS name, exactly as in the certificate")
    tenant: Name
    scopes: tuple[str, ...] = ACTING_SCOPES

    @model_validator(mode="after")
    def _has_valid_scopes(self) -> Self:
        _check(self.scopes)
        return self


class IdentitySettings(Section):
    """Credentials besides API keys."""

    jwt: tuple[JwtSettings, ...] = Field(default=(), examples=[_JWT_EXAMPLE])
    certificates: tuple[CertificateSettings, ...] = Field(default=(), examples=[_CERTIFICATES_EXAMPLE])

    @model_validator(mode="after")
    def _has_no_duplicates(self) -> Self:
        for field, names in (
            ("jwt: issuer", [issuer.issuer for issuer in self.jwt]),
            ("certificates: san", [certificate.san for certificate in self.certificates]),
        ):
            if twice := {name for name in names if names.count(name) > 1}:
                raise ValueError(f"{field} {min(twice)} is a duplicate")
        return self


class TlsSettings(Section):
    """The listener's certificate, in PEM files that may be replaced at run time, and what it asks clients for."""

    certificate: Path = Field(description="the chain, the gateway's own certificate first")
    key: Path
    client_ca: Path | None = Field(default=None, description="the CA of client certificates")
    client_certificates: Literal["none", "optional", "required"] | None = Field(
        default=None, description="unset means required if there is a client_ca"
    )

    @property
    def requires_certificates(self) -> bool:
        return self.client_ca is not None and self.client_certificates != "none"

    @model_validator(mode="after")
    def _is_supported(self) -> Self:
        if self.client_certificates == "optional":
            raise ValueError(
                "client_certificates: grpc asks either all clients for a certificate or none; run one gateway that "
                "requires them, and another on the same database that takes keys only"
            )
        if self.client_certificates == "required" and self.client_ca is None:
            raise ValueError("client_ca: client certificates need their CA's file")
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
        return bool(host) if parts.scheme == "https" else parts.scheme == "http" and is_loopback(host)
    except ValueError:
        return False
