"""view_file, and which files a request shows the model."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from agent import Agent, AgentState
from agent.capabilities.attachments import ShownAttachments, attached_file, attachments
from agent.capabilities.filesystem import filesystem
from agent.errors import ContextLengthExceeded, ModelRefused
from agent.hooks.hook import InferenceRequest
from agent.messages import Attachment, Message, ToolResult
from agent.models.chat_request import request_body
from agent.models.model import Model
from agent.models.scripted_model import Call, ScriptedModel, Turn
from agent.state import ModelResponse
from tests.made_images import PDF, png, png_header
from tests.unit.agent.fakes import Events, FakeEntry, FakeFiles, allowing, says

PATH = "/workspace/plot.png"


async def _attached(files: FakeFiles, path: str = PATH, **limits: Any) -> Attachment:
    return (await attached_file(files, path, **limits)).attachment


async def _viewed(files: FakeFiles, path: str, **limits: Any) -> ToolResult:
    tool = attachments(files, **limits).tools[0]
    return await tool.run(tool.arguments(path=path), None)  # type: ignore[arg-type]


async def _asked(files: FakeFiles, *messages: Message, limit: int = 8, limit_bytes: int = 2**24) -> InferenceRequest:
    """Return the request that the model gets."""
    got: list[InferenceRequest] = []

    async def next_(request: InferenceRequest) -> ModelResponse:
        got.append(request)
        return says("seen")

    hook = ShownAttachments(files, limit, limit_bytes)
    await hook.around_inference(InferenceRequest("", messages, ()), next_)
    return got[0]


def _user(text: str, *attached: Attachment) -> Message:
    return Message(role="user", content=text, attachments=attached)


async def test_a_viewed_file_is_a_reference_whatever_its_name_says() -> None:
    files = FakeFiles({"/workspace/plot.txt": png(3, 2)})
    result = await _viewed(files, "plot.txt")
    size_bytes = len(png(3, 2))
    assert result.text() == f"[/workspace/plot.txt: PNG image, 3 x 2 pixels, {size_bytes:,} bytes]"
    assert result.attachments == (
        Attachment(
            path="/workspace/plot.txt",
            media_type="image/png",
            size_bytes=size_bytes,
            sha256=hashlib.sha256(png(3, 2)).hexdigest(),
        ),
    )


@pytest.mark.parametrize(
    "data, said",
    [
        (b"\x89PNG\r\n", "/workspace/f.png is not a PNG"),
        (png_header(20_000, 20_000), "20000 x 20000 pixels"),
        (b"plain text", "not a PNG, JPEG, GIF, WebP or PDF, by its first bytes"),
        (PDF + bytes(300), "larger than the 300 bytes"),
    ],
)
async def test_a_file_that_cannot_be_shown_is_an_error_that_says_why(data: bytes, said: str) -> None:
    result = await _viewed(FakeFiles({"/workspace/f.png": data}), "f.png", file_limit_bytes=300)
    assert result.is_error
    assert said in result.text()
    assert result.attachments == ()


async def test_a_file_that_grows_while_it_is_read_is_too_large() -> None:
    class Growing(FakeFiles):
        async def stat(self, path: str) -> FakeEntry:
            return FakeEntry(path, "file", 10)

    with pytest.raises(ValueError, match="larger than the 64 bytes"):
        await attached_file(Growing({PATH: png(600, 400)}), PATH, 64)


@pytest.mark.parametrize("kind", ["directory", "symlink", "other"])
async def test_only_files_can_be_shown(kind: Any) -> None:
    class Odd(FakeFiles):
        async def stat(self, path: str) -> FakeEntry:
            return FakeEntry(path, kind)

    with pytest.raises(ValueError, match=f"is not a file .type: {kind}."):
        await attached_file(Odd(), PATH)


async def test_a_request_has_the_bytes_of_what_it_shows() -> None:
    files = FakeFiles({PATH: png(), "/workspace/a.pdf": PDF})
    image, document = await _attached(files), await _attached(files, "/workspace/a.pdf")
    sent = await _asked(files, _user("look", image, document))
    assert sent.messages == (_user("look", image, document),)
    assert sent.contents == {image.sha256: png(), document.sha256: PDF}


async def test_a_request_without_attachments_stays_as_it_is() -> None:
    sent = await _asked(FakeFiles(), _user("look"))
    assert (sent.messages, sent.contents) == ((_user("look"),), {})


async def test_a_file_that_has_changed_or_is_gone_is_a_line_of_text() -> None:
    files = FakeFiles({PATH: png(), "/workspace/b.png": png(5, 5), "/workspace/c.png": png(6, 6)})
    changed, gone, kept = [await _attached(files, path) for path in files.files]
    files.files[PATH] = png(shade=9)  # of the same size
    del files.files["/workspace/b.png"]
    sent = await _asked(files, _user("look", changed, gone, kept))
    assert sent.messages[0].attachments == (kept,)
    assert sent.contents == {kept.sha256: png(6, 6)}
    first, second, third = sent.messages[0].content.splitlines()
    assert first == "look"
    assert second == "[not shown: the image /workspace/plot.png; it has changed since; view_file shows it as it is now]"
    assert third == "[not shown: the image /workspace/b.png; it is no longer there]"


async def test_a_file_that_is_longer_now_is_not_read_to_its_end() -> None:
    class Counting(FakeFiles):
        longest = 0

        async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> Any:
            self.longest = max(self.longest, length or 2**60)
            yield self._of(path)[offset:][:length]

    files = Counting({PATH: png()})
    image = await _attached(files)
    files.files[PATH] = png() + bytes(2**20)
    files.longest = 0
    sent = await _asked(files, _user("look", image))
    assert files.longest == image.size_bytes + 1
    assert "changed since" in sent.messages[0].content


async def test_a_failing_file_system_costs_the_file_and_not_the_request() -> None:
    class Failing(FakeFiles):
        async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> Any:
            raise RuntimeError("the sandbox\nis lost")
            yield b""

    image = await _attached(FakeFiles({PATH: png()}))
    sent = await _asked(Failing(), _user("look", image))
    assert sent.messages[0].content.endswith("it could not be read: the sandbox is lost]")
    assert sent.contents == {}


async def test_only_the_newest_files_are_shown() -> None:
    files = FakeFiles({f"/workspace/{n}.png": png(n, 1) for n in range(1, 5)})
    images = [await _attached(files, path) for path in files.files]
    sent = await _asked(files, _user("a", images[0], images[1]), _user("b", images[2]), _user("c", images[3]), limit=3)
    assert [message.attachments for message in sent.messages] == [(images[1],), (images[2],), (images[3],)]
    assert sent.messages[0].content.startswith(
        "a\n[not shown: the image /workspace/1.png; a request shows the newest 3 "
    )
    assert len(sent.contents) == 3


async def test_what_is_shown_has_no_gaps_where_the_bytes_are_used_up() -> None:
    files = FakeFiles({"/workspace/small.png": png(), "/workspace/large.pdf": PDF + bytes(2000), PATH: png(4, 4)})
    small, large, newest = [await _attached(files, path) for path in files.files]
    sent = await _asked(files, _user("", small), _user("", large), _user("", newest), limit_bytes=1000)
    assert [message.attachments for message in sent.messages] == [(), (), (newest,)]
    assert "[not shown: the PDF /workspace/large.pdf;" in sent.messages[1].content


async def test_the_same_bytes_are_read_once_and_count_each_time_they_are_shown() -> None:
    files = FakeFiles({PATH: png()})
    image = await _attached(files)
    sent = await _asked(files, *(_user(str(n), image) for n in range(3)), limit=2)
    assert [bool(message.attachments) for message in sent.messages] == [False, True, True]


async def test_an_error_about_images_names_the_setting_and_others_do_not() -> None:
    files = FakeFiles({PATH: png()})
    image = await _attached(files)

    async def said(error: Exception, *messages: Message) -> str:
        async def next_(_: InferenceRequest) -> ModelResponse:
            raise error

        with pytest.raises(type(error)) as raised:
            await ShownAttachments(files, 8, 2**24).around_inference(InferenceRequest("", messages, ()), next_)
        assert raised.value is error
        return str(error)

    about = "http://m answered HTTP 400: Invalid content type. image_url is only supported by certain models"
    assert "remove `attachments` from the agent's capabilities" in await said(ModelRefused(about), _user("a", image))
    assert await said(ModelRefused(about), _user("a")) == about
    key = "http://m answered HTTP 401: no such key; check the API key"
    assert await said(ModelRefused(key), _user("a", image)) == key
    long = "http://m answered HTTP 400: maximum context length"
    assert await said(ContextLengthExceeded(long), _user("a", image)) == long


@pytest.mark.parametrize(
    "limits", [{"limit": 0}, {"file_limit_bytes": 0}, {"limit_bytes": 10}, {"file_limit_bytes": 2**30}]
)
def test_limits_that_show_nothing_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="attachments: limit is"):
        attachments(FakeFiles(), **limits)


def _agent(model: Model, files: FakeFiles) -> Agent[Any]:
    return Agent(model=model, capabilities=(filesystem(files), attachments(files)), hooks=(allowing(),))


def _images(body: dict[str, Any]) -> list[bytes]:
    parts = [part for said in body["messages"] if isinstance(said["content"], list) for part in said["content"]]
    uris = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [base64.b64decode(uri.removeprefix("data:image/png;base64,")) for uri in uris]


async def test_a_run_shows_the_model_what_it_viewed_and_a_later_run_what_was_asked_with() -> None:
    files = FakeFiles({PATH: png(), "/workspace/other.png": png(7, 7)})
    model = ScriptedModel(
        [
            Turn(calls=[Call("view_file", {"path": "plot.png"})]),
            Turn(expect=["PNG image, 2 x 1 pixels", f"[view_file: the image {PATH}]"], say="a dot"),
            Turn(expect=["and this?"], say="a square"),
        ]
    )
    events = Events()
    final = await _agent(model, files).run(AgentState.start("what is in plot.png?"), events)
    assert final.answer == "a dot"
    assert [_images(body) for body in model.requests] == [[], [png()]]
    (finished,) = events.of("tool_call_finished")
    assert finished["attachments"] == [(await _attached(files)).model_dump()]
    stored = AgentState.model_validate_json(final.model_dump_json())
    assert stored.messages == final.messages
    other = await _attached(files, "/workspace/other.png")
    again = await _agent(model, files).run(stored.next_run("r2", "and this?", (other,)))
    assert again.answer == "a square"
    assert _images(model.requests[-1]) == [png(), png(7, 7)]


async def test_an_agent_without_the_capability_shows_nothing_and_says_so() -> None:
    image = await _attached(FakeFiles({PATH: png()}))
    state = AgentState.start("look", attachments=(image,))
    body = request_body("m", InferenceRequest("", state.messages, ()))
    assert body["messages"][0]["content"] == f"look\n[not shown: the image {PATH}]"
