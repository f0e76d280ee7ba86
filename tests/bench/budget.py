"""Where the time of one call through the gateway goes, stage by stage, with one client and nothing else.

The gateway of this bench marks when a call passes the places below; the product has no such marks. A stage ends at its
mark and began at the one before. Its processor time is that of the thread that ran it. A turn is one of the event loop.

    python -m tests.bench.budget
"""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import get_ident
from typing import Any
from unittest import mock

from rich.table import Table

from gateway.client import Client
from sandbox.v1.channel_pb2 import ExecReply
from tests.bench.changed_gateway import changed_by, run
from tests.gateway_process import make_home, served

_MARKS_FILE = "AIRLOCK_BENCH_MARKS"
_WARMUP, _CALLS = 30, 300
_PAGE = "x" * 4095 + "\n"
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "write_file": {"path": "page", "content": _PAGE},
    "read_file": {"path": "page"},
    "execute": {"command": "true"},
}
_SEND = "send"


@dataclass(frozen=True)
class _Mark:
    """The end of a stage. `cpu_ns` is the processor time of its thread since the thread's mark before."""

    stage: str
    at_ns: int
    cpu_ns: int
    turns: int


class _Marks:
    """What the gateway's process notes."""

    def __init__(self) -> None:
        self._marks: list[_Mark] = []
        self._turns = self._turns_before = 0
        self._cpu_ns: dict[int, int] = {}

    def mark(self, stage: str) -> None:
        cpu_ns, thread = time.thread_time_ns(), get_ident()
        spent_ns = cpu_ns - self._cpu_ns.get(thread, cpu_ns)
        turns, self._turns_before = self._turns - self._turns_before, self._turns
        self._marks.append(_Mark(stage, time.perf_counter_ns(), spent_ns, turns))
        self._cpu_ns[thread] = time.thread_time_ns()

    def divide(self, reply: ExecReply) -> None:
        """Divide the last stage into what the daemon says that it took, and the way there and back."""
        *_, before, whole = self._marks
        parts = (("start", reply.start_us), ("run", reply.end_us), ("rest of the output", reply.duration_us))
        self._marks[-1:] = [_Mark(f"sandbox: {name}", before.at_ns + us * 1000, 0, 0) for name, us in parts]
        self._marks.append(replace(whole, stage="sandbox: channel"))

    def turn(self) -> None:
        self._turns += 1

    def write(self, path: str) -> None:
        Path(path).write_text(json.dumps([vars(mark) for mark in self._marks]))


def _airlock() -> None:
    """Be `airlock`, with marks."""
    from agent.hooks.engine import HookEngine
    from agent.tools.runner import ToolRunner
    from gateway.cli.main import main
    from gateway.services import tool_service
    from gateway.serving import edge
    from gateway.serving.fair_loop import FairQueue
    from gateway.serving.incoming import Incoming, SendTimeouts
    from gateway.storage.writer import Writer
    from gateway.tool_calls.policy_hook import PolicyHook
    from gateway.tool_calls.requested_calls import RequestedCalls
    from sandbox.client import remote_shell
    from sandbox.client.channel import Channel

    marks = _Marks()
    # Each place, and the stages that end when it is entered and when it is left.
    places: tuple[tuple[Any, str, str, str], ...] = (
        (Incoming, "__init__", "accept", ""),
        (edge, "_admitted", "", "authenticate"),
        (Incoming, "request", "", "read the request"),
        (RequestedCalls, "call", "admit", ""),
        (ToolRunner, "run", "look up", ""),
        (PolicyHook, "before_tool_use", "prepare", "judge"),
        (Writer, "done", "journal", "back from the database"),
        (Writer, "_commit", "queue to the database", "commit"),
        (Writer, "_is_done", "", "commit"),
        (Channel, "_begin", "lease the sandbox", ""),
        (Channel, "_end", "sandbox", ""),
        (HookEngine, "run", "rings", ""),
        (tool_service, "_result", "after hooks", ""),
        (SendTimeouts, "begin", "respond", ""),
    )
    for owner, name, entered, left in places:
        _patch(marks, owner, name, entered, left)
    length, result = FairQueue.__len__, remote_shell._result

    def divided(reply: ExecReply, *more: Any) -> Any:
        marks.divide(reply)
        return result(reply, *more)

    def counted(self: FairQueue) -> int:
        marks.turn()
        return length(self)

    mock.patch.object(remote_shell, "_result", divided).start()
    mock.patch.object(FairQueue, "__len__", counted).start()
    atexit.register(marks.write, os.environ[_MARKS_FILE])
    main()


def _patch(marks: _Marks, owner: Any, name: str, entered: str, left: str) -> None:
    inner: Callable[..., Any] = getattr(owner, name)

    def enter(arguments: Sequence[object]) -> None:
        # Of the hooks' passes only the one after the call ends a stage.
        if entered and (name != "run" or "after_tool_use" in arguments or owner.__name__ != "HookEngine"):
            marks.mark(entered)

    @functools.wraps(inner)
    async def waited(*given: Any, **more: Any) -> Any:
        enter(given)
        try:
            return await inner(*given, **more)
        finally:
            if left:
                marks.mark(left)

    @functools.wraps(inner)
    def called(*given: Any, **more: Any) -> Any:
        enter(given)
        try:
            return inner(*given, **more)
        finally:
            if left:
                marks.mark(left)

    mock.patch.object(owner, name, waited if inspect.iscoroutinefunction(inner) else called).start()


@dataclass(frozen=True)
class _Stage:
    """One stage of one call."""

    name: str
    wall_us: float
    cpu_us: float
    turns: int


def _stages(began_ns: int, ended_ns: int, marks: Sequence[_Mark]) -> list[_Stage]:
    """Return the stages of a call, in order; a stage that comes twice has a number."""
    found: list[_Stage] = []
    seen: Counter[str] = Counter()
    before_ns = began_ns
    for mark in marks:
        seen[mark.stage] += 1
        name = mark.stage if seen[mark.stage] == 1 else f"{mark.stage} ({seen[mark.stage]})"
        found.append(_Stage(name, (mark.at_ns - before_ns) / 1000, mark.cpu_ns / 1000, mark.turns))
        before_ns = mark.at_ns
    return [*found, _Stage(_SEND, (ended_ns - before_ns) / 1000, 0.0, 0)]


async def _measured(address: str, key: str) -> dict[str, list[tuple[int, int]]]:
    """Return when each call began and ended; kinds come in turn."""
    taken: dict[str, list[tuple[int, int]]] = {name: [] for name in _ARGUMENTS}
    async with Client(address, key) as airlock:
        for number in range(_WARMUP + _CALLS):
            for name, arguments in _ARGUMENTS.items():
                began_ns = time.perf_counter_ns()
                result = await airlock.call_tool(name, arguments, thread="bench")
                ended_ns = time.perf_counter_ns()
                if result.is_error:
                    raise RuntimeError(f"{name}: {result.content}")
                if number >= _WARMUP:
                    taken[name].append((began_ns, ended_ns))
    return taken


async def tables() -> list[Table]:
    """Measure and return what `make bench` prints; needs a Docker engine."""
    with tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory:
        home, marked = make_home(Path(directory) / "home"), Path(directory) / "marks.json"
        with changed_by("tests.bench.budget"), served(home, {_MARKS_FILE: str(marked)}) as gateway:
            taken = await _measured(gateway.address, home.key)
        marks = [_Mark(**mark) for mark in json.loads(marked.read_text())]
    return [_table(name, calls, marks) for name, calls in taken.items()]


def _table(name: str, calls: Sequence[tuple[int, int]], marks: Sequence[_Mark]) -> Table:
    each = [
        _stages(began_ns, ended_ns, [mark for mark in marks if began_ns <= mark.at_ns <= ended_ns])
        for began_ns, ended_ns in calls
    ]
    # Work of the background falls into some calls, which then have other stages.
    usual, count = Counter(tuple(stage.name for stage in stages) for stages in each).most_common(1)[0]
    alike = [stages for stages in each if tuple(stage.name for stage in stages) == usual]
    title = f"{name}: where the time goes, medians of {count} calls"
    table = Table("stage", "wall, us", "processor, us", "turns", title=title, box=None, header_style="bold")
    for place, stage in enumerate(usual):
        column = [stages[place] for stages in alike]
        spent = [(one.wall_us, one.cpu_us) for one in column]
        wall, cpu = (statistics.median(values) for values in zip(*spent, strict=True))
        table.add_row(stage, f"{wall:,.0f}", f"{cpu:,.0f}", f"{statistics.median(one.turns for one in column):g}")
    whole = [sum(one.wall_us for one in stages) for stages in alike]
    cpu_of_all = [sum(one.cpu_us for one in stages) for stages in alike]
    turns = statistics.median(sum(one.turns for one in stages) for stages in alike)
    table.add_row("all", f"{statistics.median(whole):,.0f}", f"{statistics.median(cpu_of_all):,.0f}", f"{turns:g}")
    return table


if __name__ == "__main__":
    run(_airlock, tables)
