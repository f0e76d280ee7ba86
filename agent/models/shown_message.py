"""A message as a model is shown it, whatever the wire: its text, and the files that are attached to it.

The bytes of a file come with the request (InferenceRequest.contents). A file without them is a line of text.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.messages import Attachment, Message

_REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class ShownFile:
    """An attached image or PDF with its bytes."""

    attachment: Attachment
    data: bytes

    @property
    def is_image(self) -> bool:
        return self.attachment.media_type.startswith("image/")

    @property
    def name(self) -> str:
        """The name without its directory."""
        return self.attachment.path.rpartition("/")[2]

    def data_uri(self) -> str:
        return f"data:{self.attachment.media_type};base64,{base64.b64encode(self.data).decode()}"


@dataclass(frozen=True)
class ShownMessage:
    """A message whose text has a line for each file that is not shown; with files, its texts and files are `parts`."""

    message: Message
    parts: Sequence[str | ShownFile] = ()


def shown_messages(messages: Iterable[Message], contents: Mapping[str, bytes]) -> Iterator[ShownMessage]:
    """Yield messages with the bytes of their attachments, which `contents` has by their SHA-256.

    What tools show follows all results of the step as one message of the user: few endpoints take more than text as a
    result, and none takes another role between calls and their results.
    """
    called: dict[str, str] = {}
    by_tools: list[str | ShownFile] = []
    for message in messages:
        if message.role != "tool" and by_tools:
            yield _from_tools(by_tools)
            by_tools = []
        called = {call.id: call.name for call in message.tool_calls} or called
        missing = {one: "" for one in message.attachments if one.sha256 not in contents}
        said = left_out(message, missing)
        files = [ShownFile(one, contents[one.sha256]) for one in said.attachments]
        if message.role == "tool":
            tool = called.get(message.tool_call_id or "", "a tool")
            for file in files:
                by_tools += [f"[{tool}: {described(file.attachment)}]", file]
            yield ShownMessage(said)
        else:
            yield ShownMessage(said, [*filter(None, [said.content]), *files] if files else ())
    if by_tools:
        yield _from_tools(by_tools)


def _from_tools(parts: Sequence[str | ShownFile]) -> ShownMessage:
    return ShownMessage(Message(role="user", content="\n".join(one for one in parts if isinstance(one, str))), parts)


def described(attachment: Attachment) -> str:
    """Return which file it is, for the model, on one line: its name is not the words of the user."""
    kind = "image" if attachment.media_type.startswith("image/") else "PDF"
    return f"the {kind} {''.join(char if char.isprintable() else _REPLACEMENT for char in attachment.path)}"


def left_out(message: Message, reasons: Mapping[Attachment, str]) -> Message:
    """Return a message without these attachments; a line of its text says which, and why if there is a reason."""
    if not reasons:
        return message
    lines = [f"[not shown: {described(one)}{why and f'; {why}'}]" for one, why in reasons.items()]
    content = "\n".join(filter(None, (message.content, *lines)))
    kept = tuple(one for one in message.attachments if one not in reasons)
    return message.with_(content=content, attachments=kept)
