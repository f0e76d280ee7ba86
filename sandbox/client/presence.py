"""Presence: the place of this gateway process at a sandbox's daemon, which is the arbiter of who uses its sandbox.

Gateways on different machines share no files to lock, but each has connections to the daemon. One of them stays open
while the process keeps the sandbox, and the daemon drops what it knows of the process when it ends, however it ends.
One that the network ended is replaced, if that succeeds at once.

The daemon is not trusted: what it says is bounded and timed out, and read at a pace that a flood does not change. One
that lies can keep its own sandbox alive, or lose it, and nothing else.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, NoReturn, Self

from sandbox.client import replies
from sandbox.client.channel import Call, Channel, HungUp
from sandbox.errors import DaemonLost, SandboxError
from sandbox.v1 import channel_pb2 as pb

Refused = Literal["busy", "attached"]

_ANSWER_TIMEOUT_S = 5.0
# The daemon says at most every 50 ms what changed. What comes sooner waits in the socket, and so does its sender.
_PACE_S = 0.025
_PRESENCE_BYTES = 64
# A connection that ends sooner is not replaced.
_ATTACHED_LEAST_S = 1.0
_NOT_ATTACHED = "this gateway is not attached to the sandbox any more"


class Presence:
    """Satisfies Uses of channel_sandbox.py. `others` is how many other processes are attached, as last heard.

    `take_ended_processes` is the engine's, which notes what ended with a stop where all processes see it.
    """

    def __init__(self, channel: Channel, process: str, take_ended_processes: Callable[[], int | None]) -> None:
        self._channel = channel
        self._process = process
        self.take_ended_processes = take_ended_processes
        self.others = 0
        self.retired = False
        self._using = self._others_in_use = False
        self._call: Call | None = None
        self._attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answer: asyncio.Future[Refused | None] | None = None
        self._retiring = asyncio.Lock()
        self._staying = asyncio.create_task(self._stay())

    @classmethod
    async def attach(
        cls, channel: Channel, process: str, take_ended_processes: Callable[[], int | None] = lambda: 0
    ) -> Self:
        """Attach this process under a name that no other one has, of 1 to 128 characters.

        Raises SandboxRetired when the sandbox is retired; Exhausted when too many processes are attached; DaemonLost.
        """
        presence = cls(channel, process, take_ended_processes)
        try:
            await presence._attached
        except BaseException:
            presence.close()
            raise
        return presence

    def begin_use(self) -> bool:
        """Tell the daemon that calls are under way, without waiting; False when the sandbox is retired or lost.

        A True may cross with another's retire(): then the first call fails with SandboxRetired and has not begun.
        """
        if self._call is None or self.retired or self._channel.lost is not None:
            return False
        try:
            self._say(self._call, pb.Input(in_use=True))
        except DaemonLost:
            return False
        self._using = True
        return True

    def end_use(self) -> None:
        self._using = False
        if self._call is not None:
            with suppress(DaemonLost):  # the use ends with the connection
                self._say(self._call, pb.Input(in_use=False))

    def in_use(self) -> bool:
        """Return whether calls of any process are under way, of others as last heard."""
        return self._call is not None and (self._using or self._others_in_use)

    async def retire(self, *, attached: bool = False, busy: bool = False) -> Refused | None:
        """Have the daemon begin no call of anybody any more, in one step; return what it refuses that for.

        It refuses while calls of any process are under way, unless `busy`, and while other processes are attached,
        unless `attached`. Raises DaemonLost, also without an answer in time; then the sandbox may be retired or not.
        """
        # One that is cancelled midway would leave an answer to the next.
        return await asyncio.shield(self._retire(pb.RetireRequest(attached=attached, busy=busy)))

    def close(self) -> None:
        """Detach; closing again is no error. The channel stays open."""
        self._call = None
        self._staying.cancel()

    async def _retire(self, request: pb.RetireRequest) -> Refused | None:
        async with self._retiring:
            if self._call is None:
                raise DaemonLost(str(self._channel.lost or _NOT_ATTACHED))
            self._answer = asyncio.get_running_loop().create_future()
            try:
                self._say(self._call, pb.Input(retire=request))
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    refused = await self._answer
            except TimeoutError as error:
                lost = DaemonLost(f"the sandbox daemon did not answer within {_ANSWER_TIMEOUT_S:.1f} s")
                self._lose(lost)
                raise lost from error
            finally:
                self._answer = None
            if (refused == "busy" and request.busy) or (refused == "attached" and request.attached):
                lost = DaemonLost(f"the sandbox daemon refuses to be retired for being {refused}, which was allowed")
                self._lose(lost)
                raise lost
            self.retired |= refused is None
            return refused

    def _say(self, call: Call, message: pb.Input) -> None:
        if call.connection.send_at_once(message):
            lost = DaemonLost("the sandbox daemon does not read who uses its sandbox")
            self._lose(lost)
            raise lost

    def _lose(self, error: DaemonLost) -> None:
        self._channel.mark_lost(error)
        self.close()

    async def _stay(self) -> None:
        """Be attached until this is closed or the daemon is lost."""
        error: SandboxError = DaemonLost(_NOT_ATTACHED)
        try:
            while True:
                async with self._channel.call(pb.Request(attach=pb.AttachRequest(process=self._process))) as call:
                    await self._listen(call)
        except SandboxError as ended:
            error = ended
        finally:
            self._settle(self._attached, error)

    async def _listen(self, call: Call) -> None:
        """Take what the daemon says until the connection ends, in a way that allows for another."""
        self._note(*await call.receive(timeout_s=_ANSWER_TIMEOUT_S))
        self._settle(self._attached)
        self._call = call
        since_s = asyncio.get_running_loop().time()
        error = DaemonLost(_NOT_ATTACHED)
        try:
            if self._using:
                self._say(call, pb.Input(in_use=True))
            while True:
                member, reply = await call.receive(timeout_s=None)
                self._note(member, reply)
                if member == "presence":
                    await asyncio.sleep(_PACE_S)
        except DaemonLost as ended:
            error = ended
            # The network between may have ended it. If the daemon did, it is not there or would do so again.
            if not isinstance(ended, HungUp) or asyncio.get_running_loop().time() - since_s < _ATTACHED_LEAST_S:
                raise
        finally:
            self._call = None
            self._settle(self._answer, error)

    @staticmethod
    def _settle(waiting: asyncio.Future[Any] | None, error: SandboxError | None = None) -> None:
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)

    def _note(self, member: str, reply: pb.Reply) -> None:
        """Note what the daemon said; raises what it failed with, and DaemonLost for what it cannot say."""
        if member == "failure" and self._call is None:
            _raise_failure(reply.failure)
        if member == "presence" and reply.ByteSize() <= _PRESENCE_BYTES:
            self.others, self._others_in_use, retired = replies.presence(reply.presence)
            self.retired |= retired
        elif member == "retire" and self._answer is not None and not self._answer.done():
            self._answer.set_result(replies.refused(reply.retire))
        else:
            raise DaemonLost(f"the sandbox daemon sent {member} out of turn, or too much of it")


def _raise_failure(failure: pb.Failure) -> NoReturn:
    if failure.kind == pb.FAILURE_KIND_INVALID_ARGUMENT:
        raise DaemonLost("the sandbox daemon does not know who uses its sandbox; rebuild the runtime image")
    replies.raise_failure(failure)
