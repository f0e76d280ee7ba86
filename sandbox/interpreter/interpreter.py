"""Runs cells in the interpreter of a context: a background process of the sandbox, started when it is first needed.

A call finds the interpreter's process by its id, which encodes the file rules that it runs under. An interpreter that
was started under other rules is therefore never used: it is ended, and a new one starts under the current rules.
Nothing else is remembered, so a restarted gateway, or another one on the engine, can use the same interpreter.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.resources
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import cache
from signal import SIGINT

from sandbox.errors import Conflict, DaemonLost, InputNotTaken, NotFound, SandboxError
from sandbox.file_rules import FileRules
from sandbox.interpreter import inside
from sandbox.interpreter.cell import Cell, CellResult
from sandbox.interpreter.frames import BadFrames, CellFrames
from sandbox.interpreter.inside.limits import WINDOW_BYTES
from sandbox.protocols import OutputStream, Process, Processes, ProcessSpec

PROCESS_PREFIX = "airlock-python-"
"""What the ids of interpreters begin with: only this module may write to such a process."""
PROGRAM = "python3"
CONTEXTS_LIMIT = 16
_RULES_DIGITS = 16
_BOOT = """\
import os, sys
sys.path[:] = [path for path in sys.path if path]  # a json.py of the workspace is not ours
import json, types
def take(size):
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or os._exit(1)
    return data
sent = json.loads(take(int(take(8))))
for name, source in sent.items():
    sys.modules[name] = types.ModuleType(name)
    exec(compile(source, "<airlock>", "exec"), sys.modules[name].__dict__)
program = [sys.modules.pop(name) for name in sent][-1]
program.main()
"""
_MODULES = ("limits", "channel", "shells", "program")
_PAGE_BYTES = 256 * 1024
_READ_WAIT_S = 2.0
_WRITE_WAIT_S = 30.0
_WRITE_LIMIT_BYTES = 512 * 1024
# Until the code begins: the start of an interpreter, with IPython and on a busy machine.
_BEGIN_LIMIT_S = 120.0
# How long interrupted code may take to end; then the interpreter is ended.
_INTERRUPT_LIMIT_S = 3.0
# A fork bomb does not end with the code that began it.
_TREE_LIMIT = 64
_STDERR_BYTES = 2000
_GONE = "its variables are gone, and the next call starts a new one"

OnOutput = Callable[[OutputStream, bytes], None]


def is_interpreter(process_id: str) -> bool:
    """Return whether a background process is an interpreter of execute_python."""
    return process_id.startswith(PROCESS_PREFIX)


def process_id_of(context: str, rules: FileRules | None) -> str:
    """Return the id of a context's process under file rules."""
    known = json.dumps(None if rules is None else astuple(rules)).encode()
    return f"{PROCESS_PREFIX}{hashlib.sha256(known).hexdigest()[:_RULES_DIGITS]}-{context}"


def context_of(process_id: str) -> str:
    """Return the context of an interpreter's process."""
    return process_id[len(PROCESS_PREFIX) + _RULES_DIGITS + 1 :]


@dataclass(eq=False)
class InterpreterCall:
    """One cell in the interpreter of its context. Only one call at a time may use a context.

    What is started is confined by `rules`, and has the variables `env` while the cell runs. After a cancelled run() the
    caller has to await stop().
    """

    processes: Processes
    cell: Cell
    rules: FileRules | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    on_output: OnOutput | None = None
    _id: str = field(init=False)
    _notes: list[str] = field(init=False, default_factory=list)
    _frames: CellFrames = field(init=False)
    _offset: int = field(init=False, default=0)
    _acknowledged: int = field(init=False, default=0)
    _shown_bytes: int = field(init=False, default=0)
    _asked: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._id = process_id_of(self.cell.interpreter, self.rules)
        self._run_id = secrets.token_hex(16)
        self._frames = CellFrames(self._run_id, self._show)

    async def run(self) -> CellResult:
        """Run the cell to its end, its time limit or the interpreter's end. Raises SandboxError."""
        started = await self._have_interpreter()
        if not self.cell.code:
            return CellResult("completed", notes=tuple(self._notes))
        try:
            await self._ask(started)
            async with asyncio.timeout(_BEGIN_LIMIT_S):
                ended = await self._receive(lambda frames: frames.begun or frames.busy)
            if ended is None and not self._frames.busy:
                self._say_begun(started=started)
                async with asyncio.timeout(self.cell.timeout_s):
                    ended = await self._receive(lambda frames: frames.done)
        except TimeoutError:
            return await self._time_over()
        except BadFrames as error:
            await self._remove()
            return self._result("failed", f"the interpreter was ended, because {error}: {_GONE}")
        except NotFound:
            return self._result("cancelled", f"the interpreter was removed while it ran the code: {_GONE}")
        except DaemonLost as error:
            lost = f"the sandbox was lost while the code ran: {error.outside}. What it did may or may not be there"
            return self._result("daemon_lost", lost)
        if self._frames.busy:
            busy = (
                "it did not run: the interpreter still runs other code, of a call whose gateway was lost or of another "
                "gateway. Try again, or end it with restart: true"
            )
            return CellResult("failed", notes=(busy,))
        return self._result("failed" if self._frames.error else "completed") if ended is None else ended

    async def stop(self) -> None:
        """Interrupt the code of a call that was cancelled; end the interpreter if it does not stop. Never raises."""
        if not self._asked or self._frames.done:
            return
        try:
            if not await self._interrupt():
                await self._remove()
        except SandboxError:
            return  # the sandbox is gone, and the code with it

    # --- the process ---

    async def _have_interpreter(self) -> bool:
        """Find the context's interpreter, or start one; return whether it was started."""
        try:
            process = await self.processes.wait(self._id, wait_s=0)
        except NotFound:
            process = None
        if process is not None and process.running and not self.cell.restart:
            self._offset = self._acknowledged = process.stdout.size_bytes
            return False
        await self._make_room()
        if self.cell.code:
            await self._start()
        return bool(self.cell.code)

    async def _make_room(self) -> None:
        """Remove what is left of the context's interpreters, and say why they are not used."""
        found = [one for one in (await self.processes.list()).processes if is_interpreter(one.id)]
        others = [one for one in found if context_of(one.id) != self.cell.interpreter]
        if self.cell.code and sum(one.running for one in others) >= CONTEXTS_LIMIT:
            raise Conflict(
                f"{CONTEXTS_LIMIT} contexts have an interpreter, which is the limit of a thread: end one with its "
                "context, restart: true and no code"
            )
        for one in found:
            if one not in others:
                await self.processes.remove(one.id)
                if self.cell.restart:
                    self._notes.append("the interpreter was restarted; variables are gone")
                elif not one.running:
                    self._notes.append(f"the interpreter had ended ({_how(one)}); variables are gone")
                else:
                    self._notes.append("the interpreter was restarted, because the policy's file rules have changed")
        if self.cell.restart and len(found) == len(others):
            self._notes.append("no interpreter was running in this context")

    async def _start(self) -> None:
        argv = [PROGRAM.encode(), b"-c", _BOOT.encode()]
        spec = ProcessSpec(self._id, argv, stdin=True, ring_bytes=WINDOW_BYTES + 64 * 1024)
        await self.processes.under(self.rules, self.env).start(spec)

    async def _remove(self) -> Process | None:
        try:
            return await self.processes.remove(self._id)
        except NotFound:
            return None

    # --- the cell ---

    async def _ask(self, started: bool) -> None:
        asked = {"run": self._run_id, "code": self.cell.code, "taken": self._offset, "env": dict(self.env)}
        line = json.dumps(asked, ensure_ascii=False).encode() + b"\n"
        self._asked = True
        await self._write(b"%08d%s%s" % (len(_program()), _program(), line) if started else line)

    async def _write(self, data: bytes) -> None:
        try:
            for start in range(0, len(data), _WRITE_LIMIT_BYTES):
                piece = data[start : start + _WRITE_LIMIT_BYTES]
                await self.processes.write(self._id, piece, wait_s=_WRITE_WAIT_S)
        except (InputNotTaken, Conflict) as error:
            if isinstance(error, InputNotTaken) and not error.closed:
                raise BadFrames("it no longer reads its input") from error
            # Its input is closed: what it still wrote, and how it ended, follows.

    async def _receive(self, enough: Callable[[CellFrames], bool]) -> CellResult | None:
        """Take frames until there are enough; the result if the interpreter ends before."""
        while not enough(self._frames):
            page = await self.processes.read(
                self._id, offset=self._offset, limit_bytes=_PAGE_BYTES, wait_s=_READ_WAIT_S
            )
            self._frames.feed(page.data)
            self._offset = page.offset + len(page.data)
            if not page.data:
                process = await self.processes.wait(self._id, wait_s=_READ_WAIT_S if page.end else 0)
                if not process.running and process.stdout.size_bytes <= self._offset:
                    return await self._ended(process)
                if page.end:
                    raise BadFrames("it closed its output")
            elif self._offset - self._acknowledged > WINDOW_BYTES // 2:
                self._acknowledged = self._offset
                await self._write(b'{"taken": %d}\n' % self._offset)
        return None

    async def _interrupt(self) -> bool:
        """Interrupt the code; return whether it ended, and what it started did not get out of hand."""
        try:
            await self.processes.signal(self._id, SIGINT)
            async with asyncio.timeout(_INTERRUPT_LIMIT_S):
                ended = await self._receive(lambda frames: frames.done)
                return ended is None and (await self.processes.wait(self._id, wait_s=0)).tree <= _TREE_LIMIT
        except (TimeoutError, BadFrames, Conflict, NotFound):
            return False

    async def _time_over(self) -> CellResult:
        if not self._frames.begun:
            await self._remove()
            late = f"the interpreter did not start within {_BEGIN_LIMIT_S:g} s, and was ended: the code did not run"
            return self._result("failed", late)
        over = f"timed out after {self.cell.timeout_s:g} s"
        if await self._interrupt():
            return self._result("timed_out", f"{over} and was interrupted; variables are kept")
        await self._remove()
        over += (
            ", and the code, or what it started, did not stop when it was interrupted: the interpreter was restarted; "
            "variables are gone"
        )
        return self._result("timed_out", over)

    async def _ended(self, process: Process) -> CellResult:
        """Return the result of a cell whose interpreter has ended."""
        why = "" if self._frames.begun else await self._complaint()
        await self._remove()
        said = f"the interpreter ended ({_how(process)}){why}: {_GONE}"
        outcome = process.outcome or "failed"
        return replace(self._result(outcome, said), exit_code=process.exit_code)

    async def _complaint(self) -> str:
        """Return what it wrote before it could run code."""
        page = await self.processes.read(self._id, stderr=True, offset=0, limit_bytes=_STDERR_BYTES)
        text = page.data.decode("utf-8", "replace").strip()
        return f", and wrote: {text}" if text else ""

    def _say_begun(self, *, started: bool) -> None:
        frames = self._frames
        if started:
            self._notes.append(f"new interpreter (Python {frames.python}): it has no variables of earlier calls")
        if frames.between_bytes:
            self._notes.append(f"{frames.between_bytes} bytes were written since the last call, and come first")
        if frames.moved:
            self._notes.append(f"the working directory was gone, so the code ran in {frames.moved}")

    def _show(self, stream: OutputStream, data: bytes) -> None:
        shown = data[: max(0, self.cell.live_limit_bytes - self._shown_bytes)]
        self._shown_bytes += len(shown)
        if shown and self.on_output is not None:
            self.on_output(stream, shown)

    def _result(self, outcome: str, *notes: str) -> CellResult:
        frames = self._frames
        return CellResult(
            outcome,
            output=tuple(frames.output),
            tail=tuple(frames.tail),
            left_out_bytes=frames.left_out_bytes,
            objects=tuple(frames.objects),
            left_out_objects=frames.left_out_objects,
            error=frames.error,
            count=frames.count,
            notes=(*self._notes, *notes),
        )


def _how(process: Process) -> str:
    """Return how a process ended, in words."""
    outcome = (process.outcome or "").replace("_", " ")
    if process.outcome == "exited":
        return f"exit code {process.exit_code}"
    return f"killed by signal {process.signal}" if process.outcome == "signalled" else outcome


@cache
def _program() -> bytes:
    """Return the modules that run in the sandbox, each with its text, as JSON; the last one is the program."""
    texts = importlib.resources.files(inside)
    named = {f"{inside.__name__}.{name}": texts.joinpath(f"{name}.py").read_text("utf-8") for name in _MODULES}
    return json.dumps(named).encode()
