"""An issuer of tokens: it signs them, and publishes its keys over HTTP on loopback."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

AUDIENCE = "airlock"
_KEY_ID = "a"


class TokenIssuer:
    """Publishes its keys until its block ends; `asked` counts how often they were fetched."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        self._published = json.dumps({"keys": [{**public, "kid": _KEY_ID, "use": "sig"}]}).encode()
        self.asked = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def settings(self) -> dict[str, Any]:
        """Return what a gateway is configured with: an entry of `identity.jwt`."""
        return {"issuer": self.url, "audience": AUDIENCE, "jwks_url": f"{self.url}/keys"}

    def token(self, tenant: str, *scopes: str, **claims: Any) -> str:
        """Return a token that is good for an hour, but for these claims; None leaves one out."""
        now = time.time()
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": "walker", "exp": now + 3600, "nbf": now - 60}
        reported = {**usual, "airlock_tenant": tenant, "scope": " ".join(scopes), **claims}
        said = {name: value for name, value in reported.items() if value is not None}
        return jwt.encode(said, self._key, "RS256", headers={"kid": _KEY_ID})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                self.send_response(200)
                self.send_header("Content-Length", str(len(issuer._published)))
                self.end_headers()
                self.wfile.write(issuer._published)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        return Handler

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
