"""What a request shows is judged for each request, before a byte of it is read."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence

from agent.capabilities.attachments import attachments
from agent.events import discard
from agent.hooks.engine import HookEngine
from agent.hooks.hook import InferenceRequest
from agent.messages import Attachment, Message
from agent.state import ModelResponse
from gateway.policy.decision import Facts
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.judge import Policy
from gateway.tool_calls.shown_files_hook import ShownFilesHook
from tests.made_images import png
from tests.unit.agent.fakes import FakeFiles, says


class Read(FakeFiles):
    """Files that note which of them were opened."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(dict.fromkeys(paths, png()))
        self.opened: list[str] = []

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        self.opened.append(path)
        yield self._of(path)[offset:][:length]


def _policy(**effects: str) -> Policy:
    rules = [
        Rule.model_validate(
            {
                "id": name,
                "tools": ("read_file",),
                "paths": (f"/workspace/{name}/**",),
                "effect": effect,
                "reason": f"{name} is a test",
            }
        )
        for name, effect in effects.items()
    ]
    return Policy(PolicyDocument(version=1, rules=tuple(rules)))


def _message(*paths: str) -> Message:
    digest = hashlib.sha256(png()).hexdigest()
    return Message(
        role="user",
        content="look",
        attachments=tuple(
            Attachment(path=path, media_type="image/png", size_bytes=len(png()), sha256=digest) for path in paths
        ),
    )


async def _sent(policy: Policy, files: Read, *messages: Message, limit: int = 8) -> InferenceRequest:
    """Return the request that the model gets of an agent with the capability."""
    got: list[InferenceRequest] = []

    async def center(request: InferenceRequest) -> ModelResponse:
        got.append(request)
        return says("seen")

    hooks = [*attachments(files, limit=limit).hooks, ShownFilesHook(lambda: policy, Facts(tenant="acme"))]
    await HookEngine(hooks).around_inference(center, discard)(InferenceRequest("", messages, ()))
    return got[0]


async def test_what_the_policy_denies_now_is_neither_opened_nor_shown() -> None:
    files = Read(["/workspace/open/a.png", "/workspace/secret/a.png"])
    sent = await _sent(_policy(open="allow", secret="deny"), files, _message(*files.files))
    assert files.opened == ["/workspace/open/a.png"]
    (said,) = sent.messages
    assert [one.path for one in said.attachments] == ["/workspace/open/a.png"]
    assert said.content == ("look\n[not shown: the image /workspace/secret/a.png; secret is a test (rule secret)]")


async def test_what_no_rule_allows_any_more_is_denied() -> None:
    files = Read(["/workspace/open/a.png"])
    sent = await _sent(_policy(other="allow"), files, _message(*files.files))
    assert files.opened == []
    assert "default-deny" in sent.messages[0].content
    assert sent.contents == {}


async def test_what_was_asked_about_when_it_was_attached_is_not_asked_again() -> None:
    files = Read(["/workspace/plans/a.png"])
    sent = await _sent(_policy(plans="ask"), files, _message(*files.files))
    assert len(sent.contents) == 1


async def test_a_request_without_attachments_is_not_looked_at() -> None:
    message = Message(role="user", content="look")
    assert (await _sent(_policy(), Read([]), message)).messages == (message,)


async def test_a_thread_with_very_many_files_costs_no_more_than_a_request_can_show() -> None:
    files = Read([f"/workspace/open/{n}.png" for n in range(100)])
    messages = [_message(path) for path in files.files]
    sent = await _sent(_policy(open="allow"), files, *messages, limit=64)
    assert [bool(message.attachments) for message in sent.messages] == [False] * 36 + [True] * 64
    assert "at most 64 files" in sent.messages[0].content


def test_no_agent_can_do_without_it_and_subagents_inherit_it() -> None:
    hook = ShownFilesHook(lambda: _policy(), Facts())
    assert hook.mandatory
    assert hook.priority > max(one.priority for one in attachments(Read([])).hooks)
