"""Turns the answer of a server's tool into the result of a tool call: text stays text, all else becomes files."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.messages import ToolResult
from agent.tools.eviction import PRIVATE_DIRECTORY, file_name
from gateway.support.heavy_work import Work, at_once
from gateway.support.printable_text import printable
from sandbox.errors import SandboxError
from sandbox.protocols import FileSystem

DIRECTORY = f"{PRIVATE_DIRECTORY}/mcp"
_FILES_LIMIT = 32
_SHOWN_CHARS = 300
_MEDIA_TYPE = re.compile(r"[a-z]+/[a-z0-9][a-z0-9.+-]{0,60}")


@dataclass
class _Parts:
    """The texts of a result, and the files that hold the rest, by path."""

    call_id: str
    texts: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    def add(self, part: Mapping[str, Any]) -> None:
        kind = part.get("type")
        if kind == "text":
            self.texts.append(str(part.get("text", "")))
        elif kind in ("image", "audio"):
            self._keep(str(kind), part.get("data"), part.get("mimeType"))
        elif kind == "resource_link":
            named = " ".join(str(part[name]) for name in ("name", "uri", "mimeType") if part.get(name))
            self.texts.append(f"[a resource that the server has: {_short(named)}]")
        elif kind == "resource" and isinstance(resource := part.get("resource"), Mapping):
            if "text" in resource:
                self.texts.append(f"[{_short(resource.get('uri', ''))}]\n{resource['text']}")
            else:
                self._keep(
                    f"resource {_short(resource.get('uri', ''))}", resource.get("blob"), resource.get("mimeType")
                )
        else:
            self.texts.append(f"[content of an unknown kind: {_short(kind)}]")

    def _keep(self, what: str, coded: Any, media_type: Any) -> None:
        media_type = media_type if isinstance(media_type, str) and _MEDIA_TYPE.fullmatch(media_type) else ""
        shown = f"{what}, {media_type}" if media_type else what
        if len(self.files) == _FILES_LIMIT:
            self.texts.append(f"[{shown}: left out, it is more than the {_FILES_LIMIT} files that a result may have]")
            return
        try:
            data = base64.b64decode(str(coded), validate=True)
        except (binascii.Error, ValueError):
            self.texts.append(f"[{shown}: left out, it is not valid Base64]")
            return
        end = mimetypes.guess_extension(media_type) or ".bin"
        path = f"{DIRECTORY}/{file_name(self.call_id)}-{len(self.files) + 1}{end}"
        self.files[path] = data
        self.texts.append(f"[{shown}, {len(data):,} bytes: {path}]")


async def result_of(answer: Mapping[str, Any], call_id: str, files: FileSystem, work: Work = at_once) -> ToolResult:
    """Return the result of an answer, as JSON; what is not text is written to files of the thread.

    `work` reads the answer, in a turn of the tenant: it may be megabytes, and have a hundred thousand values.
    """
    parts = await work(_parts_of, answer, call_id)
    for path, data in parts.files.items():
        try:
            await files.write(path, data)
        except (SandboxError, OSError) as error:
            parts.texts.append(f"[{path} could not be written: {_short(error)}]")
    is_error = answer.get("isError") is True
    text = "\n".join(parts.texts) or ("the tool failed without a word" if is_error else "")
    outcome = "failed" if is_error else "completed"
    return ToolResult(text.encode("utf-8", "replace"), outcome=outcome, is_error=is_error)


def _parts_of(answer: Mapping[str, Any], call_id: str) -> _Parts:
    parts = _Parts(call_id)
    content = answer.get("content")
    for part in content if isinstance(content, Sequence) else ():
        if isinstance(part, Mapping):
            parts.add(part)
    structured = answer.get("structuredContent")
    if structured is not None and not parts.texts:
        parts.texts.append(json.dumps(structured, ensure_ascii=False))
    return parts


def _short(text: object) -> str:
    plain = str(text)
    shown = printable(plain, _SHOWN_CHARS).replace("\n", " ")
    return shown if len(plain) <= _SHOWN_CHARS else f"{shown}..."
