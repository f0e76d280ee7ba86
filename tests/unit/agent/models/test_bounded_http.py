"""An answer without bounds costs no more than the bounds, whatever it is wrapped in."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent.errors import ModelError, ModelNonsense, ModelRefused, ModelUnavailable
from agent.models import bounded_http
from agent.models.bounded_http import LINE_LIMIT_BYTES
from tests.unit.agent.models.asking import BOTH, ask_at, completion, sse
from tests.unit.agent.models.raw_endpoint import Answers, answering, bomb, repeating, serving

BOMB_MIB = 64
BOMB = bomb(BOMB_MIB)


@pytest.fixture
def peak_bytes() -> Iterator[Callable[[], int]]:
    tracemalloc.start()
    base, _ = tracemalloc.get_traced_memory()
    yield lambda: tracemalloc.get_traced_memory()[1] - base
    tracemalloc.stop()


async def fails(answer: Answers, error: type[ModelError], **options: Any) -> str:
    async with serving(answer) as endpoint:
        with pytest.raises(error) as raised:
            await ask_at(endpoint.base_url, **options)
    assert type(raised.value) is error
    assert len(str(raised.value)) < 2000
    return str(raised.value)


@BOTH
@pytest.mark.parametrize("head", [{}, {"content_type": "text/event-stream"}])
async def test_a_compressed_bomb_takes_no_more_memory_than_a_line_may(
    stream: bool, head: dict[str, str], peak_bytes: Callable[[], int]
) -> None:
    answer = answering(BOMB, content_encoding="gzip", **head)
    assert "a line of more than 8 MiB" in await fails(answer, ModelNonsense, stream=stream)
    assert peak_bytes() < 4 * LINE_LIMIT_BYTES < BOMB_MIB * 2**20


@BOTH
async def test_a_bomb_as_the_body_of_an_error_is_read_to_its_beginning(
    stream: bool, peak_bytes: Callable[[], int]
) -> None:
    answer = answering(BOMB, 500, content_encoding="gzip")
    assert "HTTP 500: xxx" in await fails(answer, ModelUnavailable, stream=stream)
    assert peak_bytes() < LINE_LIMIT_BYTES


@BOTH
async def test_a_line_without_end_is_not_read_on(stream: bool) -> None:
    sent: list[int] = []
    answer = repeating(b"data: " + b"x" * 2**20, times=BOMB_MIB, sent=sent)
    assert "a line of more than 8 MiB" in await fails(answer, ModelNonsense, stream=stream)
    assert sum(sent) < BOMB_MIB * 2**20 / 2


@pytest.mark.parametrize("line", [b"data: %s\n", b"%s\n"])
@pytest.mark.parametrize("chars", [1, 2**20])
async def test_lines_that_make_no_event_are_not_gathered_without_end(
    line: bytes, chars: int, peak_bytes: Callable[[], int]
) -> None:
    answer = repeating((line % (b"x" * chars)) * (2**20 // chars), times=BOMB_MIB)
    assert "more than 8 MiB" in await fails(answer, ModelNonsense)
    assert peak_bytes() < 4 * LINE_LIMIT_BYTES


async def test_a_stream_of_nothing_but_comments_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "ANSWER_LIMIT_BYTES", 4 * 2**20)
    answer = repeating(b": still here\n\n" * 2**16, times=16)
    assert "an answer of more than 4 MiB" in await fails(answer, ModelNonsense)


async def test_json_with_more_values_than_can_be_parsed_at_once_is_not_parsed() -> None:
    answer = answering(b"data: [" + b"[]," * 1_000_000 + b"[]]\n\n")
    assert "more than 100,000 values" in await fails(answer, ModelNonsense)
    assert "more than 100,000 values" in await fails(answering(b"data: " + b'"' * 2_000_000 + b"\n\n"), ModelNonsense)
    assert "not JSON" in await fails(answering(b"data: " + b"[" * 90_000 + b"\n\n"), ModelNonsense)


@BOTH
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_an_endpoint_that_compresses_without_being_asked_is_understood(stream: bool, encoding: str) -> None:
    compress = gzip.compress if encoding == "gzip" else zlib.compress
    body = sse("hello") if stream else completion({"content": "hello"})
    async with serving(answering(compress(body.encode()), content_encoding=encoding)) as endpoint:
        assert (await ask_at(endpoint.base_url, stream=stream)).message.content == "hello"
        assert endpoint.requests[0][1]["accept-encoding"] == "identity"


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip"])
async def test_an_encoding_that_cannot_be_bounded_is_refused(encoding: str) -> None:
    answer = answering(b"x", content_encoding=encoding)
    assert "which was not asked for" in await fails(answer, ModelNonsense)


async def test_what_cannot_be_decompressed_is_said() -> None:
    assert "cannot be decompressed" in await fails(answering(b"nope", content_encoding="gzip"), ModelNonsense)


@BOTH
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_host_does_not_take_the_conversation_along(status: int, stream: bool) -> None:
    async with serving(answering(completion({"content": "stolen"}))) as elsewhere:
        answer = answering("", status, location=f"{elsewhere.base_url}/chat/completions?k=sk-secret")
        async with serving(answer) as endpoint:
            with pytest.raises(
                ModelRefused, match=f"redirects to {elsewhere.base_url.removesuffix('/v1')}, and"
            ) as raised:
                await ask_at(endpoint.base_url, stream=stream)
        assert elsewhere.requests == []
        assert "sk-secret" not in str(raised.value)


async def test_a_redirect_within_the_endpoint_is_followed_with_the_conversation() -> None:
    moved = answering("", 307, location="/v2/chat/completions")
    async with serving(moved, answering(completion({"content": "here"}))) as endpoint:
        assert (await ask_at(endpoint.base_url, stream=False)).message.content == "here"
    (first, *_), (second, *_) = endpoint.requests
    assert (first, second) == ("POST /v1/chat/completions HTTP/1.1", "POST /v2/chat/completions HTTP/1.1")
    assert endpoint.requests[0][2] == endpoint.requests[1][2]


async def test_redirects_without_end_are_ended() -> None:
    async with serving(answering("", 308, location="/v1/chat/completions")) as endpoint:
        with pytest.raises(ModelRefused, match="redirects"):
            await ask_at(endpoint.base_url)
    assert len(endpoint.requests) == 4
