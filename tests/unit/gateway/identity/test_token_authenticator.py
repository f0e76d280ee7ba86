"""Signed tokens, over real sockets: whose they are, and every way in which one can be wrong."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.config.config import Config
from gateway.config.identity_settings import JwtSettings
from gateway.errors import ScopeMissing, Unauthenticated
from gateway.identity.key_set import KeySet, PublicKey
from gateway.identity.token_authenticator import Issuer, TokenAuthenticator
from tests.unit.gateway.who_server import who_server

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = Ed25519PrivateKey.generate()
ISSUER = "https://id.example"


def jwks(**keys: Any) -> dict[str, Any]:
    """Return a JWKS of public keys by their ids."""
    kinds: dict[type[Any], Any] = {
        rsa.RSAPublicKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePublicKey: jwt.algorithms.ECAlgorithm,
    }
    listed = []
    for kid, key in keys.items():
        public = key.public_key()
        kind = next((kind for of, kind in kinds.items() if isinstance(public, of)), jwt.algorithms.OKPAlgorithm)
        listed.append({**json.loads(kind.to_jwk(public)), "kid": kid, "use": "sig"})
    return {"keys": listed}


def token(key: Any = RSA, algorithm: str = "RS256", kid: str = "a", **claims: Any) -> str:
    """Return a token that is good, but for these claims; None leaves one out."""
    now = time.time()
    usual = {"iss": ISSUER, "aud": "airlock", "sub": "svc-1", "exp": now + 60, "nbf": now - 60}
    reported = {**usual, "airlock_tenant": "acme", "scope": "openid run tool", **claims}
    said = {name: value for name, value in reported.items() if value is not None}
    return jwt.encode(said, key, algorithm, headers={"kid": kid})


def unsigned(header: Mapping[str, Any], claims: Mapping[str, Any], signature: bytes = b"") -> str:
    """Return a token that no library would make."""
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def settings(directory: Path, **more: Any) -> dict[str, Any]:
    """Return the configuration's section; the issuer's keys are in a file."""
    (directory / "jwks.json").write_text(json.dumps(jwks(a=RSA, e=EC, d=ED)), encoding="utf-8")
    return {"jwt": [{"issuer": ISSUER, "audience": "airlock", "jwks_file": "jwks.json", **more}]}


@pytest.mark.parametrize("key, algorithm, kid", [(RSA, "RS256", "a"), (EC, "ES256", "e"), (ED, "EdDSA", "d")])
async def test_a_token_says_tenant_subject_and_scopes(tmp_path: Path, key: Any, algorithm: str, kid: str) -> None:
    async with (
        who_server(tmp_path, identity=settings(tmp_path)) as server,
        server.asking(token(key, algorithm, kid)) as asking,
    ):
        assert await asking.once() == "acme token:svc-1 run,tool"


async def test_with_several_issuers_who_calls_is_named_with_his(tmp_path: Path) -> None:
    identity = settings(tmp_path)
    identity["jwt"].append({**identity["jwt"][0], "issuer": "https://other.example"})
    async with who_server(tmp_path, identity=identity) as server:
        for issuer in (ISSUER, "https://other.example"):
            async with server.asking(token(iss=issuer)) as asking:
                assert await asking.once() == f"acme token:{issuer} svc-1 run,tool"


_PUBLIC = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
_GOOD = jwt.decode(token(), options={"verify_signature": False})
WRONG = {
    "expired": lambda: token(exp=time.time() - 31),
    "not valid yet": lambda: token(nbf=time.time() + 31),
    "for another audience": lambda: token(aud="elsewhere"),
    "of another issuer": lambda: token(iss="https://evil.example"),
    "without exp": lambda: token(exp=None),
    "without nbf": lambda: token(nbf=None),
    "without aud": lambda: token(aud=None),
    "without iss": lambda: token(iss=None),
    "without sub": lambda: token(sub=None),
    "with an empty sub": lambda: token(sub=""),
    "with half of a surrogate pair for a sub": lambda: token(sub="\ud800"),
    "of a tenant that is half of a surrogate pair": lambda: token(airlock_tenant="\ud800"),
    "with an endless sub": lambda: token(sub="x" * 300),
    "of no tenant": lambda: token(airlock_tenant=None),
    "of a tenant that is none": lambda: token(airlock_tenant="nobody"),
    "of a tenant in another shape": lambda: token(airlock_tenant=["acme"]),
    "signed with another key": lambda: token(OTHER_RSA),
    "signed with a key that is not published": lambda: token(kid="z"),
    "signed with an algorithm that is not taken": lambda: token(algorithm="RS512"),
    "signed by nobody": lambda: unsigned({"alg": "none", "kid": "a"}, _GOOD),
    "signed by nobody, spelt otherwise": lambda: unsigned({"alg": "nOnE", "kid": "a"}, _GOOD),
    "signed with the public key as a secret": lambda: _hs256(_PUBLIC),
    "that names a key of another kind": lambda: token(EC, "ES256", kid="a"),
    "with approve beside others": lambda: token(scope="run approve"),
    "with exp as text": lambda: unsigned({"alg": "RS256", "kid": "a"}, {**_GOOD, "exp": "soon"}),
    "cut off": lambda: token()[:-20],
    "that is no JSON": lambda: "a.b.c",
    "nested deeply": lambda: _deep(),
}


def _hs256(secret: bytes) -> str:
    import hashlib
    import hmac

    head = unsigned({"alg": "HS256", "kid": "a", "typ": "JWT"}, _GOOD).rpartition(".")[0]
    mac = hmac.new(secret, head.encode(), hashlib.sha256).digest()
    return f"{head}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def _deep() -> str:
    # Together below 8 KiB, from where on gRPC refuses metadata at random.
    part = base64.urlsafe_b64encode(b"[" * 1500).rstrip(b"=").decode()
    return f"{part}.{part}."


async def test_a_token_that_is_wrong_in_any_way_authenticates_no_one(tmp_path: Path) -> None:
    async with who_server(tmp_path, identity=settings(tmp_path)) as server:
        for what, make in WRONG.items():
            async with server.asking(make()) as asking:
                with pytest.raises(Unauthenticated):
                    raise AssertionError(f"a token {what} was taken: {await asking.once()}")


async def test_a_token_is_for_the_scopes_it_names_and_no_more(tmp_path: Path) -> None:
    identity = settings(tmp_path, scopes_claim="roles")
    async with who_server(tmp_path, identity=identity) as server:
        for roles, said in ((["files"], "scopes files"), ([], "scopes none"), (["operate"], "scopes none")):
            async with server.asking(token(roles=roles)) as asking:
                with pytest.raises(ScopeMissing, match=said):
                    await asking.once()
        async with server.asking(token(roles="tool audit operate")) as asking:
            assert (await asking.once()).endswith("tool,audit")


async def test_subjects_may_stand_for_tenants(tmp_path: Path) -> None:
    identity = settings(tmp_path, tenants={"svc-1": "other", "svc-*": "acme"}, scopes=["tool"])
    async with who_server(tmp_path, identity=identity) as server:
        for subject, tenant in (("svc-1", "other"), ("svc-2", "acme")):
            async with server.asking(token(sub=subject, scope=None, airlock_tenant="acme")) as asking:
                assert await asking.once() == f"{tenant} token:{subject} tool"
        async with server.asking(token(sub="SVC-1")) as asking:
            with pytest.raises(Unauthenticated, match="no tenant"):
                await asking.once()


async def test_a_stream_ends_when_its_token_expires_and_a_token_that_gets_old_is_asked_for_anew(tmp_path: Path) -> None:
    async with who_server(tmp_path, identity=settings(tmp_path, leeway_s=0)) as server:
        made: list[str] = []

        def provider() -> str:
            made.append(token(exp=time.time() + 0.8, sub=f"svc-{len(made)}"))
            return made[-1]

        async with server.asking(provider) as asking:
            stream = asking.always()
            assert await anext(stream) == b"acme"
            with pytest.raises(Unauthenticated, match="expired"):
                await anext(stream)
            assert (await asking.once()).split()[1] == f"token:svc-{len(made) - 1}"


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"algorithms": ["HS256"]}, "algorithms"),
        ({"algorithms": ["none"]}, "algorithms"),
        ({"jwks_url": "https://id.example/keys"}, "either jwks_url or jwks_file"),
        ({"jwks_file": None}, "either jwks_url or jwks_file"),
        ({"jwks_file": None, "jwks_url": "http://id.example/keys"}, "https:// is expected"),
        ({"jwks_file": None, "jwks_url": "file:///etc/passwd"}, "https:// is expected"),
        ({"tenants": {"*": "nobody"}}, "nobody is not one of"),
        ({"tenants": {"*": "acme"}, "tenant_claim": "t"}, "either tenant_claim or tenants"),
        ({"scopes": ["operate"]}, "scope: operate given"),
    ],
)
def test_a_dangerous_or_contradictory_issuer_is_refused(tmp_path: Path, wrong: Mapping[str, Any], said: str) -> None:
    document = {"tenants": {"acme": {"policy": "p.yaml"}}, "identity": settings(tmp_path, **wrong)}
    with pytest.raises(ValueError, match=said):
        Config.model_validate(document)


async def test_a_clock_that_is_set_back_does_not_keep_a_token_from_being_verified_again() -> None:
    class Counted(KeySet):
        asked = 0

        async def key(self, key_id: str) -> PublicKey:
            self.asked += 1
            return await super().key(key_id)

    class AnyTenant:
        async def named(self, name: str) -> str:
            return name

    now_s, passed_s = [time.time()], [0.0]
    configured = JwtSettings(issuer=ISSUER, audience="airlock", jwks_file=Path("unused"))
    keys = Counted(ISSUER, lambda: json.dumps(jwks(a=RSA)).encode())
    tenants: Any = AnyTenant()
    authenticate = TokenAuthenticator([Issuer(configured, keys)], tenants, lambda: now_s[0], lambda: passed_s[0])
    sent = token(nbf=now_s[0] - 7200)
    await authenticate(sent)
    await authenticate(sent)
    assert keys.asked == 1
    now_s[0] -= 3600
    passed_s[0] += 31
    await authenticate(sent)
    assert keys.asked == 2
