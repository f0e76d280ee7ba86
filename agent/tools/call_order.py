"""The order of a step's calls: calls that share a file run one after the other if one of them writes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.messages import ToolCall, ToolSpec


def predecessors(specs: Iterable[ToolSpec], calls: Sequence[ToolCall | None]) -> list[list[int]]:
    """Return for each call the earlier ones that it must wait for; a call that is None does not run.

    A call waits for one on the same path if one of the two writes, and a call that may write anywhere waits for each
    that writes. Two that may write anywhere do not wait for each other.
    """
    specs = tuple(specs)
    writers = {spec.name for spec in specs if spec.writes}
    anywhere = {spec.name for spec in specs if spec.writes_anywhere}

    def must_wait(call: ToolCall, other: ToolCall) -> bool:
        writes, other_writes = call.name in writers, other.name in writers
        return (
            (_path(call) is not None and _path(call) == _path(other) and (writes or other_writes))
            or (writes and other.name in anywhere)
            or (other_writes and call.name in anywhere)
        )

    return [
        [
            before
            for before, other in enumerate(calls[:index])
            if call is not None and other is not None and must_wait(call, other)
        ]
        for index, call in enumerate(calls)
    ]


def _path(call: ToolCall) -> str | None:
    path = call.arguments.get("path") if call.arguments is not None else None
    return path if isinstance(path, str) else None
