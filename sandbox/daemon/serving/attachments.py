"""Who uses the sandbox: the gateway processes that are attached. And its retirement, after which no call begins.

An attachment is a connection. It ends with the process or with the network between, and its use ends with it.
"""

import asyncio
from collections.abc import Callable

from sandbox.daemon.failures import check_range, exhausted
from sandbox.daemon.frames import BrokenFrame, FrameSocket
from sandbox.v1 import channel_pb2 as wire

ATTACHED_LIMIT = 64
_PROCESS_CHARS = 128
_CHANGE_INTERVAL_S = 0.05
# How long a retirement waits for calls whose process says that it has none. They are ending because their caller hung
# up, or they were faster than the word of their use, which came by another connection.
_SETTLE_S = 1.0
_SETTLE_AGAIN_S = 0.02


class Attachments:
    """All attachments. `calling` returns whether calls are under way on any connection."""

    def __init__(self, calling: Callable[[], bool]) -> None:
        self.retired = False
        self._calling = calling
        self._all: set[_Attachment] = set()

    async def serve(self, request: wire.AttachRequest, frames: FrameSocket) -> None:
        """Keep a process attached until its connection ends. Raises a Fault."""
        check_range("the length of process", len(request.process), _PROCESS_CHARS)
        if len(self._all) >= ATTACHED_LIMIT:
            raise exhausted(f"{ATTACHED_LIMIT} gateways are attached to this sandbox; that is the most")
        one = _Attachment(request.process, frames)
        self._all.add(one)
        telling = asyncio.get_running_loop().create_task(self._tell(one))
        try:
            self._note_change()
            while (frame := await frames.read()) is not None:
                await self._take(one, wire.Input.FromString(frame))
        finally:
            telling.cancel()
            self._all.discard(one)
            self._note_change()

    async def _take(self, one: "_Attachment", said: wire.Input) -> None:
        match said.WhichOneof("input"):
            case "in_use":
                one.in_use = said.in_use
                self._note_change()
            case "retire":
                await one.send(wire.Reply(retire=wire.RetireReply(refused=await self._retire(one, said.retire))))
            case _:
                raise BrokenFrame("input that an attachment does not take")

    async def _retire(self, one: "_Attachment", asked: wire.RetireRequest) -> wire.Refusal:
        refused = self._refusal(one, asked)
        for _ in range(round(_SETTLE_S / _SETTLE_AGAIN_S)):
            if refused != wire.REFUSAL_BUSY or self._in_use():
                break
            await asyncio.sleep(_SETTLE_AGAIN_S)
            refused = self._refusal(one, asked)
        # Nothing was awaited since it was judged.
        if not refused:
            self.retired = True
            self._note_change()
        return refused

    def _refusal(self, one: "_Attachment", asked: wire.RetireRequest) -> wire.Refusal:
        if not asked.busy and (self._in_use() or self._calling()):
            return wire.REFUSAL_BUSY
        if not asked.attached and self._others(one):
            return wire.REFUSAL_ATTACHED
        return wire.REFUSAL_UNSPECIFIED

    def _in_use(self, *, but: "_Attachment | None" = None) -> bool:
        return any(one.in_use for one in self._all if one is not but)

    def _others(self, one: "_Attachment") -> int:
        return len({other.process for other in self._all} - {one.process})

    def _note_change(self) -> None:
        for one in self._all:
            one.outdated.set()

    async def _tell(self, one: "_Attachment") -> None:
        """Tell a process what changes. One that does not read it gets the newest state when it does."""
        sent = None
        while True:
            await one.outdated.wait()
            one.outdated.clear()
            state = wire.Presence(others=self._others(one), others_in_use=self._in_use(but=one), retired=self.retired)
            if state != sent:
                sent = state
                try:
                    await one.send(wire.Reply(presence=state))
                except OSError:
                    return  # it hung up, which ends the attachment
                await asyncio.sleep(_CHANGE_INTERVAL_S)


class _Attachment:
    def __init__(self, process: str, frames: FrameSocket) -> None:
        self.process = process
        self.in_use = False
        self.outdated = asyncio.Event()
        self._frames = frames
        self._sending = asyncio.Lock()

    async def send(self, reply: wire.Reply) -> None:
        async with self._sending:
            await self._frames.send(reply)
