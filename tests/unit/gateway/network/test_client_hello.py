"""ClientHellos as OpenSSL makes them, cut everywhere, and malformed ones."""

from __future__ import annotations

import ssl
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.network.client_hello import ClientHello, read_client_hello

_LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
_NAMES = st.lists(_LABEL, min_size=1, max_size=4).map(".".join).filter(lambda name: not name[-1].isdigit())


def _hello(name: str | None, alpn: tuple[str, ...] = ()) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if alpn:
        context.set_alpn_protocols(list(alpn))
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def _records(message: bytes, cuts: list[int]) -> bytes:
    edges = [0, *sorted({cut % len(message) for cut in cuts} - {0}), len(message)]
    return b"".join(
        b"\x16\x03\x01" + (end - start).to_bytes(2, "big") + message[start:end] for start, end in pairwise(edges)
    )


def _extension(kind: int, data: bytes) -> bytes:
    return kind.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data


def _made(*extensions: bytes) -> bytes:
    """Return a ClientHello with just these extensions."""
    listed = b"".join(extensions)
    body = (
        b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00" + len(listed).to_bytes(2, "big") + listed
    )
    return b"\x01" + len(body).to_bytes(3, "big") + body


def _name(*names: bytes, kind: int = 0) -> bytes:
    listed = b"".join(bytes([kind]) + len(name).to_bytes(2, "big") + name for name in names)
    return _extension(0, len(listed).to_bytes(2, "big") + listed)


@given(_NAMES, st.lists(st.sampled_from(["h2", "http/1.1", "x"]), max_size=3, unique=True).map(tuple))
def test_what_openssl_sends_is_read(name: str, alpn: tuple[str, ...]) -> None:
    assert read_client_hello(_hello(name, alpn)) == ClientHello(name, False, alpn)


@given(_NAMES, st.lists(st.integers(0, 2000), max_size=20), st.binary(max_size=20))
def test_it_may_be_split_over_records_and_be_followed_by_others(name: str, cuts: list[int], rest: bytes) -> None:
    assert read_client_hello(_records(_hello(name)[5:], cuts) + rest) == ClientHello(name, False, ())


@given(_NAMES, st.lists(st.integers(0, 2000), max_size=5))
def test_every_shorter_start_needs_more_bytes(name: str, cuts: list[int]) -> None:
    hello = _records(_hello(name)[5:], cuts)
    assert all(read_client_hello(hello[:end]) is None for end in range(len(hello)))


def test_a_record_that_goes_on_after_the_message_is_not_taken_for_complete() -> None:
    hello = _made(_name(b"a.example"))
    longer = b"\x16\x03\x01" + (len(hello) + 1).to_bytes(2, "big") + hello
    assert read_client_hello(longer) is None
    with pytest.raises(ValueError, match="another message"):
        read_client_hello(longer + b"\x01")


def test_a_client_may_name_no_server() -> None:
    assert read_client_hello(_hello(None)) == ClientHello(None, False, ())
    assert read_client_hello(_hello("127.0.0.1")) == ClientHello(None, False, ())


@pytest.mark.parametrize("kind", [0xFE0D, 0xFFCE])
def test_an_encrypted_one_is_reported(kind: int) -> None:
    hello = _made(_name(b"front.example"), _extension(kind, b"\x00\x01"))
    assert read_client_hello(_records(hello, [])) == ClientHello("front.example", True, ())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_hello_or_incomplete_or_refused(data: bytes) -> None:
    for start in (b"", b"\x16\x03\x01", _hello("a.example")[:60]):
        with suppress(ValueError):
            read_client_hello(start + data)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x80\x2e\x01\x03\x01",  # SSLv2
        b"\x17\x03\x03\x00\x01\x00",  # data
        b"\x16\x03\x03\x00\x04\x02\x00\x00\x00",  # a ServerHello
    ],
)
def test_another_protocol_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a TLS ClientHello"):
        read_client_hello(data)


@pytest.mark.parametrize(
    "message",
    [
        _made(_name(b"a.example"), _name(b"b.example")),
        _made(_name(b"a.example", b"b.example")),
        _made(_name(b"a.example", kind=1)),
        _made(_name(b"")),
        _made(_name(b"a.example\x00.b.example")),
        _made(_name("bücher.example".encode())),
        _made(_extension(0, b"")),
        _made(_extension(0, b"\x00\x00")),
        _made(_extension(16, b"\x00\x00")),
        _made(_name(b"a.example")[:-1]),
        _made(_name(b"a.example")) + b"\x01",
        b"\x01\x00\x40\x01" + bytes(10),
        b"\x01\xff\xff\xff" + bytes(10),
    ],
)
def test_what_could_be_read_in_two_ways_is_malformed(message: bytes) -> None:
    with pytest.raises(ValueError, match="malformed TLS ClientHello"):
        read_client_hello(_records(message, []))
    assert read_client_hello(_records(_made(_name(b"a.example")), [])) == ClientHello("a.example", False, ())


def test_it_is_bounded_in_bytes_and_records() -> None:
    padding = _extension(21, bytes(16_000))
    assert read_client_hello(_records(_made(_name(b"a.example"), padding), [9000])) is not None
    with pytest.raises(ValueError, match="malformed"):
        read_client_hello(_records(_made(_name(b"a.example"), padding, _extension(22, bytes(500))), [9000]))
    short = _made(_name(b"a.example"), _extension(21, bytes(100)))
    assert read_client_hello(_records(short, list(range(1, 60)))) is not None
    with pytest.raises(ValueError, match="malformed"):
        read_client_hello(_records(short, list(range(1, 80))))
    with pytest.raises(ValueError, match="malformed"):
        read_client_hello(b"\x16\x03\x01\x00\x00" * 3)
