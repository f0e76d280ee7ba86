"""An anchor: the signed head of an audit chain at a time, stored outside the database.

The database's owner can truncate a chain or write a new one with its head. Neither matches the digests of earlier
anchors, and new anchors need the key.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from gateway.errors import Misconfigured

_PURPOSE = b"airlock audit anchor\n"
_SIGNATURE = "signature"


@dataclass(frozen=True)
class Anchor:
    """A chain's head: the tenant ("" for the operators), the last record, and the number of records."""

    tenant: str
    at_us: int
    sequence: int
    digest: str
    records: int

    def signed_bytes(self) -> bytes:
        return _PURPOSE + json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    def line(self, key: Ed25519PrivateKey) -> str:
        """Return the signed anchor as a line of JSON, without its line end."""
        signature = base64.b64encode(key.sign(self.signed_bytes())).decode()
        return json.dumps({**asdict(self), _SIGNATURE: signature})

    @classmethod
    def of_line(cls, line: str, key: Ed25519PublicKey) -> Anchor:
        """Parse a line; ValueError if it is not an anchor or not signed with the key."""
        fields: Any = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 - a bad line is one kind of error
        signature = fields.pop(_SIGNATURE, None)
        types = {name: type(value) for name, value in fields.items()}
        if types != {"tenant": str, "at_us": int, "sequence": int, "digest": str, "records": int}:
            raise ValueError("not an anchor: it has other fields")
        anchor = cls(**fields)
        try:
            key.verify(base64.b64decode(str(signature), validate=True), anchor.signed_bytes())
        except (InvalidSignature, binascii.Error) as error:
            raise ValueError("it is not signed with this key") from error
        return anchor


def known_by(lines: Iterable[str], key: Ed25519PublicKey, tenant: str) -> Mapping[int, str]:
    """Return the digests of a tenant's records in a file's anchors, by sequence number.

    ValueError names the first line that is not an anchor of this key or contradicts an earlier one.
    """
    known: dict[int, str] = {}
    for number, line in enumerate(lines, 1):
        try:
            anchor = Anchor.of_line(line, key)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from error
        if anchor.tenant != tenant:
            continue
        if known.setdefault(anchor.sequence, anchor.digest) != anchor.digest:
            raise ValueError(
                f"line {number}: record {anchor.sequence} had another digest in an earlier anchor: "
                "the chain was replaced in between, or the tenant was deleted with its audit and created again"
            )
    return known


def private_key(path: Path) -> Ed25519PrivateKey:
    """Read the private key that signs anchors; Misconfigured if the file is unusable."""
    key = _key(path, lambda data: load_pem_private_key(data, password=None), "a private")
    if not isinstance(key, Ed25519PrivateKey):
        raise Misconfigured(f"{path}: not an Ed25519 key; create one: openssl genpkey -algorithm ed25519 -out {path}")
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """Read the public key that verifies anchors; Misconfigured if the file is unusable."""
    key = _key(path, load_pem_public_key, "a public")
    if not isinstance(key, Ed25519PublicKey):
        raise Misconfigured(f"{path}: not an Ed25519 key; the public half of audit.anchor.key_file is expected")
    return key


def _key(path: Path, load: Any, kind: str) -> Any:
    try:
        return load(path.read_bytes())
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Misconfigured(f"{path}: not {kind} key in PEM format without a password") from error
