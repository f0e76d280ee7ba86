"""A message as a model is shown it, whatever the wire: its text, and the files that are attached to it.

The bytes of a file come with the request (InferenceRequest.contents). A file without them is a line of text.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from agent.messages import Attachment, Message


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
    """The text of a message, with a line for each file that is not shown, and the files that are."""

    text: str
    files: tuple[ShownFile, ...] = ()


def shown_message(message: Message, contents: Mapping[str, bytes]) -> ShownMessage:
    """Return a message with the bytes of its attachments, which `contents` has by their SHA-256."""
    if not message.attachments:
        return ShownMessage(message.content)
    there = [one for one in message.attachments if one.sha256 in contents]
    missing = {one: "" for one in message.attachments if one.sha256 not in contents}
    return ShownMessage(
        left_out(message, missing).content, tuple(ShownFile(one, contents[one.sha256]) for one in there)
    )


def described(attachment: Attachment) -> str:
    """Return which file it is, for the model."""
    kind = "image" if attachment.media_type.startswith("image/") else "PDF"
    return f"the {kind} {attachment.path}"


def left_out(message: Message, reasons: Mapping[Attachment, str]) -> Message:
    """Return a message without these attachments; a line of its text says which, and why if there is a reason."""
    if not reasons:
        return message
    lines = [f"[not shown: {described(one)}{why and f'; {why}'}]" for one, why in reasons.items()]
    content = "\n".join(filter(None, (message.content, *lines)))
    kept = tuple(one for one in message.attachments if one not in reasons)
    return message.with_(content=content, attachments=kept)
