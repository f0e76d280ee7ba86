"""Faults of connections, of TLS and of forward proxies."""

from __future__ import annotations

from agent.errors import ModelRefused, ModelUnavailable
from tests.misbehaving_endpoint import (
    HEAD,
    SAID,
    SECRETS,
    SILENT,
    SLOW,
    STREAM,
    WHOLE,
    Fault,
    Play,
    Wire,
    answering,
    chunked,
    endless,
    genuine,
    http,
    sending,
    silent,
    streaming,
)


async def _resets_at_once(wire: Wire) -> None:
    wire.reset()


async def _hangs_up_at_once(wire: Wire) -> None:
    await wire.asked()


async def _one_byte_at_a_time(wire: Wire) -> None:
    answer = await wire.genuine()
    await wire.send(*(answer[at : at + 1] for at in range(len(answer))))


async def _answers_in_plain(wire: Wire) -> None:
    await wire.reader.read(65_536)
    await wire.send(http("Bad Request", 400))


def _alerts(number: int) -> Play:
    """Refuse a TLS handshake with an alert, as a server does that wants more of the client."""

    async def play(wire: Wire) -> None:
        await wire.reader.read(65_536)
        await wire.send(bytes([21, 3, 3, 0, 2, 2, number]))

    return play


CONNECTIONS = (
    Fault(
        name="connection refused",
        play=None,
        error=ModelUnavailable,
        says=("nothing answers at this address",),
        setting="base_url",
    ),
    Fault(
        name="no such host",
        play=answering(""),
        host="no-such-host.invalid",
        error=ModelUnavailable,
        says=("Name or service not known", "no address"),
        setting="base_url",
    ),
    Fault(name="reset before the request", play=_resets_at_once, error=ModelUnavailable, setting="base_url"),
    Fault(
        name="reset before the head",
        play=sending(then=Wire.reset),
        error=ModelUnavailable,
        setting="base_url",
    ),
    Fault(
        name="closed before the head",
        play=_hangs_up_at_once,
        error=ModelUnavailable,
        says=("without sending a response", "without an answer"),
        setting="base_url",
    ),
    Fault(name="closed in the head", play=sending(HEAD[:30]), error=ModelUnavailable, setting="base_url"),
    Fault(name="reset in the head", play=sending(HEAD, then=Wire.reset), error=ModelUnavailable, setting="base_url"),
    Fault(
        name="closed in the body",
        play=genuine(lambda answer: answer[: len(answer) // 2]),
        error=ModelUnavailable,
        says=("in the middle of an answer",),
    ),
    Fault(
        name="reset in the body",
        play=sending(STREAM, chunked(SAID), then=Wire.reset),
        error=ModelUnavailable,
        setting="base_url",
    ),
    Fault(
        name="closed in a chunk size",
        play=sending(STREAM, chunked(SAID), b"1"),
        error=ModelUnavailable,
        says=("in the middle of an answer",),
    ),
    Fault(
        name="closed in a document",
        stream=False,
        play=genuine(lambda answer: answer[:-9]),
        error=ModelUnavailable,
        says=("without sending complete message body", "in the middle of an answer"),
    ),
    Fault(
        name="silence instead of a head",
        play=silent(),
        within=SILENT,
        error=ModelUnavailable,
        setting="idle_timeout_s",
    ),
    Fault(
        name="silence in the midst of a stream",
        play=silent(STREAM, chunked(SAID)),
        within=SILENT,
        error=ModelUnavailable,
        says=("0.3 s",),
        setting="idle_timeout_s",
    ),
    Fault(
        name="silence instead of a document",
        stream=False,
        play=silent(),
        within=SLOW,
        error=ModelUnavailable,
        says=("0.4 s",),
        setting="timeout_s",
    ),
    Fault(
        name="one byte now and then in the head",
        play=endless(b"HTTP/1.1 200 OK\r\n", b"a", 0.02),
        within=SLOW,
        error=ModelUnavailable,
        setting="timeout_s",
    ),
    Fault(
        name="one byte now and then in a stream",
        play=endless(STREAM, b"1\r\na\r\n", 0.02),
        within=SLOW,
        error=ModelUnavailable,
        says=("0.4 s",),
        setting="timeout_s",
    ),
    Fault(
        name="one byte now and then in a document",
        stream=False,
        play=endless(HEAD + b"\r\n", b" ", 0.02),
        within=SLOW,
        error=ModelUnavailable,
        setting="timeout_s",
    ),
    Fault(name="one byte at a time", play=_one_byte_at_a_time),
    Fault(name="one byte at a time of a document", play=_one_byte_at_a_time, stream=False),
)

TLS = (
    Fault(
        name="an unknown authority",
        play=streaming(),
        scheme="https",
        certificate="unknown",
        error=ModelUnavailable,
        says=("certificate verify failed", "does not trust the issuer"),
        setting="ca_file",
    ),
    Fault(
        name="an expired certificate",
        play=streaming(),
        scheme="https",
        certificate="expired",
        error=ModelUnavailable,
        says=("certificate has expired", "renew the server's certificate"),
        setting="base_url",
    ),
    Fault(
        name="a certificate for another name",
        play=streaming(),
        scheme="https",
        certificate="other name",
        error=ModelUnavailable,
        says=("for another name",),
        setting="base_url",
    ),
    Fault(
        name="a client certificate wanted",
        play=_alerts(116),
        scheme="https",
        error=ModelUnavailable,
        says=("CERTIFICATE_REQUIRED",),
        setting="client_cert_file",
    ),
    Fault(
        name="a handshake refused",
        play=_alerts(40),
        scheme="https",
        error=ModelUnavailable,
        says=("HANDSHAKE_FAILURE",),
        setting="client_cert_file",
    ),
    Fault(
        name="a client certificate wanted, said by nginx",
        play=answering("<html><title>400 No required SSL certificate was sent</title></html>", 400),
        error=ModelRefused,
        setting="client_cert_file",
    ),
    Fault(
        name="no TLS where there should be",
        play=_answers_in_plain,
        scheme="https",
        error=ModelUnavailable,
        says=("does not speak TLS on this port",),
        setting="base_url",
    ),
    Fault(
        name="TLS where there should be none",
        play=streaming(),
        certificate="good",
        error=ModelUnavailable,
        says=("https",),
        setting="base_url",
    ),
    Fault(
        name="TLS where there should be none, said by nginx",
        play=answering("<html><title>400 The plain HTTP request was sent to HTTPS port</title></html>", 400),
        error=ModelRefused,
        says=("expects TLS on this port",),
        setting="base_url",
    ),
    Fault(name="TLS as it should be", play=answering(WHOLE), scheme="https", certificate="good"),
)

PROXIES = (
    Fault(name="a proxy as it should be", play=genuine(lambda answer: answer), in_proxy=True),
    Fault(
        name="no proxy there",
        play=None,
        in_proxy=True,
        error=ModelUnavailable,
        says=("nothing answers at this address",),
        setting="proxy",
    ),
    Fault(
        name="a proxy that wants a password, for HTTPS",
        play=answering(f"{SECRETS}", f"407 Proxy Authentication Required {SECRETS}"),
        in_proxy=True,
        scheme="https",
        error=ModelUnavailable,
        says=("407 Proxy Authentication Required", "requires a user and a password"),
        setting="proxy",
    ),
    Fault(
        name="a proxy that wants a password, for HTTP",
        play=answering(f"<html>Cache access denied {SECRETS}</html>", 407),
        in_proxy=True,
        error=ModelRefused,
        says=("HTTP 407: Cache access denied", "requires a user and a password"),
        setting="proxy",
    ),
    Fault(
        name="a proxy that forbids the host",
        play=answering("", "403 Forbidden by policy"),
        in_proxy=True,
        scheme="https",
        error=ModelUnavailable,
        says=("403 Forbidden by policy", "refuses this connection"),
        setting="proxy",
    ),
    Fault(
        name="a proxy that finds no way",
        play=answering("", "502 Bad Gateway"),
        in_proxy=True,
        scheme="https",
        error=ModelUnavailable,
        says=("502 Bad Gateway",),
        setting="proxy",
    ),
    Fault(
        name="a proxy that hangs",
        play=silent(),
        in_proxy=True,
        scheme="https",
        within=SILENT,
        error=ModelUnavailable,
        setting="idle_timeout_s",
    ),
)
