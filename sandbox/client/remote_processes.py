"""RemoteProcesses: background processes of a sandbox, through its daemon.

A process belongs to the sandbox, not to a connection: it lives until it ends, is removed or the sandbox goes. The
gateway keeps no state about it, so a restarted gateway knows as much as before.

Methods raise InvalidArgument (or InvalidPath, TooLarge) for invalid requests, NotFound for an unknown id, Conflict for
an id in use or when 64 processes run, Exhausted when the sandbox has no process or memory left, and DaemonLost when the
daemon misbehaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from signal import SIGKILL
from typing import Any, NoReturn, TypeVar

from sandbox.client import arguments, replies
from sandbox.client.channel import Channel
from sandbox.errors import InvalidArgument
from sandbox.file_rules import FileRules
from sandbox.protocols import NO_VARIABLES, PROCESSES_DIRECTORY, Process, ProcessList, ProcessPage, ProcessSpec
from sandbox.v1 import channel_pb2 as pb

PAGE_LIMIT_BYTES = 1024 * 1024
INPUT_LIMIT_BYTES = 1024 * 1024
_WAIT_LIMIT_S = 60.0
# The daemon's limit: 7 days.
TIMEOUT_LIMIT_S = 7 * 24 * 3600.0
_OFFSET_LIMIT = 2**63 - 1
# Beyond the requested wait: the sandbox may be busy, or a process tree has to be killed.
_ANSWER_TIMEOUT_S = 30.0

_Value = TypeVar("_Value")


@dataclass(frozen=True, eq=False)
class RemoteProcesses:
    """Background processes of one sandbox. `env` is added to the environment of each.

    Output beyond the daemon's memory goes to /workspace/.airlock/processes, `file_limit_bytes` a stream at most.
    """

    channel: Channel
    env: Mapping[str, str] = field(default_factory=dict)
    file_limit_bytes: int = 256 * 1024 * 1024
    answer_timeout_s: float = _ANSWER_TIMEOUT_S
    file_rules: pb.FileRules | None = None

    def under(self, rules: FileRules | None, env: Mapping[str, str] = NO_VARIABLES) -> RemoteProcesses:
        """Return these processes with file rules and variables for what they start, as those of a shell."""
        message = None if rules is None else arguments.file_rules_message(rules)
        return replace(self, file_rules=message, env={**env, **self.env})

    async def start(self, spec: ProcessSpec) -> Process:
        """Start a program. A call that is cancelled or lost may have started it; list() shows whether it did."""
        timeout_s = spec.timeout_s
        if timeout_s is not None and not 0 < timeout_s <= TIMEOUT_LIMIT_S:
            raise InvalidArgument(f"timeout_s {timeout_s!r}: more than 0 and {TIMEOUT_LIMIT_S:.0f} at most, or none")
        asked = pb.ProcessStartRequest(
            id=_checked_id(spec.id),
            argv=arguments.checked_argv(spec.argv),
            env=arguments.checked_environment(self.env, spec.env),
            cwd=arguments.checked_path(spec.cwd) if spec.cwd else "",
            terminal=spec.terminal,
            size=_checked_size(spec.rows, spec.columns) if spec.terminal else None,
            stdin=spec.stdin,
            merge_stderr=spec.merge_stderr,
            ring_bytes=spec.ring_bytes,
            output_directory="" if spec.ring_bytes else PROCESSES_DIRECTORY,
            file_limit_bytes=0 if spec.ring_bytes else self.file_limit_bytes,
            timeout_ms=math.ceil(timeout_s * 1000) if timeout_s is not None else 0,
            file_rules=self.file_rules,
        )
        request = arguments.checked_request(pb.Request(process_start=asked))
        return await self._query(request, "process", partial(replies.started_process, asked=asked))

    async def list(self) -> ProcessList:
        """Return all background processes, the oldest first, and how many strays earlier commands left."""
        request = pb.Request(process_list=pb.ProcessListRequest())
        return await self._query(request, "process_list", replies.process_list)

    async def read(
        self, process_id: str, *, stderr: bool = False, offset: int, limit_bytes: int = 256 * 1024, wait_s: float = 0
    ) -> ProcessPage:
        """Return a page of output from a byte offset, 1 MiB at most.

        If there is no byte yet, wait for one, `wait_s` or 60 s at most. To follow a stream, continue after the page
        until its `end`.
        """
        if not 0 <= offset <= _OFFSET_LIMIT or not 1 <= limit_bytes <= PAGE_LIMIT_BYTES:
            raise InvalidArgument(f"offset is 0 or more and below 2^63, limit_bytes is 1 to {PAGE_LIMIT_BYTES:,}")
        wait_ms = _checked_wait(wait_s)
        asked = pb.ProcessReadRequest(
            id=_checked_id(process_id),
            stream=pb.OUTPUT_STREAM_STDERR if stderr else pb.OUTPUT_STREAM_STDOUT,
            offset=offset,
            limit_bytes=limit_bytes,
            wait_ms=wait_ms,
        )
        read = partial(replies.process_page, offset=offset, limit_bytes=limit_bytes)
        return await self._query(pb.Request(process_read=asked), "process_read", read, wait_ms=wait_ms)

    async def write(
        self,
        process_id: str,
        data: bytes,
        *,
        end: bool = False,
        wait_s: float,
        offset: int | None = None,
        request_id: str = "",
    ) -> Process:
        """Write to stdin, 1 MiB at most; `end` closes it, or sends a terminal its end-of-file character.

        A write may be repeated with the same `request_id`, and continues after what it had written. The same holds for
        `offset`, the bytes of stdin that were written before it, if there is no other writer. InputGap when `offset` is
        beyond them.

        Raises InputNotTaken, with the number of bytes written, if the process does not read everything within `wait_s`,
        60 s at most, or stdin is closed. A cancelled call may have written a part.
        """
        if len(data) > INPUT_LIMIT_BYTES:
            raise InvalidArgument(
                f"{len(data):,} bytes of input: {INPUT_LIMIT_BYTES:,} at most at once, so send pieces"
            )
        if offset is not None and not 0 <= offset <= _OFFSET_LIMIT:
            raise InvalidArgument(f"offset {offset}: 0 or more and below 2^63")
        wait_ms = _checked_wait(wait_s)
        asked = pb.ProcessWriteRequest(
            id=_checked_id(process_id), data=data, end=end, wait_ms=wait_ms, offset=offset, request_id=request_id
        )
        read = partial(replies.process, process_id=process_id)
        fail = partial(replies.raise_write_failure, sent_bytes=len(data), offset=offset)
        return await self._query(pb.Request(process_write=asked), "process", read, wait_ms=wait_ms, fail=fail)

    async def resize(self, process_id: str, rows: int, columns: int) -> Process:
        asked = pb.ProcessResizeRequest(id=_checked_id(process_id), size=_checked_size(rows, columns))
        return await self._query_of(process_id, pb.Request(process_resize=asked))

    async def signal(self, process_id: str, number: int, *, tree: bool = False) -> Process | None:
        """Send a signal to a process' group or, with `tree`, to everything it started.

        An empty id with SIGKILL and `tree` kills all strays, and None is returned.
        """
        if not 1 <= number <= replies.SIGNAL_LIMIT:
            raise InvalidArgument(f"signal {number}: 1 to {replies.SIGNAL_LIMIT} are signals")
        if process_id == "" and not (number == SIGKILL and tree):
            raise InvalidArgument("strays, which an empty id stands for, can only be killed: signal 9 with tree")
        asked = pb.ProcessSignalRequest(id=process_id and _checked_id(process_id), signal=number, tree=tree)
        request = pb.Request(process_signal=asked)
        if process_id:
            return await self._query_of(process_id, request)

        def check(reply: pb.Process) -> None:
            if reply.id:
                replies.process(reply, "")

        return await self._query(request, "process", check)

    async def wait(self, process_id: str, *, wait_s: float) -> Process:
        """Wait for the end; return the process as it is after `wait_s`, 60 s at most."""
        wait_ms = _checked_wait(wait_s)
        asked = pb.ProcessWaitRequest(id=_checked_id(process_id), wait_ms=wait_ms)
        return await self._query_of(process_id, pb.Request(process_wait=asked), wait_ms=wait_ms)

    async def remove(self, process_id: str) -> Process:
        """Kill everything a process started and forget it; return its last state. Its files stay."""
        asked = pb.ProcessRemoveRequest(id=_checked_id(process_id))
        return await self._query_of(process_id, pb.Request(process_remove=asked))

    async def _query_of(self, process_id: str, request: pb.Request, *, wait_ms: int = 0) -> Process:
        read = partial(replies.process, process_id=process_id)
        return await self._query(request, "process", read, wait_ms=wait_ms)

    async def _query(
        self,
        request: pb.Request,
        member: str,
        read: Callable[[Any], _Value],
        *,
        wait_ms: int = 0,
        fail: Callable[[pb.Failure], NoReturn] = replies.raise_failure,
    ) -> _Value:
        timeout_s = wait_ms / 1000 + self.answer_timeout_s
        return await self.channel.query(request, member, read, timeout_s=timeout_s, fail=fail)


def _checked_id(process_id: str) -> str:
    if not replies.PROCESS_ID.fullmatch(process_id):
        raise InvalidArgument(f"process id {process_id[:100]!r}: 1 to 64 of A-Z a-z 0-9 _ - are allowed")
    return process_id


def _checked_size(rows: int, columns: int) -> pb.WindowSize:
    limit = replies.SIDE_LIMIT
    if not (1 <= rows <= limit and 1 <= columns <= limit):
        raise InvalidArgument(f"a terminal has 1 to {limit:,} rows and columns, not {rows} and {columns}")
    return pb.WindowSize(rows=rows, columns=columns)


def _checked_wait(wait_s: float) -> int:
    """Return milliseconds, 60,000 at most: the caller has to be ready to ask again anyway."""
    if not wait_s >= 0:  # NaN too
        raise InvalidArgument(f"wait_s {wait_s!r}: 0 or more")
    return math.ceil(min(wait_s, _WAIT_LIMIT_S) * 1000)
