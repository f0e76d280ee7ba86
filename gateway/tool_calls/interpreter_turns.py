"""Calls of execute_python in a thread: one at a time in a context, and never left running."""

import asyncio
import errno
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from agent.cancellation import to_the_end
from sandbox.errors import SandboxError
from sandbox.file_rules import FileRules
from sandbox.interpreter.cell import Cell, CellResult
from sandbox.interpreter.interpreter import PROGRAM, InterpreterCall
from sandbox.sandbox import Sandbox

_Contexts = weakref.WeakValueDictionary[str, asyncio.Lock]
_TURNS: weakref.WeakKeyDictionary[Sandbox, _Contexts] = weakref.WeakKeyDictionary()
_NO_PYTHON = f"the image has no {PROGRAM}, which execute_python needs: use an image with one, or execute"


class TurnNotCome(SandboxError):
    """Other code ran in the interpreter all the time."""


@asynccontextmanager
async def turn(sandbox: Sandbox, cell: Cell) -> AsyncIterator[None]:
    """Wait until no other call of this process uses the interpreter, up to the time limit. Raises TurnNotCome."""
    locks = _TURNS.setdefault(sandbox, weakref.WeakValueDictionary())
    lock = locks.get(cell.interpreter)
    if lock is None:
        lock = locks[cell.interpreter] = asyncio.Lock()
    try:
        async with asyncio.timeout(cell.timeout_s):
            await lock.acquire()
    except TimeoutError:
        raise TurnNotCome(
            f"it did not run: other calls used the interpreter of context {cell.interpreter!r} for "
            f"{cell.timeout_s:g} s. Wait for them, or use another context"
        ) from None
    try:
        yield
    finally:
        lock.release()


async def run_to_the_end(call: InterpreterCall) -> CellResult:
    """Run a cell; code whose call is cancelled is interrupted first."""
    try:
        return await call.run()
    except asyncio.CancelledError:
        await to_the_end(call.stop())
        raise


def interpreter_rules(rules: FileRules | None) -> FileRules | None:
    """Return the file rules of an interpreter: where they name programs, it is one of them."""
    if rules is None or rules.programs is None or PROGRAM in rules.programs:
        return rules
    return replace(rules, programs=(*rules.programs, PROGRAM))


def start_failure(error: SandboxError) -> str:
    """Return why there is no interpreter, for the model."""
    return _NO_PYTHON if error.errno == errno.ENOENT else error.outside
