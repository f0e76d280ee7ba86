"""Masks secrets in what comes back from a server, in the forms that servers echo them in; lengths stay."""

import base64
import html
import json
from collections.abc import Iterable
from urllib.parse import quote, quote_plus


def forms(secret: str) -> frozenset[bytes]:
    """Return a secret as servers may write it: plain, escaped, in Base64 (within other text too) and in hex."""
    plain = secret.encode("ascii")
    texts = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), html.escape(secret)}
    texts |= {json.dumps(secret)[1:-1], json.dumps(secret)[1:-1].replace("/", "\\/"), plain.hex(), plain.hex().upper()}
    coded = [_within_base64(plain, before) for before in range(3)]
    return frozenset(
        {text.encode("ascii") for text in texts} | {form.translate(table) for form in coded for table in _TABLES}
    )


_TABLES = (bytes(range(256)), bytes.maketrans(b"+/", b"-_"))


def _within_base64(plain: bytes, before: int) -> bytes:
    """Return what Base64 makes of bytes that have so many before them (mod 3), without what depends on neighbours."""
    coded = base64.b64encode(bytes(before) + plain)
    end = (before + len(plain)) * 8 // 6
    return coded[-(-before * 8 // 6) : end]


class Masked:
    """A stream in which secrets are masked, however it is cut. Keeps back no more than the start of a secret."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._kept = b""

    def feed(self, data: bytes) -> bytes:
        """Return what may be shown by now."""
        data = self.masked(self._kept + data)
        cut = min((self._started(data, secret) for secret in self._secrets), default=len(data))
        self._kept = data[cut:]
        return data[:cut]

    def flush(self) -> bytes:
        """Return the rest."""
        kept, self._kept = self._kept, b""
        return kept

    def masked(self, data: bytes) -> bytes:
        """Return bytes that are whole."""
        for secret in self._secrets:
            if secret in data:
                data = data.replace(secret, b"*" * len(secret))
        return data

    @staticmethod
    def _started(data: bytes, secret: bytes) -> int:
        """Return where, at the end, a secret begins that may go on; the end if nowhere."""
        at = data.find(secret[:1], max(0, len(data) - len(secret) + 1))
        while at >= 0 and not secret.startswith(data[at:]):
            at = data.find(secret[:1], at + 1)
        return at if at >= 0 else len(data)
