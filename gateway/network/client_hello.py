"""The first message of a TLS connection, which says in plain text whom the client means to talk to (RFC 8446, 4.1.2).

Whatever a server might read in two ways is malformed here: a second server_name, a name that is not ASCII, bytes that
belong to nothing.
"""

from dataclasses import dataclass, field

LIMIT_BYTES = 16 * 1024
# Records add 5 bytes each. A client that cuts its message in more of them means to hide it.
_LIMIT_RECORDS = 64
_LIMIT_RECORD_BYTES = 16 * 1024

HANDSHAKE = 22
_CLIENT_HELLO = 1
_SERVER_NAME = 0
_ALPN = 16
_ENCRYPTED_CLIENT_HELLO = frozenset({0xFE0D, 0xFFCE})  # the second: ESNI, its draft of 2018
_SERVER_HELLO = 2
# The random of a HelloRetryRequest, which is otherwise a ServerHello (RFC 8446, 4.1.3).
_HELLO_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
_RANDOM_AT = 5 + 4 + 2
ANSWER_BYTES = _RANDOM_AT + len(_HELLO_RETRY)
"""So much of a server's answer says whether it asks for another ClientHello."""


@dataclass(frozen=True)
class ClientHello:
    """What a ClientHello says. `server_name` is as written; `encrypted`: there is another that only the server reads.

    A client may offer `encrypted` without meaning it (GREASE); from outside that looks the same. `size_bytes`: of its
    records.
    """

    server_name: str | None
    encrypted: bool
    alpn: tuple[str, ...]
    size_bytes: int = field(default=0, compare=False)


def read_client_hello(data: bytes) -> ClientHello | None:
    """Read the start of a connection; None if more bytes are needed. Raises ValueError if it is no TLS ClientHello.

    What follows the message's last record is not looked at.
    """
    found = _message(data)
    return None if found is None else _read(_Fields(found[0]), found[1])


def tls_record(data: bytes) -> tuple[int, int]:
    """Return a record's kind, and the length of what follows the 5 bytes of its head."""
    return data[0], int.from_bytes(data[3:5], "big")


def asks_again(answer: bytes) -> bool | None:
    """Return whether a server's answer asks for a second ClientHello, in plain text too; None: not known yet."""
    if answer[:1] not in (b"", bytes([HANDSHAKE])):
        return False
    if len(answer) < ANSWER_BYTES:
        return None
    return answer[5] == _SERVER_HELLO and answer[_RANDOM_AT:ANSWER_BYTES] == _HELLO_RETRY


class _Fields:
    """Reads fields one after the other; ValueError where the bytes end before the field does."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise _malformed("a field is longer than the message")
        self._at += count
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, length_bytes: int) -> bytes:
        return self.take(self.number(length_bytes))


def _message(data: bytes) -> tuple[bytes, int] | None:
    """Return the handshake message's content and the size of its records, one or more; None if it is not complete."""
    message = bytearray()
    at = 0
    for _ in range(_LIMIT_RECORDS):
        head = data[at : at + 5]
        if head[:1] not in (b"", bytes([HANDSHAKE])) or head[1:2] not in (b"", b"\x03"):
            raise ValueError("not a TLS ClientHello")
        if len(head) < 5:
            return None
        _, length = tls_record(head)
        if not 0 < length <= _LIMIT_RECORD_BYTES:
            raise _malformed("the length of a record")
        message += data[at + 5 : at + 5 + length]
        at += 5 + length
        if message and message[0] != _CLIENT_HELLO:
            raise ValueError("not a TLS ClientHello")
        size = 4 + int.from_bytes(message[1:4], "big") if len(message) >= 4 else None
        if size is not None and size > LIMIT_BYTES:
            raise _malformed(f"longer than {LIMIT_BYTES} bytes")
        if len(data) < at:
            return None
        if size is not None and len(message) > size:
            raise _malformed("another message in the same record")
        if len(message) == size:
            return bytes(message[4:]), at
    raise _malformed(f"in more than {_LIMIT_RECORDS} records")


def _read(fields: _Fields, size_bytes: int) -> ClientHello:
    fields.take(2 + 32)  # version, random
    session, ciphers, compressions = fields.vector(1), fields.vector(2), fields.vector(1)
    if len(session) > 32 or len(ciphers) < 2 or len(ciphers) % 2 or not compressions:
        raise _malformed("session, cipher suites or compression")
    extensions = _extensions(fields.vector(2)) if fields else {}
    if fields:
        raise _malformed("bytes after the extensions")
    return ClientHello(
        _server_name(extensions[_SERVER_NAME]) if _SERVER_NAME in extensions else None,
        not _ENCRYPTED_CLIENT_HELLO.isdisjoint(extensions),
        _protocols(extensions[_ALPN]) if _ALPN in extensions else (),
        size_bytes,
    )


def _extensions(data: bytes) -> dict[int, bytes]:
    fields = _Fields(data)
    extensions: dict[int, bytes] = {}
    while fields:
        kind = fields.number(2)
        if kind in extensions:
            raise _malformed("an extension twice")
        extensions[kind] = fields.vector(2)
    return extensions


def _server_name(data: bytes) -> str:
    fields = _Fields(data)
    names = _Fields(fields.vector(2))
    kind, name = names.number(1), names.vector(2)
    # Another kind of name was never defined (RFC 6066, 3): only the first could be meant.
    if fields or names or kind != 0 or not name or not all(0x21 <= byte <= 0x7E for byte in name):
        raise _malformed("server_name")
    return name.decode("ascii")


def _protocols(data: bytes) -> tuple[str, ...]:
    fields = _Fields(data)
    names = _Fields(fields.vector(2))
    protocols = []
    while names:
        protocols.append(names.vector(1).decode("latin-1"))
    if fields or not protocols or not all(protocols):
        raise _malformed("the list of protocols")
    return tuple(protocols)


def _malformed(what: str) -> ValueError:
    return ValueError(f"malformed TLS ClientHello: {what}")
