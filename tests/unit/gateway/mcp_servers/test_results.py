"""What a server's tool gave back: text is kept, everything else becomes files, and nothing is taken on trust."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.mcp_servers.results import result_of
from gateway.support import printable_text
from sandbox.engines.local.local_fs import LocalFS


@pytest.fixture
def files(tmp_path: Path) -> LocalFS:
    return LocalFS(tmp_path)


async def test_texts_are_joined_and_structured_content_stands_in_for_none(files: LocalFS) -> None:
    two = {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "structuredContent": {"n": 1}}
    assert (await result_of(two, "c", files)).content == b"a\nb"
    assert (await result_of({"content": [], "structuredContent": {"n": 1}}, "c", files)).content == b'{"n": 1}'


async def test_an_error_is_one_even_without_a_word(files: LocalFS) -> None:
    failed = await result_of({"content": [], "isError": True}, "c", files)
    assert (failed.is_error, failed.outcome, failed.content) == (True, "failed", b"the tool failed without a word")
    assert not (await result_of({"content": [], "isError": "yes"}, "c", files)).is_error


@pytest.mark.parametrize(
    "part, said",
    [
        (
            {"type": "image", "mimeType": "image/png", "data": "!!"},
            "[image, image/png: left out, it is not valid Base64]",
        ),
        (
            {"type": "resource_link", "uri": "file:///\x1b[31mx"},
            "[a resource that the server has: file:///\u241b[31mx]",
        ),
        ({"type": "resource", "resource": {"uri": "u", "text": "t"}}, "[u]\nt"),
        ({"type": "hologram"}, "[content of an unknown kind: hologram]"),
    ],
)
async def test_what_is_no_text_is_named(files: LocalFS, part: dict[str, Any], said: str) -> None:
    assert (await result_of({"content": [part]}, "c", files)).content.decode() == said


async def test_of_a_long_name_no_more_is_looked_at_than_is_shown(
    files: LocalFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(printable_text, "is_unprintable", lambda character: bool(seen.append(character)))
    link = {"type": "resource_link", "name": "a", "uri": "\u200b" * 100_000}
    said = (await result_of({"content": [link]}, "c", files)).content.decode()
    assert said == "[a resource that the server has: a " + "\u200b" * 298 + "...]"
    assert len(seen) == 300


async def test_no_name_of_the_server_chooses_a_path(files: LocalFS, tmp_path: Path) -> None:
    part = {"type": "image", "mimeType": "../../etc/passwd", "data": "aGk="}
    said = (await result_of({"content": [part] * 40}, "../x", files)).content.decode()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 32
    assert all(path.suffix == ".bin" and path.parent.name == "mcp" for path in written)
    assert said.count("left out, it is more than the 32 files") == 8


async def test_an_answer_is_read_in_a_turn_of_the_tenant(files: LocalFS, monkeypatch: pytest.MonkeyPatch) -> None:
    in_turn, coded = False, []

    async def work(function: Callable[..., Any], /, *args: Any) -> Any:
        nonlocal in_turn
        in_turn = True
        try:
            return function(*args)
        finally:
            in_turn = False

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            coded.append((name, in_turn))
            return function(*args, **options)

        return call

    monkeypatch.setattr(json, "dumps", noted("text", json.dumps))
    monkeypatch.setattr(base64, "b64decode", noted("data", base64.b64decode))
    await result_of({"content": [], "structuredContent": {"n": 1}}, "c", files, work)
    await result_of({"content": [{"type": "image", "data": "aGk="}]}, "c", files, work)
    assert coded == [("text", True), ("data", True)]
