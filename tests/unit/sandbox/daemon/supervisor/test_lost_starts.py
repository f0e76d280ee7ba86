"""Starts that are lost with a tool spawner: the server hears of each, or it would wait for ever."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from sandbox.daemon.supervisor import init as init_module
from sandbox.daemon.supervisor.control_wire import FAILED, NOTICE
from sandbox.daemon.supervisor.init import Init
from sandbox.daemon.supervisor.launch import ToolIdentity
from sandbox.daemon.supervisor.tool_spawner import ToolSpawner


class Ended(ToolSpawner):
    """A tool spawner that was killed with starts pending."""

    def __init__(self, *pending: int) -> None:
        super().__init__(ToolIdentity(-1, -1))
        self.pending = [*pending]

    def lost(self) -> list[int]:
        lost, self.pending = self.pending, []
        return lost


def test_a_start_that_is_lost_while_another_lost_one_is_killed_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    server, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with server, control:
        init = Init(control, 1, ToolIdentity(-1, -1))
        first, second = Ended(), Ended(7)
        init._retired = [first, second]

        def kill(is_meant: Callable[[int], bool], _reap: Callable[[], None]) -> int:
            if is_meant(7):
                first.pending.append(8)  # what reaping finds out
            return 0

        monkeypatch.setattr(init_module, "kill_calls", kill)
        init._end_lost()
        server.setblocking(False)
        notices = [NOTICE.unpack(server.recv(NOTICE.size))[:2] for _ in range(2)]
        assert notices == [(FAILED, 7), (FAILED, 8)]
        assert init._retired == []
