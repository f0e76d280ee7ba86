"""`airlock approvals watch`: a stream of approvals that survives restarts of the gateway, and a prompt for answers."""

import asyncio
import codecs
import contextlib
import json
import os
import shlex
import sys
import tempfile
import termios
import tty
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from agent.cancellation import ended
from gateway.cli import approval_view as view
from gateway.client import AirlockError, Approval, Client, Unavailable

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0


async def watched(
    airlock: Client, say: Callable[[str], None], caught_up: Callable[[], None] = lambda: None
) -> AsyncIterator[Approval]:
    """Yield the pending approvals, call `caught_up`, then yield each change; start over after an outage.

    `say` is called when the gateway goes away and when it is back. Raises Unavailable if it was never there.
    """
    was_there = gone = False
    pause_s = _FIRST_PAUSE_S

    def here() -> None:
        nonlocal was_there, gone, pause_s
        if gone:
            say("the gateway is back; showing pending approvals again")
        was_there, gone, pause_s = True, False, _FIRST_PAUSE_S

    def all_seen() -> None:
        here()
        caught_up()

    while True:
        try:
            async for approval in airlock.watch_approvals(all_seen, resume=False):
                here()
                yield approval
        except Unavailable as error:
            if not was_there:
                raise
            if not gone:
                say(f"the gateway is gone ({error}); reconnecting until Ctrl-C")
            gone = True
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


_END = ("\x03", "\x04", "q")


class Keys:
    """Reads single keys from the terminal for the length of a block."""

    def __init__(self) -> None:
        self._descriptor = sys.stdin.fileno()
        self.typed: asyncio.Queue[str] = asyncio.Queue()
        """The keys; at the end of the input, Ctrl-D."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._as_it_was: list[Any] = []

    def __enter__(self) -> Self:
        """Switch the terminal to single keys: no line editing, no echo, and Ctrl-C is a key."""
        self._as_it_was = termios.tcgetattr(self._descriptor)
        self._take()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._give_back()

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Restore the terminal for the length of a block, for an editor."""
        self._give_back()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        tty.setcbreak(self._descriptor)
        mode = termios.tcgetattr(self._descriptor)
        mode[3] &= ~termios.ISIG
        termios.tcsetattr(self._descriptor, termios.TCSANOW, mode)
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def _give_back(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._as_it_was)

    def _read(self) -> None:
        data = os.read(self._descriptor, 1024)
        if not data:
            asyncio.get_running_loop().remove_reader(self._descriptor)
        # An escape sequence, such as that of an arrow key, is one key without a meaning.
        typed = self._decoder.decode(data) or ("" if data else "\x04")
        for key in [typed] if typed.startswith("\x1b") and len(typed) > 1 else typed:
            self.typed.put_nowait(key)


class ApprovalPrompt:
    """Shows pending approvals, oldest first; an approval that another approver answers leaves the queue."""

    def __init__(self, airlock: Client, console: Console) -> None:
        self._airlock = airlock
        self._console = console
        self._waiting: dict[str, Approval] = {}
        self._changed = asyncio.Event()
        self._shown: Approval | None = None

    async def run(self) -> None:
        """Ask until the user quits. Raises the gateway's errors."""
        newest_first = await self._airlock.approvals(status="pending", limit=1000)
        self._waiting = {approval.id: approval for approval in reversed(newest_first)}
        watching = asyncio.create_task(self._watch())
        try:
            with Keys() as keys:
                await self._answer_all(keys, watching)
        finally:
            await ended(watching)

    async def _watch(self) -> None:
        reported: set[str] = set()

        def caught_up() -> None:
            """Forget approvals that were answered before the start, or while the gateway was gone."""
            for id_ in self._waiting.keys() - reported:
                del self._waiting[id_]
            self._changed.set()

        def say(said: str) -> None:
            reported.clear()
            self._shown = None
            self._console.print(said, style="yellow")

        async for approval in watched(self._airlock, say, caught_up):
            reported.add(approval.id)
            if approval.status == "pending":
                self._waiting[approval.id] = approval
            elif self._waiting.pop(approval.id, None) is not None:
                self._console.print(view.outcome(approval))
            self._changed.set()

    async def _answer_all(self, keys: Keys, watching: asyncio.Task[None]) -> None:
        self._console.print("waiting for approvals; q quits", style="dim")
        while True:
            if watching.done():
                watching.result()
                return
            await self._show_next()
            key = await self._key_or_change(keys, watching)
            if key is None:
                continue
            if key in _END:
                return
            if self._shown is not None:
                await self._act(self._shown, key, keys)

    async def _show_next(self) -> None:
        if self._shown is not None and self._shown.id in self._waiting:
            return
        try:
            self._shown = await self._next_whole()
        except AirlockError as error:  # retried with the next key, or when the gateway is back
            self._shown = None
            self._console.print(str(error), style="red")
        if self._shown is None:
            return
        self._console.print(view.panel(self._shown, waiting=len(self._waiting) - 1))
        if self._shown.proposed_rule:
            self._console.print(view.narrow(self._shown))
        self._console.print(view.choices(self._shown))

    async def _next_whole(self) -> Approval | None:
        """Return the next approval to show, with complete arguments."""
        while self._waiting:
            first = next(iter(self._waiting.values()))
            if not first.arguments_cut:
                return first
            whole = await self._airlock.approval(first.id)
            if first.id in self._waiting and whole.status == "pending":
                self._waiting[first.id] = whole
                return whole
            self._waiting.pop(first.id, None)
        return None

    async def _key_or_change(self, keys: Keys, watching: asyncio.Task[None]) -> str | None:
        self._changed.clear()
        key, change = asyncio.create_task(keys.typed.get()), asyncio.create_task(self._changed.wait())
        await asyncio.wait({key, change, watching}, return_when=asyncio.FIRST_COMPLETED)
        change.cancel()
        if key.done():
            return key.result()
        key.cancel()
        return None

    async def _act(self, approval: Approval, key: str, keys: Keys) -> None:
        if key == "s":
            self._waiting[approval.id] = self._waiting.pop(approval.id)
            self._shown = None
        answer = view.KEYS.get(key)
        if answer is None or (answer in ("run", "thread") and not approval.proposed_rule):
            return
        if answer == "run" and not approval.run_id:
            return
        text = await self._line("reason (shown to the model): ", keys) if answer == "deny" else ""
        arguments = await self._edited(approval, keys) if answer == "edit" else None
        if text is None or (answer == "edit" and arguments is None):
            self._console.print("not answered", style="dim")
            self._shown = None
            return
        try:
            done = await self._airlock.resolve_approval(approval.id, answer, text=text, arguments=arguments)  # type: ignore[arg-type]
        except AirlockError as error:
            self._console.print(str(error), style="red")
            self._shown = None
            return
        self._waiting.pop(approval.id, None)
        self._console.print(view.outcome(done))

    async def _line(self, prompt: str, keys: Keys) -> str | None:
        """Read a line, key by key; None if it was abandoned with Escape or Ctrl-C."""
        self._console.print(prompt, end="")
        typed = ""
        while (key := await keys.typed.get()) not in ("\r", "\n"):
            if key in ("\x1b", "\x03", "\x04"):
                self._console.print()
                return None
            if key in ("\x7f", "\x08"):
                typed = typed[:-1]
                self._console.file.write("\b \b")
            elif key.isprintable():
                typed += key
                self._console.file.write(key)
            self._console.file.flush()
        self._console.print()
        return typed

    async def _edited(self, approval: Approval, keys: Keys) -> Mapping[str, Any] | None:
        """Let the user edit the arguments; None if they are unchanged or not a JSON object."""
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "arguments.json"
            path.write_text(json.dumps(dict(approval.arguments), indent=2, ensure_ascii=False), encoding="utf-8")
            editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
            with keys.released():
                process = await asyncio.create_subprocess_exec(*shlex.split(editor), str(path))
                await process.wait()
            try:
                edited = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                self._console.print(f"not valid JSON: {error}", style="red")
                return None
        if not isinstance(edited, dict) or edited == dict(approval.arguments):
            return None
        return edited
