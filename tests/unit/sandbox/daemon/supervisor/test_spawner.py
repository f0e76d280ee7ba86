"""The line between the server and init, with a played init."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator

import pytest

from sandbox.daemon.supervisor import call_tree
from sandbox.daemon.supervisor.control_wire import (
    CALL_GID_BASE,
    DONE,
    EXITED,
    KILL,
    KILL_STRAYS,
    LIVE_CALLS_LIMIT,
    NOTICE,
    ORDER,
    ORDER_LIMIT_BYTES,
    PROGRAM_LIMIT_BYTES,
    SIGNAL,
    SIGNAL_TREE,
    SPAWN,
    SPAWN_TTY,
    STARTED,
    call_gid,
    call_of_gid,
    decode_calls,
    encode_calls,
    encode_program,
)
from sandbox.daemon.supervisor.init import Init
from sandbox.daemon.supervisor.launch import ToolIdentity
from sandbox.daemon.supervisor.spawner import Process, Spawner


class PlayedInit:
    def __init__(self, line: socket.socket) -> None:
        self._line = line

    async def order(self) -> tuple[int, int, int, bytes]:
        data = await asyncio.get_running_loop().sock_recv(self._line, ORDER_LIMIT_BYTES)
        return *ORDER.unpack_from(data), data[ORDER.size :]

    def tell(self, kind: int, call: int, value: int, pid: int = 0) -> None:
        self._line.send(NOTICE.pack(kind, call, value, pid))


@pytest.fixture
async def line() -> AsyncIterator[tuple[Spawner, PlayedInit]]:
    server, init = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with server, init:
        init.setblocking(False)
        yield Spawner(server), PlayedInit(init)
        asyncio.get_running_loop().remove_reader(server.fileno())


async def started(spawner: Spawner, init: PlayedInit, pid: int, *, terminal: bool = False) -> Process:
    starting = asyncio.ensure_future(spawner.start([b"a"], [], b"/", [1, 2], terminal=terminal))
    kind, call, _, _ = await init.order()
    assert kind == (SPAWN_TTY if terminal else SPAWN)
    init.tell(STARTED, call, 0, pid)
    return await starting


async def test_a_program_follows_in_its_order_unless_it_is_long(line: tuple[Spawner, PlayedInit]) -> None:
    spawner, init = line
    for argument in (b"short", b"x" * PROGRAM_LIMIT_BYTES):
        starting = asyncio.ensure_future(spawner.start([b"a", argument], [b"A=1"], b"/", [1, 2]))
        _, call, _, program = await init.order()
        assert program == (b"" if len(argument) > 5 else encode_program([b"a", argument], [b"A=1"], b"/"))
        init.tell(STARTED, call, 0, 7)
        assert (await starting).call == call


async def test_orders_that_do_not_fit_are_sent_in_order_later(
    line: tuple[Spawner, PlayedInit],
) -> None:
    spawner, init = line
    process = await started(spawner, init, 7)
    signals = [asyncio.ensure_future(spawner.signal_tree(process, number % 64)) for number in range(2_000)]
    await asyncio.sleep(0)
    late = asyncio.ensure_future(spawner.start([b"a"], [], b"/", [1, 2]))
    for number in range(2_000):
        kind, _, value, _ = await init.order()
        assert (kind, value) == (SIGNAL_TREE, number % 64)
    kind, call, _, _ = await init.order()
    assert kind == SPAWN
    init.tell(STARTED, call, 0, 8)
    assert (await late).call == call
    for signalling in signals:
        signalling.cancel()


async def test_two_concurrent_kills_of_a_call_both_get_an_answer(line: tuple[Spawner, PlayedInit]) -> None:
    spawner, init = line
    process = await started(spawner, init, 7)
    kills = [asyncio.ensure_future(spawner.kill(process)) for _ in range(2)]
    for _ in kills:
        kind, call, _, _ = await init.order()
        assert (kind, call) == (KILL, process.call)
        init.tell(DONE, call, 0)
    assert await asyncio.wait_for(asyncio.gather(*kills), 10) == [0, 0]


async def test_an_answer_for_a_cancelled_caller_is_not_taken_for_the_next_one(line: tuple[Spawner, PlayedInit]) -> None:
    spawner, init = line
    process = await started(spawner, init, 7)
    given_up = asyncio.ensure_future(spawner.signal_tree(process, 15))
    await init.order()
    given_up.cancel()
    waiting = asyncio.ensure_future(spawner.signal_tree(process, 15))
    await init.order()
    init.tell(DONE, process.call, 1)
    init.tell(DONE, process.call, 2)
    assert await asyncio.wait_for(waiting, 10) == 2


async def test_killing_is_retried_while_a_process_is_left(line: tuple[Spawner, PlayedInit]) -> None:
    spawner, init = line
    process = await started(spawner, init, 7)
    killing = asyncio.ensure_future(spawner.kill(process))
    for left in (9, 1, 0):
        await init.order()
        init.tell(DONE, process.call, left)
    assert await asyncio.wait_for(killing, 10) == 0
    killing = asyncio.ensure_future(spawner.kill(process))
    for _ in range(3):
        await init.order()
        init.tell(DONE, process.call, 2)
    assert await asyncio.wait_for(killing, 10) == 2


async def test_strays_are_the_processes_of_no_live_call_at_each_attempt(line: tuple[Spawner, PlayedInit]) -> None:
    spawner, init = line
    kept = await started(spawner, init, 7)
    forgotten = await started(spawner, init, 8)
    spawner.forget(forgotten)
    killing = asyncio.ensure_future(spawner.kill_strays())
    kind, _, _, rest = await init.order()
    assert (kind, decode_calls(rest)) == (KILL_STRAYS, {kept.call})
    late = await started(spawner, init, 9, terminal=True)
    init.tell(DONE, 0, 1)
    _, _, _, rest = await init.order()
    assert decode_calls(rest) == {kept.call, late.call}
    init.tell(DONE, 0, 0)
    assert await asyncio.wait_for(killing, 10) == 0


async def test_a_signal_to_a_process_that_init_has_reaped_is_an_error(line: tuple[Spawner, PlayedInit]) -> None:
    spawner, init = line
    process = await started(spawner, init, 7)
    init.tell(EXITED, process.call, 0, 7)
    signalling = asyncio.ensure_future(spawner.signal(process, 15))
    kind, _, number, _ = await init.order()
    assert (kind, number) == (SIGNAL, 15)
    init.tell(DONE, process.call, -3)
    with pytest.raises(ProcessLookupError):
        await signalling


def test_groups_and_calls_stand_for_each_other() -> None:
    assert [call_of_gid(call_gid(call)) for call in (1, 77, (1 << 30) - 1)] == [1, 77, (1 << 30) - 1]
    assert [call_of_gid(gid) for gid in (0, 10001, CALL_GID_BASE, 1 << 31, 600_000_000)] == [0] * 5
    status = b"Name:\tsh\nState:\tS\nGroups:\t27 %d \nThreads:\t1\n"
    assert call_tree.call_of(status % call_gid(9)) == 9
    assert call_tree.call_of(status % 28) == 0
    assert call_tree.call_of(b"Name:\tsh\n") == 0


def test_the_calls_of_an_order_have_a_limit() -> None:
    calls = list(range(1, LIVE_CALLS_LIMIT + 1))
    assert decode_calls(encode_calls(calls)) == frozenset(calls)
    with pytest.raises(ValueError, match="fit one order"):
        encode_calls([*calls, 1])


@pytest.fixture
def init() -> Iterator[Init]:
    server, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with server, control:
        yield Init(control, 1, ToolIdentity(1, 1))


def test_init_signals_only_a_group_whose_first_process_it_has_not_reaped(init: Init) -> None:
    with subprocess.Popen(["/bin/sleep", "100"], start_new_session=True) as process:
        assert init._signal(SIGNAL, 5, 15, b"") == -3
        init._calls[process.pid] = 5
        assert init._signal(SIGNAL, 6, 15, b"") == -3
        assert init._signal(SIGNAL, 5, 15, b"") == 0
        assert process.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize("kind, rest", [(99, b""), (KILL_STRAYS, b"odd"), (SIGNAL, b"more")])
def test_a_malformed_order_is_answered_and_ends_nothing(init: Init, kind: int, rest: bytes) -> None:
    assert init._signal(kind, 1, 15, rest) < 0


def test_strays_are_killed_by_their_group_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    group = {11: call_gid(1), 12: call_gid(2), 13: 27, 14: call_gid(3)}
    killed: list[int] = []

    def status(pid: int) -> bytes | None:
        return None if pid in killed else b"Name:\tx\nState:\tS\nGroups:\t%d \nThreads:\t1\n" % group[pid]

    monkeypatch.setattr(call_tree, "list_pids", lambda: iter(group))
    monkeypatch.setattr(call_tree, "read_status", status)
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    assert call_tree.kill_calls(lambda call: call != 2, lambda: None) == 0
    assert killed == [11, 14]


def test_a_proc_that_cannot_be_listed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(12, "no memory")

    monkeypatch.setattr(call_tree, "list_pids", fail)
    assert call_tree.kill_calls((1).__eq__, lambda: None, limit_s=0.01) == 1
