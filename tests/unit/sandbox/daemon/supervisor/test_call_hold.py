"""Holding what calls started, with played processes that do not want to be held."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterable

import pytest

from sandbox.daemon.supervisor import call_hold
from sandbox.daemon.supervisor.control_wire import call_gid


class PlayedProcesses:
    """Processes of a call, by pid; `wake` is done after each signal, as others would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pids: Iterable[int]) -> None:
        self.state = dict.fromkeys(pids, "R")
        self.switches = dict.fromkeys(pids, 1)
        self.pending: set[int] = set()
        self.signals: list[tuple[int, int]] = []
        self.wake: Callable[[int], None] = lambda _: None
        monkeypatch.setattr(call_hold, "list_pids", lambda: iter(self.state))
        monkeypatch.setattr(call_hold, "read_status", self._status)
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


def test_what_is_held_goes_on_and_who_was_stopped_before_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    played, hold = PlayedProcesses(monkeypatch, (11, 12, 13)), call_hold.Hold()
    played.state.update({12: "T", 13: "D"})
    assert call_hold.hold_everything(hold) == 2
    assert call_hold.release(hold) == 0
    stop, go_on = signal.SIGSTOP, signal.SIGCONT
    assert played.signals == [(11, stop), (13, stop), (13, go_on), (11, go_on)]


def test_who_is_set_going_again_is_stopped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    played, hold = PlayedProcesses(monkeypatch, (11, 12)), call_hold.Hold()
    # The second has the first go on, and is stopped itself.
    played.wake = lambda pid: played.state.update({11: "R"}) if pid == 12 else None
    assert call_hold.hold_everything(hold) == 2
    assert set(played.state.values()) == {"T"}


def test_who_have_each_other_go_on_without_end_are_said_not_to_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    played = PlayedProcesses(monkeypatch, (11, 12))
    played.wake = lambda pid: played.state.update({23 - pid: "R"})
    with pytest.raises(TimeoutError):
        call_hold.hold_everything(call_hold.Hold(), limit_s=0.05)


def test_who_ran_while_it_was_held_is_told_even_when_it_stopped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    played, hold = PlayedProcesses(monkeypatch, (11, 12, 13)), call_hold.Hold()
    call_hold.hold_everything(hold)
    played.switches[11] += 10
    played.state[12] = "S"
    assert call_hold.release(hold) == 2


def test_who_is_held_goes_on_also_where_nobody_can_look(monkeypatch: pytest.MonkeyPatch) -> None:
    played, hold = PlayedProcesses(monkeypatch, (11, 12)), call_hold.Hold()
    call_hold.hold_everything(hold)

    def no_memory() -> Iterable[int]:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(call_hold, "list_pids", no_memory)
    assert call_hold.release(hold) == 2  # for all that is known
    assert set(played.state.values()) == {"R"}
