"""An issuer's public keys: fetched over real HTTP, kept, and never asked for too often."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gateway.errors import Unauthenticated, Unavailable
from gateway.identity.key_set import KeySet, from_url, read_keys
from tests.unit.gateway.identity.test_token_authenticator import EC, RSA, jwks


class Issuer:
    """An HTTP server on loopback that says what the test gives it."""

    def __init__(self) -> None:
        self.body = json.dumps(jwks(a=RSA)).encode()
        self.status = 200
        self.asked = 0
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                self.send_response(issuer.status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(issuer.body)))
                self.end_headers()
                self.wfile.write(issuer.body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/keys"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


async def test_a_key_that_is_not_there_is_fetched_at_most_every_30_seconds(issuer: Issuer) -> None:
    now = [0.0]
    keys = KeySet("i", from_url(issuer.url), lambda: now[0])
    await asyncio.gather(*(keys.key("a") for _ in range(20)))
    assert issuer.asked == 1
    issuer.body = json.dumps(jwks(a=RSA, b=EC)).encode()
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            await keys.key("b")
    assert issuer.asked == 1
    now[0] = 30.0
    assert (await keys.key("b")).key.key_size == 256
    assert issuer.asked == 2


async def test_what_was_withdrawn_is_gone_after_a_while_and_no_call_waits_for_that(issuer: Issuer) -> None:
    now = [0.0]
    keys = KeySet("i", from_url(issuer.url), lambda: now[0])
    await keys.key("a")
    issuer.body = json.dumps(jwks(b=EC)).encode()
    now[0] = 300.0
    assert await keys.key("a")  # the old set, while the new one comes
    assert keys._fetching is not None
    await keys._fetching
    with pytest.raises(Unauthenticated):
        await keys.key("a")


@pytest.mark.parametrize("body", [b"", b"no", b"[]", b'{"keys": []}', b'{"keys": {}}', b"[" * 100_000, b"x" * 300_000])
async def test_the_last_good_set_stays_when_a_bad_one_comes(issuer: Issuer, body: bytes) -> None:
    now = [0.0]
    keys = KeySet("i", from_url(issuer.url), lambda: now[0])
    await keys.key("a")
    issuer.body = body
    now[0] = 30.0
    with pytest.raises(Unauthenticated):
        await keys.key("b")
    assert issuer.asked == 2
    assert await keys.key("a")


@pytest.mark.parametrize("status", [302, 404, 500])
async def test_without_any_set_the_gateway_says_that_it_cannot_verify_and_asks_again_later(
    issuer: Issuer, status: int
) -> None:
    now = [0.0]
    issuer.status = status
    keys = KeySet("i", from_url(issuer.url), lambda: now[0])
    for _ in range(3):
        with pytest.raises(Unavailable):
            await keys.key("a")
    assert issuer.asked == 1  # a redirection is not followed
    issuer.status = 200
    now[0] = 30.0
    assert await keys.key("a")


def test_secrets_and_keys_for_encryption_are_no_public_keys() -> None:
    secret = {"kty": "oct", "kid": "s", "k": "c2VjcmV0"}
    encryption = {**jwks(e=RSA)["keys"][0], "use": "enc"}
    good = jwks(a=RSA)["keys"][0]
    assert set(read_keys(json.dumps({"keys": [secret, encryption, good, 1, {"kty": "RSA"}]}).encode())) == {"a"}
    with pytest.raises(ValueError, match="no public key"):
        read_keys(json.dumps({"keys": [secret, encryption]}).encode())
