"""A thread whose service calls all the time: it writes, reads, appends, runs things in the background, goes idle, has
its sandbox made, stopped and resumed, and itself saved, restored and forked.

Whatever dies, each call ends in time with a result whose outcome the pages list or an error whose reason they list;
what was acknowledged is kept in the thread's ledger and looked at again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gateway.client import Client, ToolResult
from gateway.errors import AirlockError, NotFound
from tests.chaos.ledger import FileEntry, Ledger

# Longer than anything in a gateway waits for an engine that does not answer, or for another gateway.
_HANG_S = 150.0
_AGAIN_S = 0.5
_PATH = "/workspace/file-{}"
_LOG, _OTHER_LOG = "/workspace/log", "/workspace/log-beside"
_PACE_S = 0.2
# What is on the command line of each command that a thread has executed.
COMMAND = b"echo line-"
_FILES = 4
# How often a call is asked for again, _AGAIN_S apart, by a service that wants to know what became of it.
_UNTIL_REPORTED = 240
# What may be said to a call that meets a gateway, an engine or a sandbox that is gone or busy. All else is a fault.
_REASONS = frozenset({"UNAVAILABLE", "OVERLOADED", "IN_PROGRESS", "SANDBOX_BUSY", "THREAD_BUSY"})
# The pages' words for how a command ends: it ran to its end; it did not run; unknown.
_RAN, _NOT_RUN = ("exited",), ("failed_to_start", "not_executed", "blocked")
_UNKNOWN = ("signalled", "cancelled", "daemon_lost", "interrupted", "timed_out")
_Value = TypeVar("_Value")


@dataclass
class Report:
    """What came of all calls: `faults` are sentences, `counts` by what was asked and how it ended."""

    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class Failed:
    """Stands for the answer of a call that ended with an error."""

    def __init__(self, error: AirlockError | None) -> None:
        self.error = error


class ThreadLoad:
    """One thread of one tenant. `clients` are of every gateway; any may be asked for any call."""

    def __init__(
        self,
        name: str,
        clients: Sequence[Client],
        seed: str,
        report: Report,
        *,
        tenant: str,
        idle_s: float,
        break_stopped: Callable[[str], Awaitable[bool]],
    ) -> None:
        """`break_stopped` sees to it that a sandbox that is stopped cannot be started, and says whether it did."""
        self.name = name
        self.tenant = tenant
        self.names = [name]
        self.successes = 0
        self.ledger = Ledger()
        self.beside = Ledger()
        self.snapshots: list[tuple[str, dict[str, FileEntry]]] = []
        self._half_restored: list[tuple[str, str, dict[str, FileEntry]]] = []
        self._clients = clients
        self._random = random.Random(seed)
        self._report = report
        self._idle_s = idle_s
        self._break_stopped = break_stopped
        self._count = 0
        self._over = asyncio.Event()
        # Held by a call beside the others, and by a caller that needs none in progress.
        self._quiet = asyncio.Lock()
        self._steps: dict[Callable[[], Awaitable[None]], int] = {
            self._write: 4,
            self._read: 4,
            self._append_one: 4,
            self._append_everywhere: 1,
            self._process: 2,
            self._look: 1,
            self._stop: 1,
            self._stop_and_resume: 1,
            self._stop_and_break: 1,
            self._snapshot: 1,
            self._restore: 1,
            self._fork: 1,
            self._rest: 1,
            self._short_life: 1,
        }

    async def run(self, over: asyncio.Event) -> None:
        """Call until it is over: one call after the other, and some beside them."""
        self._over = over
        await asyncio.gather(self._one_by_one(), self._beside_them())

    async def _one_by_one(self) -> None:
        cards: list[Callable[[], Awaitable[None]]] = []
        while not self._over.is_set():
            if not cards:  # so that each step is taken as often as it is to be, also in a short run
                cards = [step for step, times in self._steps.items() for _ in range(times)]
                self._random.shuffle(cards)
            await cards.pop()()

    async def _beside_them(self) -> None:
        while not self._over.is_set():
            async with self._quiet:
                await self._append(_OTHER_LOG, self.beside)
            await asyncio.sleep(_PACE_S)

    async def check(self) -> None:
        """See that all is there that must be, when nothing dies any more: each call is served."""
        for path in list(self.ledger.files):
            await self._check_file(path, patient=True)
        for path, ledger in ((_LOG, self.ledger), (_OTHER_LOG, self.beside)):
            log = await self._content(path, patient=True)
            if not isinstance(log, Failed):
                self._wrong(*ledger.wrong_lines((log or b"").decode().split(), in_order=path == _LOG))

    async def check_snapshots(self) -> None:
        """See that what was saved last can be had, and that a thread whose restore was cut short is whole by another.

        Such a thread is shut until then.
        """
        last = [(self._other_name(), *self.snapshots[-1])] if self.snapshots else []
        for name, snapshot, files in (*self._half_restored, *last):
            await self._checked_restore(name, snapshot, files, patient=True)

    # --- what it does ---

    async def _write(self) -> None:
        path = _PATH.format(self._random.randrange(_FILES))
        self._count += 1
        content = f"{self.tenant} {self.name} {self._count}\n".encode() * self._random.choice((1, 100, 20_000))
        entry = self.ledger.file(path)
        entry.sent(content)
        if not isinstance(await self._ask("write_file", lambda one: one.write_file(self.name, path, content)), Failed):
            entry.done(content)

    async def _read(self) -> None:
        await self._check_file(_PATH.format(self._random.randrange(_FILES)))

    async def _append_one(self) -> None:
        await self._append(_LOG, self.ledger)

    async def _append(self, log: str, ledger: Ledger) -> None:
        """Append a line, asking again under the same request id as a service does that got no answer."""
        line, call = self._appending(log, ledger)
        tries = self._random.choice((1, 3, _UNTIL_REPORTED, _UNTIL_REPORTED))
        for _ in range(tries):
            result = await self._ask("execute", call)
            if not isinstance(result, Failed):
                self._note(ledger, line, result)
                return
            if result.error is not None and result.error.details.get("outcome") == "not_executed":
                ledger.lines[line] = "never"
            else:
                ledger.lines[line] = "maybe"
            if tries == _UNTIL_REPORTED:
                await asyncio.sleep(_AGAIN_S)
        if tries == _UNTIL_REPORTED:
            self._wrong(f"no page says what became of {line}")

    async def _append_everywhere(self) -> None:
        """Ask all gateways at once for the same call, as a service does that got no answer and asks too soon."""
        line, call = self._appending(_LOG, self.ledger)
        states = set()
        for result in await asyncio.gather(*(self._ask("execute", call, at=client) for client in self._clients)):
            self.ledger.lines[line] = "maybe"
            if not isinstance(result, Failed):
                self._note(self.ledger, line, result)
            states.add(self.ledger.lines[line])
        self.ledger.lines[line] = "sure" if "sure" in states else "never" if states == {"never"} else "maybe"

    def _appending(self, log: str, ledger: Ledger) -> tuple[str, Callable[[Client], Awaitable[ToolResult]]]:
        """Return a line and the call that appends it: however often it is made, once."""
        self._count += 1
        line = f"line-{self._count}"
        before_s, after_s = self._random.choice((0, 0, 0.1, 0.5)), self._random.choice((0, 0.1, 0.5, 1))
        command = {"command": f"sleep {before_s}; echo {line} >> {log}; sleep {after_s}", "timeout_s": 60}
        ledger.lines[line] = "maybe"
        id_ = f"{self.name}-{line}"
        return line, lambda one: one.call_tool("execute", command, thread=self.name, request_id=id_)

    def _note(self, ledger: Ledger, line: str, result: ToolResult) -> None:
        if result.outcome in _RAN:
            ledger.lines[line] = "sure"
            if result.exit_code != 0:
                self._wrong(f"{line} exited {result.exit_code}: {result.content!r}")
        elif result.outcome in _NOT_RUN:
            ledger.lines[line] = "never"
        elif result.outcome not in _UNKNOWN:
            self._wrong(f"{line} has the outcome {result.outcome!r}")
        self._report.counts[f"execute: {result.outcome}"] += 1

    async def _process(self) -> None:
        beats = ["sh", "-c", "while :; do echo beat; sleep 0.1; done"]
        started = await self._ask(
            "start_process", lambda one: one.start_process(beats, thread=self.name, timeout_s=10), _GONE
        )
        if isinstance(started, Failed):
            return
        await self._ask("processes", lambda one: one.processes(self.name))
        if self._random.random() < 0.5:
            await self._ask("remove_process", lambda one: one.remove_process(self.name, started.id), _GONE)

    async def _look(self) -> None:
        await self._ask("get_sandbox", lambda one: one.get_sandbox(self.name), _GONE)

    async def _stop(self) -> None:
        await self._ask("stop_sandbox", lambda one: one.stop_sandbox(self.name), _GONE)

    async def _stop_and_resume(self) -> None:
        async with self._quiet:
            await self._ask("stop_sandbox", lambda one: one.stop_sandbox(self.name), _GONE)
        await self._ask("resume_sandbox", lambda one: one.resume_sandbox(self.name), _GONE)

    async def _stop_and_break(self) -> None:
        """Have what is stopped not start again: another takes its place, with the files."""
        async with self._quiet:
            stopped = await self._ask("stop_sandbox", lambda one: one.stop_sandbox(self.name), _GONE)
            if not isinstance(stopped, Failed) and stopped.state == "idle_stopped":
                await self._break_stopped(stopped.id)
        for path in list(self.ledger.files):
            await self._check_file(path)

    async def _snapshot(self) -> None:
        files = self._files_now()
        saved = await self._ask("create_snapshot", lambda one: one.create_snapshot(self.name), _NOT_SAVED)
        if not isinstance(saved, Failed):
            self.snapshots.append((saved.id, files))

    async def _restore(self) -> None:
        """Have what was saved last in another thread."""
        if self.snapshots:
            await self._checked_restore(self._other_name(), *self.snapshots[-1])

    async def _checked_restore(
        self, name: str, snapshot: str, files: dict[str, FileEntry], *, patient: bool = False
    ) -> None:
        asked = self._patiently if patient else self._ask
        made = await asked("restore_snapshot", lambda one: one.restore_snapshot(snapshot, thread=name))
        if isinstance(made, Failed):
            self._half_restored.append((name, snapshot, files))
        else:
            await self._check_copy(name, files, patient=patient)

    async def _fork(self) -> None:
        async with self._quiet:
            name, files = self._other_name(), self._files_now()
            forked = await self._ask("fork_thread", lambda one: one.fork_thread(self.name, name), _NOT_SAVED)
        if not isinstance(forked, Failed):
            await self._check_copy(name, files)

    async def _check_copy(self, name: str, files: Mapping[str, FileEntry], *, patient: bool = False) -> None:
        """See that another thread has these files, and delete it."""
        for path, entry in files.items():
            found = await self._content(path, thread=name, patient=patient)
            if not isinstance(found, Failed) and not entry.copy().seen(found):
                self._wrong(f"{name}, a copy, has {_shown(found)} at {path} instead of {_shown(entry.known)}")
        await self._delete(name)

    async def _rest(self) -> None:
        """Call nothing until the sandbox is stopped for being idle, and was for a while."""
        async with self._quiet:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._idle_s * self._random.uniform(0.8, 2.5)):
                    await self._over.wait()

    async def _short_life(self) -> None:
        """Have another thread, with a file, and delete it: what was acknowledged as deleted is gone."""
        name = self._other_name()
        await self._ask("create_sandbox", lambda one: one.create_sandbox(name))
        if not isinstance(await self._ask("write_file", lambda one: one.write_file(name, _LOG, b"short")), Failed):
            await self._delete(name)

    async def _delete(self, name: str) -> None:
        gone = await self._ask("delete_sandbox", lambda one: one.delete_sandbox(name), frozenset({"NOT_FOUND"}))
        # Not found is what is gone already, by an attempt whose answer was lost.
        if not isinstance(gone, Failed) or (gone.error is not None and gone.error.reason == "NOT_FOUND"):
            self.names.remove(name)

    def _other_name(self) -> str:
        """Return the name of a thread that there is from now on, for all that anybody knows."""
        self._count += 1
        self.names.append(f"{self.name}-{self._count}")
        return self.names[-1]

    def _files_now(self) -> dict[str, FileEntry]:
        return {path: entry.copy() for path, entry in self.ledger.files.items()}

    # --- how it asks ---

    async def _check_file(self, path: str, *, patient: bool = False) -> None:
        found = await self._content(path, patient=patient)
        entry = self.ledger.file(path)
        if not isinstance(found, Failed) and not entry.seen(found):
            self._wrong(f"{path} has {_shown(found)}, not {_shown(entry.known)}, nor one of {len(entry.maybe)} others")

    async def _content(self, path: str, *, thread: str = "", patient: bool = False) -> bytes | Failed | None:
        """Return what is in a file, None where there is none."""

        async def read(one: Client) -> bytes | None:
            try:
                return await one.read_file(thread or self.name, path)
            except NotFound:
                return None

        return await (self._patiently("read_file", read) if patient else self._ask("read_file", read))

    async def _patiently(self, what: str, call: Callable[[Client], Awaitable[_Value]]) -> _Value | Failed:
        """Ask until it is served: in the end everything is."""
        try:
            async with asyncio.timeout(_HANG_S):
                while isinstance(found := await self._ask(what, call), Failed):
                    await asyncio.sleep(_AGAIN_S)
                return found
        except TimeoutError:
            self._wrong(f"{what} is not served, though nothing dies any more")
            return Failed(None)

    async def _ask(
        self,
        what: str,
        call: Callable[[Client], Awaitable[_Value]],
        reasons: frozenset[str] = frozenset(),
        *,
        at: Client | None = None,
    ) -> _Value | Failed:
        """Make a call at one of the gateways; `reasons` are those that it may be refused for besides the usual ones."""
        try:
            async with asyncio.timeout(_HANG_S):
                found = await call(at or self._random.choice(self._clients))
        except AirlockError as error:
            self._report.counts[f"{what}: {error.reason}"] += 1
            if error.reason not in _REASONS | reasons:
                self._wrong(f"{what} was refused with {error.reason}: {error}")
            await asyncio.sleep(0.05)  # a refused call is not repeated at once
            return Failed(error)
        except TimeoutError:
            self._wrong(f"{what} did not end within {_HANG_S:.0f} s")
            return Failed(None)
        except Exception as error:
            self._wrong(f"{what} ended with what is no error of Airlock's: {error!r}")
            return Failed(None)
        self._report.counts[f"{what}: ok"] += 1
        self.successes += 1
        return found

    def _wrong(self, *faults: str) -> None:
        self._report.faults += [f"{self.tenant}/{self.name}: {fault}" for fault in faults]


_GONE = frozenset({"NOT_FOUND", "EXHAUSTED", "CONFLICT", "PROCESS_ENDED"})
_NOT_SAVED = frozenset({"NOT_FOUND", "QUOTA_EXCEEDED"})


def _shown(content: bytes | None) -> str:
    return "nothing" if content is None else f"{content[:40]!r} ({len(content):,} bytes)"
