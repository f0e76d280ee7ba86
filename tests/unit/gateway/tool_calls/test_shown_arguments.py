"""What the journal keeps of large arguments: as much is looked at as is kept, and a secret at the cut is not shown."""

from __future__ import annotations

import json

import pytest
from pydantic import JsonValue

from agent.messages import ToolCall
from agent.tool_call import JudgedCall
from gateway.policy.document import RedactionSection
from gateway.redaction import Redactor
from gateway.redaction.redactor import NO_SECRETS
from gateway.tool_calls.shown_arguments import shown_arguments
from tests.unit.gateway.redaction.secrets import B64

TOKEN = "gh" + "p_" + B64[:36]
KEPT_CHARS = 16_384
REDACTOR = Redactor(RedactionSection())


def judged(arguments: dict[str, JsonValue]) -> JudgedCall:
    return JudgedCall.of(ToolCall(id="c", name="write_file", arguments=arguments))


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    finds = Redactor.finds

    def counted(self: Redactor, data: bytes) -> bool:
        sizes.append(len(data))
        return finds(self, data)

    monkeypatch.setattr(Redactor, "finds", counted)
    return sizes


@pytest.mark.parametrize("value", ["word " * 400_000, ["word"] * 400_000, {f"{n:06}": n for n in range(200_000)}])
async def test_as_much_is_looked_at_as_is_kept_and_a_margin(looked_at: list[int], value: JsonValue) -> None:
    call = judged({"content": value, "path": f"/workspace/{TOKEN}"})
    assert await shown_arguments(REDACTOR, call) == call.canonical.decode()[:KEPT_CHARS]
    assert sum(looked_at) <= 2 * (KEPT_CHARS + REDACTOR.margin_bytes)
    raw = JudgedCall.of(ToolCall(id="c", name="write_file", arguments=None, raw_arguments="{" * 2_000_000))
    looked_at.clear()
    assert await shown_arguments(REDACTOR, raw) == "{" * KEPT_CHARS
    assert sum(looked_at) <= KEPT_CHARS + REDACTOR.margin_bytes


@pytest.mark.parametrize("shift", [10, 20, 39])
async def test_a_secret_is_masked_up_to_the_cut(shift: int) -> None:
    before = len(json.dumps({"content": ""})) - 2
    content = "-" * (KEPT_CHARS - before - shift - 1) + " " + TOKEN + " word" * 100_000
    shown = await shown_arguments(REDACTOR, judged({"path": "/workspace/a", "content": content}))
    assert len(shown) == KEPT_CHARS
    assert shown.endswith(" " + REDACTOR.text(TOKEN)[:shift])


async def test_keys_are_taken_in_the_order_in_which_they_are_kept() -> None:
    shown = await shown_arguments(REDACTOR, judged({"path": "x" * 100_000, "a": TOKEN, "b": 1}))
    assert shown.startswith('{"a": "ghp_[redacted github-token]')
    keys: dict[str, JsonValue] = {"k" * n: n for n in range(1, 400)}
    call = judged(keys)
    assert (await shown_arguments(NO_SECRETS, call)) == call.canonical.decode()[:KEPT_CHARS]


async def test_small_arguments_are_kept_whole() -> None:
    call = judged({"path": "/workspace/a", "content": "words"})
    assert await shown_arguments(REDACTOR, call) == call.canonical.decode()
    secret = judged({"path": "/workspace/a", "content": TOKEN})
    assert json.loads(await shown_arguments(REDACTOR, secret))["path"] == "/workspace/a"
