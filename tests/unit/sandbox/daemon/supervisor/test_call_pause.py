"""Pausing what calls started, with fake processes that resist."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterable

import pytest

from sandbox.daemon.supervisor import call_tree
from sandbox.daemon.supervisor.control_wire import call_gid


class PlayedProcesses:
    """Processes of a call, by pid; `wake` is done after each signal, as another process might."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pids: Iterable[int]) -> None:
        self.state = dict.fromkeys(pids, "R")
        self.switches = dict.fromkeys(pids, 1)
        self.pending: set[int] = set()
        self.signals: list[tuple[int, int]] = []
        self.wake: Callable[[int], None] = lambda _: None
        monkeypatch.setattr(call_tree, "list_pids", lambda: iter(self.state))
        monkeypatch.setattr(call_tree, "read_status", self._status)
        monkeypatch.setattr(os, "kill", self._kill)

    def _status(self, pid: int) -> bytes:
        pending = 1 << (signal.SIGSTOP - 1) if pid in self.pending else 0
        said = f"Name:\tx\nState:\t{self.state[pid]}\nGroups:\t{call_gid(1)} \nThreads:\t1\nShdPnd:\t{pending:016x}\n"
        return f"{said}voluntary_ctxt_switches:\t{self.switches[pid]}\nnonvoluntary_ctxt_switches:\t0\n".encode()

    def _kill(self, pid: int, number: int) -> None:
        self.signals.append((pid, number))
        if number == signal.SIGSTOP and self.state[pid] == "D":
            self.pending.add(pid)
        else:
            self.state[pid] = "T" if number == signal.SIGSTOP else "R"
        self.wake(pid)


def test_paused_processes_are_resumed_and_those_stopped_before_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    played, paused = PlayedProcesses(monkeypatch, (11, 12, 13)), call_tree.PausedCalls()
    played.state.update({12: "T", 13: "D"})
    assert call_tree.pause_everything(paused) == 2
    assert call_tree.resume(paused) == 0
    stop, go_on = signal.SIGSTOP, signal.SIGCONT
    assert played.signals == [(11, stop), (13, stop), (13, go_on), (11, go_on)]


def test_a_process_that_another_one_resumes_is_stopped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    played, paused = PlayedProcesses(monkeypatch, (11, 12)), call_tree.PausedCalls()
    # The second resumes the first, and is stopped itself.
    played.wake = lambda pid: played.state.update({11: "R"}) if pid == 12 else None
    assert call_tree.pause_everything(paused) == 2
    assert set(played.state.values()) == {"T"}


def test_processes_that_keep_resuming_each_other_are_reported_as_not_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    played = PlayedProcesses(monkeypatch, (11, 12))
    played.wake = lambda pid: played.state.update({23 - pid: "R"})
    with pytest.raises(TimeoutError):
        call_tree.pause_everything(call_tree.PausedCalls(), limit_s=0.05)


def test_a_process_that_ran_while_paused_is_counted_even_if_it_stopped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    played, paused = PlayedProcesses(monkeypatch, (11, 12, 13)), call_tree.PausedCalls()
    call_tree.pause_everything(paused)
    played.switches[11] += 10
    played.state[12] = "S"
    assert call_tree.resume(paused) == 2


def test_paused_processes_are_resumed_even_if_proc_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    played, paused = PlayedProcesses(monkeypatch, (11, 12)), call_tree.PausedCalls()
    call_tree.pause_everything(paused)

    def no_memory() -> Iterable[int]:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(call_tree, "list_pids", no_memory)
    assert call_tree.resume(paused) == 2  # at most
    assert set(played.state.values()) == {"R"}
