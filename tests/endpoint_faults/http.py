"""Faults of HTTP: heads, lengths, chunks, encodings, redirects, and pages in place of answers."""

from __future__ import annotations

import gzip
import zlib

from agent.errors import ModelNonsense, ModelRefused, ModelUnavailable
from tests.misbehaving_endpoint import (
    ANSWER,
    HEAD,
    SECRETS,
    SILENT,
    SLOW,
    STREAM,
    WHOLE,
    Fault,
    Play,
    Wire,
    answering,
    completion,
    endless,
    events,
    genuine,
    sending,
)

_LOGIN = "<!doctype html><html><head><title>Hotel</title></head><body>Sign in to go online</body></html>"


async def _speaks_ssh(wire: Wire) -> None:
    await wire.send(b"SSH-2.0-OpenSSH_9.6\r\n")
    await wire.silence()


async def _speaks_redis(wire: Wire) -> None:
    await wire.asked()
    await wire.send(b"-ERR wrong number of arguments for 'post' command\r\n\r\n")


def _elsewhere(location: str, status: int = 307) -> Play:
    return answering("", status, location=location)


HTTP = (
    Fault(
        name="headers without end",
        play=endless(HEAD, b"x-more: and more\r\n" * 500),
        error=ModelUnavailable,
        says=("not valid HTTP",),
        setting="base_url",
    ),
    Fault(
        name="a header without end",
        play=endless(HEAD, b"x" * 8192),
        error=ModelUnavailable,
        says=("not valid HTTP",),
        setting="base_url",
    ),
    Fault(
        name="a line without end",
        play=endless(HEAD + b"\r\n", b"x" * 2**18),
        error=ModelNonsense,
        says=("a line of more than 8 MiB",),
        setting="base_url",
    ),
    Fault(
        name="an event without end",
        play=endless(HEAD + b"\r\n", b"data: " + b"x" * 2**18 + b"\n"),
        error=ModelNonsense,
        says=("more than 8 MiB",),
        setting="base_url",
    ),
    Fault(
        name="empty pieces without end",
        play=endless(HEAD + b"\r\n", events({"choices": []}).encode(), 0.001),
        within=SLOW,
        error=ModelUnavailable,
        says=("did not finish its answer",),
        setting="timeout_s",
    ),
    Fault(
        name="comments without end",
        play=endless(HEAD + b"\r\n", b": OPENROUTER PROCESSING\n\n", 0.001),
        within=SLOW,
        error=ModelUnavailable,
        says=("did not finish its answer",),
        setting="timeout_s",
    ),
    Fault(
        name="comments before the answer",
        play=sending(HEAD, b"\r\n", b": OPENROUTER PROCESSING\n\n" * 50, WHOLE.encode()),
    ),
    Fault(
        name="content-length too short",
        stream=False,
        play=answering(completion({"content": ANSWER}), content_length="40"),
        error=ModelNonsense,
        says=("not JSON",),
        setting="base_url",
    ),
    Fault(
        name="content-length too long",
        stream=False,
        play=answering(completion({"content": ANSWER}), content_length="4000"),
        error=ModelUnavailable,
        says=("in the middle of an answer",),
    ),
    Fault(name="content-length too long after the end of a stream", play=answering(WHOLE, content_length="4000")),
    Fault(
        name="content-length of no number",
        play=answering(WHOLE, content_length="many"),
        error=ModelUnavailable,
        says=("not valid HTTP",),
        setting="base_url",
    ),
    Fault(
        name="a chunk size of no number",
        play=sending(STREAM, b"zz\r\n", WHOLE.encode()),
        error=ModelUnavailable,
        says=("not valid HTTP",),
        setting="base_url",
    ),
    Fault(
        name="a chunk size too small",
        play=sending(STREAM, b"5\r\n", WHOLE.encode(), b"\r\n0\r\n\r\n"),
        error=ModelUnavailable,
        says=("not valid HTTP",),
        setting="base_url",
    ),
    Fault(name="no final chunk after the end", play=genuine(lambda answer: answer.removesuffix(b"0\r\n\r\n"))),
    Fault(name="no content", play=answering(b"", 204), error=ModelNonsense, says=("empty body",), setting="stream"),
    Fault(name="news before the answer", play=genuine(lambda answer: b"HTTP/1.1 103 Early Hints\r\n\r\n" + answer)),
    Fault(
        name="another protocol that waits",
        play=_speaks_ssh,
        within=SILENT,
        error=ModelUnavailable,
        setting="idle_timeout_s",
    ),
    Fault(
        name="another protocol",
        play=_speaks_redis,
        error=ModelUnavailable,
        says=("not valid HTTP",),
        setting="base_url",
    ),
    Fault(
        name="a gzip bomb",
        play=answering(gzip.compress(b"x" * 2**24), content_encoding="gzip"),
        error=ModelNonsense,
        says=("a line of more than 8 MiB",),
        setting="base_url",
    ),
    Fault(
        name="a gzip bomb as an error",
        play=answering(gzip.compress(b"x" * 2**24), 500, content_encoding="gzip"),
        error=ModelUnavailable,
        says=("HTTP 500", "xxx... (65536 characters)"),
    ),
    Fault(
        name="brotli unasked",
        play=answering(b"\x0b\x02\x80{}\x03", content_encoding="br"),
        error=ModelNonsense,
        says=("'br'", "which was not asked for"),
        setting="proxy",
    ),
    Fault(
        name="gzip that is none",
        play=answering(b"plain", content_encoding="gzip"),
        error=ModelNonsense,
        says=("cannot be decompressed",),
        setting="proxy",
    ),
    Fault(
        name="gzip that is cut",
        stream=False,
        play=answering(gzip.compress(events(completion({"content": ANSWER})).encode())[:-40], content_encoding="gzip"),
        error=ModelNonsense,
        says=("not JSON",),
        setting="base_url",
    ),
    Fault(name="gzip unasked", play=answering(gzip.compress(WHOLE.encode()), content_encoding="gzip")),
    Fault(name="deflate unasked", play=answering(zlib.compress(WHOLE.encode()), content_encoding="deflate")),
    Fault(
        name="redirects without end",
        play=_elsewhere("/v1/chat/completions"),
        error=ModelRefused,
        says=("redirects",),
        setting="base_url",
    ),
    Fault(
        name="a redirect elsewhere",
        play=_elsewhere(f"https://api.elsewhere.example/v1?{SECRETS}", 308),
        error=ModelRefused,
        says=("redirects to https://api.elsewhere.example", "not sent there"),
        setting="base_url",
    ),
    Fault(
        name="a redirect to a secret's address",
        play=_elsewhere("https://sk-fault-0123456789.elsewhere.example/"),
        error=ModelRefused,
        setting="base_url",
    ),
    Fault(
        name="a redirect that turns a question into a page",
        play=_elsewhere("/login", 302),
        error=ModelRefused,
        says=("redirects",),
        setting="base_url",
    ),
    Fault(
        name="a redirect to nowhere",
        play=answering("moved", 301),
        error=ModelRefused,
        says=("HTTP 301",),
        setting="base_url",
    ),
    Fault(
        name="a captive portal",
        play=answering(_LOGIN, content_type="text/html"),
        error=ModelRefused,
        says=("HTML page", "Hotel Sign in to go online"),
        setting="base_url",
    ),
    Fault(
        name="a captive portal that repeats secrets at the end of what is quoted",
        play=answering("<html>" + "x" * 476 + f" {SECRETS}"),
        error=ModelRefused,
        setting="base_url",
    ),
    Fault(
        name="a text that repeats secrets at the end of what is quoted",
        play=answering("x" * 476 + f" {SECRETS}"),
        error=ModelNonsense,
        setting="base_url",
    ),
)
