"""Names of tools as endpoints accept them: at most 64 of A-Z a-z 0-9 _ -.

A tool `server/name` is sent as `server__name`. Where that could stand for two tools, or does not fit, its end is a
digest of the name. A request's own tools say what a name in the answer means.
"""

import hashlib
import re
from collections.abc import Iterable

from agent.messages import Message, ToolSpec

_LIMIT_CHARS = 64
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")
_OF_A_SERVER = re.compile(r"[a-z0-9]+(?:[_-][a-z0-9]+)*/[A-Za-z0-9_./-]+")
# What stands for one tool alone: no second place could be where the server's name ends.
_PLAIN = re.compile(r"(?!.*__)[a-zA-Z0-9-][a-zA-Z0-9_-]*(?<!_)/(?!.*__)[a-zA-Z0-9-][a-zA-Z0-9_-]*")


def wire_name(name: str) -> str:
    """Return a tool's name as endpoints accept it; the same name is the same text in every request."""
    if not _OF_A_SERVER.fullmatch(name):  # an own tool, or what a model made up
        return _UNFIT.sub("_", name)[:_LIMIT_CHARS] or "_"
    plain = _UNFIT.sub("_", name.replace("/", "__", 1))
    if len(plain) <= _LIMIT_CHARS and _PLAIN.fullmatch(name):
        return plain
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{plain[: _LIMIT_CHARS - 9]}_{digest}"


def with_own_names(message: Message, tools: Iterable[ToolSpec]) -> Message:
    """Return an answer in which calls have the tools' own names; a name of none of them stays as it is."""
    renamed = {wire: tool.name for tool in tools if (wire := wire_name(tool.name)) != tool.name}
    if not renamed or all(call.name not in renamed for call in message.tool_calls):
        return message
    calls = tuple(call.with_(name=renamed.get(call.name, call.name)) for call in message.tool_calls)
    return message.with_(tool_calls=calls)
