"""The gateway's end against a daemon that answers anything: a call ends in a value within bounds or in its own error.

Each input is one call and the bytes that a daemon sends before it hangs up, over a real socket pair.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from sandbox.client.channel import Channel, Connection
from sandbox.client.presence import Presence
from sandbox.client.remote_fs import RemoteFS
from sandbox.client.remote_processes import RemoteProcesses
from sandbox.client.remote_shell import RemoteShell
from sandbox.client.unix_address import UnixAddress
from sandbox.errors import DaemonLost, SandboxError
from sandbox.protocols import EntriesPage, GrepPage, LinesPage, ProcessSpec, ProgramSpec
from sandbox.v1 import channel_pb2 as pb
from tests.fuzz.messages import Messages, damaged

_LIMIT = 3
_LIMIT_BYTES = 64
_PATH = "/workspace/a"
_PROCESS = "p1"
_OUTPUT_LIMIT_BYTES = 4096
# Far above what any of the calls below may hold, far below what a hostile daemon would like it to.
_HELD_LIMIT_CHARS = 4 * 1024 * 1024


class HostileChannel(Channel):
    """A channel whose daemon has said everything already."""

    def __init__(self, said: bytes) -> None:
        super().__init__(UnixAddress(Path("/nowhere")))
        self._said = said
        self._daemons: list[socket.socket] = []

    async def _open(self) -> Connection:
        ours, daemon = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (ours, daemon):
            end.setblocking(False)
        daemon.send(self._said)
        daemon.shutdown(socket.SHUT_WR)
        self._daemons.append(daemon)
        return Connection(ours)

    def close(self) -> None:
        super().close()
        for daemon in self._daemons:
            daemon.close()


async def _read(channel: Channel) -> bytes:
    data = b"".join([piece async for piece in RemoteFS(channel).read(_PATH, offset=1, length=_LIMIT_BYTES)])
    assert len(data) <= _LIMIT_BYTES
    return data


async def _execute(channel: Channel, *, streamed: bool) -> object:
    heard: list[bytes] = []
    result = await RemoteShell(channel, grace_s=1).execute(
        "true",
        timeout_s=1,
        call_id="c1",
        limit_chars=256,
        head_chars=16,
        tail_chars=16,
        on_output=(lambda _, data: heard.append(data)) if streamed else None,
    )
    return result, heard


async def _run_program(channel: Channel) -> object:
    heard: list[bytes] = []

    async def take(_stream: str, data: bytes) -> None:
        heard.append(data)

    async def stdin() -> Any:
        yield b"input"

    result = await RemoteShell(channel, grace_s=1).run_program(
        ProgramSpec([b"true"], cwd="/workspace", timeout_s=1, output_limit_bytes=_OUTPUT_LIMIT_BYTES),
        stdin=stdin(),
        on_output=take,
    )
    assert sum(map(len, heard)) <= _OUTPUT_LIMIT_BYTES
    return result


async def _start(channel: Channel) -> object:
    return await RemoteProcesses(channel).start(ProcessSpec(_PROCESS, [b"true"], cwd="/workspace", stdin=True))


async def _attach(channel: Channel) -> object:
    presence = await Presence.attach(channel, "gateway")
    try:
        presence.begin_use()
        return await presence.retire(), presence.others
    finally:
        presence.close()


CALLS: Mapping[str, Callable[[Channel], Awaitable[object]]] = {
    "hello": lambda channel: channel.hello(timeout_s=1),
    "stat": lambda channel: RemoteFS(channel).stat(_PATH),
    "ls": lambda channel: RemoteFS(channel).ls(_PATH, limit=_LIMIT),
    "read": _read,
    "read_lines": lambda channel: RemoteFS(channel).read_lines(_PATH, limit=_LIMIT, limit_bytes=_LIMIT_BYTES),
    "write": lambda channel: RemoteFS(channel).write(_PATH, b"data"),
    "edit": lambda channel: RemoteFS(channel).edit(_PATH, b"a", b"b"),
    "glob": lambda channel: RemoteFS(channel).glob("/workspace", "*", limit=_LIMIT),
    "grep": lambda channel: RemoteFS(channel).grep("/workspace", "a", limit=_LIMIT, timeout_s=1),
    "mkdir": lambda channel: RemoteFS(channel).mkdir(_PATH),
    "remove": lambda channel: RemoteFS(channel).remove(_PATH),
    "rename": lambda channel: RemoteFS(channel).rename(_PATH, "/workspace/b"),
    "exec": lambda channel: _execute(channel, streamed=False),
    "exec_streamed": lambda channel: _execute(channel, streamed=True),
    "run_program": _run_program,
    "attach": _attach,
    "process_start": _start,
    "process_list": lambda channel: RemoteProcesses(channel).list(),
    "process_read": lambda channel: RemoteProcesses(channel).read(_PROCESS, offset=7, limit_bytes=_LIMIT_BYTES),
    "process_write": lambda channel: RemoteProcesses(channel).write(_PROCESS, b"data", wait_s=0),
    "process_resize": lambda channel: RemoteProcesses(channel).resize(_PROCESS, 24, 80),
    "process_signal": lambda channel: RemoteProcesses(channel).signal(_PROCESS, 15),
    "process_wait": lambda channel: RemoteProcesses(channel).wait(_PROCESS, wait_s=0),
    "process_remove": lambda channel: RemoteProcesses(channel).remove(_PROCESS),
}
# The final member an honest daemon answers with; most inputs get past the first check with it.
_MEMBERS = {
    "ls": "entries",
    "glob": "entries",
    "write": "entry",
    "stat": "entry",
    "mkdir": "entry",
    "remove": "entry",
    "rename": "entry",
    "exec_streamed": "exec",
    "run_program": "exec",
    "attach": "retire",
    "process_list": "process_list",
    "process_read": "process_read",
    **dict.fromkeys(
        ("process_start", "process_write", "process_resize", "process_signal", "process_wait", "process_remove"),
        "process",
    ),
}
_STREAMS = {
    "attach": ("presence",),
    "read": ("chunk",),
    "exec_streamed": ("started", "output"),
    "run_program": ("started", "output"),
}
_SPECIAL = {
    "id": st.sampled_from([_PROCESS, _PROCESS, _PROCESS, "p2", ""]),
    "path": st.sampled_from(
        [_PATH, "/workspace/.airlock/output/c1.txt", "/workspace/.airlock/processes/p1.stdout", "/etc", "a"]
    ),
    "sha256": st.sampled_from(["0" * 64, "0" * 63, "x" * 64]),
    "outcome": st.integers(0, 9),
}


@st.composite
def inputs(draw: st.DrawFn) -> tuple[str, bytes]:
    """Return the name of a call and what the daemon sends."""
    call = draw(st.sampled_from(list(CALLS)))
    streamed = draw(st.lists(st.sampled_from(_STREAMS[call]), max_size=3)) if call in _STREAMS else []
    frames: list[bytes] = [draw(_reply(member)).SerializeToString() for member in streamed]
    kind = draw(st.integers(0, 19))
    final = "failure" if kind < 3 else draw(st.sampled_from(_ALL_MEMBERS)) if kind < 5 else _MEMBERS.get(call, call)
    frames.append(draw(_reply(final)).SerializeToString())
    if kind == 19:
        frames.append(draw(st.binary(max_size=64)))
    return call, draw(damaged(frames))


def _reply(member: str) -> st.SearchStrategy[pb.Reply]:
    kind = pb.Reply.DESCRIPTOR.fields_by_name[member].message_type
    return _messages.of(kind).map(lambda message: pb.Reply(**{member: message}))


_messages = Messages(_SPECIAL)
_ALL_MEMBERS = [field.name for field in pb.Reply.DESCRIPTOR.fields]


async def judge(call: str, said: bytes, seen: Counter[str]) -> None:
    """Make one call; AssertionError, or an exception of no class of ours, is a finding."""
    channel = HostileChannel(said)
    try:
        async with asyncio.timeout(20):
            result = await CALLS[call](channel)
    except DaemonLost:
        assert channel.lost is not None, f"{call}: the daemon broke the protocol and its channel is still used"
        seen["daemon lost"] += 1
    except SandboxError:
        seen["failed"] += 1
    else:
        assert len(repr(result)) < _HELD_LIMIT_CHARS
        _check_page(result)
        seen["answered"] += 1
    finally:
        channel.close()


def _check_page(result: object) -> None:
    if isinstance(result, EntriesPage):
        assert len(result.entries) <= _LIMIT <= result.total + _LIMIT
    elif isinstance(result, GrepPage):
        assert len(result.matches) <= _LIMIT
    elif isinstance(result, LinesPage):
        assert len(result.data) <= _LIMIT_BYTES
        assert result.lines <= _LIMIT
