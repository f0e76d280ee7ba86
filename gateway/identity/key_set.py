"""An issuer's public keys (JWKS, RFC 7517): fetched, cached, and fetched again for an unknown key id."""

import asyncio
import contextvars
import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any

import structlog
from jwt import PyJWK
from jwt.exceptions import InvalidKeyError, PyJWKError

from gateway.errors import Unauthenticated, Unavailable

log = structlog.get_logger(__name__)
_LIMIT_BYTES = 256 * 1024
_KEYS_LIMIT = 100
_FETCH_S = 5.0
# Anyone can send a token with an unknown key id, and a key set that does not load must not be fetched for each call.
_RETRY_S = 30.0
# Withdrawn keys are dropped after this time.
_REFRESH_S = 300.0
Fetch = Callable[[], bytes]


@dataclass(frozen=True)
class PublicKey:
    """A key, and the one algorithm that it is for if its issuer names one."""

    key: Any
    algorithm: str | None


Keys = Mapping[str, PublicKey]


class KeySet:
    """The keys of one issuer by key id. A set that does not load leaves the last good one in place."""

    def __init__(self, issuer: str, fetch: Fetch, clock: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._clock = clock
        self._keys: Keys | None = None
        self._tried_at: float | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def key(self, key_id: str) -> PublicKey:
        """Return a key; Unauthenticated if the id is unknown, Unavailable if no key set was ever loaded."""
        if self._keys is None or (key_id not in self._keys and self._is_older_than(_RETRY_S)):
            if self._is_older_than(_RETRY_S) or self._fetching is not None:
                await asyncio.shield(self._fetched())
        elif self._is_older_than(_REFRESH_S):
            self._fetched()  # in the background
        if self._keys is None:
            raise Unavailable(f"the gateway could not load the public keys of {self._issuer}; its log says why")
        found = self._keys.get(key_id)
        if found is None:
            raise Unauthenticated("the token is signed with a key that its issuer does not publish")
        return found

    def _is_older_than(self, age_s: float) -> bool:
        return self._tried_at is None or self._clock() - self._tried_at >= age_s

    def _fetched(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._tried_at = self._clock()
            self._fetching = asyncio.create_task(
                self._load(), name="public keys of an issuer", context=contextvars.Context()
            )
            self._fetching.add_done_callback(self._forget)
        return self._fetching

    def _forget(self, _done: asyncio.Task[None]) -> None:
        self._fetching = None

    async def _load(self) -> None:
        try:
            self._keys = read_keys(await asyncio.to_thread(self._fetch))
        except (OSError, HTTPException, ValueError) as error:
            kept = self._keys is not None
            log.warning("public keys do not load", issuer=self._issuer, error=str(error), last_good_kept=kept)


def read_keys(data: bytes) -> Keys:
    """Return the public signature keys of a JWKS; ValueError if it is malformed or has none."""
    try:
        document = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > _KEYS_LIMIT:
        raise ValueError(f"no JSON object with a list of keys, {_KEYS_LIMIT} at most")
    keys: dict[str, PublicKey] = {}
    for one in listed:
        # A secret ("oct") never verifies, nor does an encryption key.
        if not isinstance(one, dict) or one.get("kty") not in {"RSA", "EC", "OKP"} or one.get("use", "sig") != "sig":
            continue
        try:
            key = PyJWK(one).key
        except (PyJWKError, InvalidKeyError, ValueError, TypeError, KeyError):
            continue  # of an unknown kind
        keys[str(one.get("kid", ""))] = PublicKey(key, str(one["alg"]) if "alg" in one else None)
    if not keys:
        raise ValueError("no public key for signatures in it")
    return keys


def from_file(path: Path) -> Fetch:
    """Return a function that reads a file."""

    def fetch() -> bytes:
        with path.open("rb") as file:
            return _bounded(file.read(_LIMIT_BYTES + 1))

    return fetch


def from_url(url: str) -> Fetch:
    """Return a function that gets a URL over verified TLS, without redirects, in bounded time and size."""

    def fetch() -> bytes:
        until_s = time.monotonic() + _FETCH_S
        opener = urllib.request.build_opener(_NoRedirect)
        # The configuration accepts https, and http on loopback only (identity_settings.py).
        request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310
        data = bytearray()
        with opener.open(request, timeout=_FETCH_S) as answer:
            while piece := answer.read1(65_536):
                data += piece
                _bounded(data)
                if time.monotonic() > until_s:
                    raise TimeoutError(f"incomplete after {_FETCH_S:g} s")
        return bytes(data)

    return fetch


def _bounded(data: bytes | bytearray) -> bytes:
    if len(data) > _LIMIT_BYTES:
        raise ValueError(f"larger than {_LIMIT_BYTES} bytes")
    return bytes(data)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: its target was not configured."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Any:
        del req, fp, msg, headers, newurl, code
