"""Sandboxes in the Python client: which live and what they use; making, stopping and deleting one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from gateway.client.sandbox_stats import SandboxStats, stats_of
from gateway.client.sandbox_transitions import SandboxTransition, state_name, state_number, transition_of
from gateway.client.wire import Wire, message
from gateway.v1 import sandbox_service_pb2 as pb
from gateway.v1 import sandbox_service_pb2_grpc as grpc_pb

_PAGE = 200
_TIMES: tuple[Literal["idle_since", "stops_at", "stopped_since", "removes_at"], ...] = (
    "idle_since",
    "stops_at",
    "stopped_since",
    "removes_at",
)


@dataclass(frozen=True)
class Sandbox:
    """A container with a thread's workspace. `calls` are under way in it on the gateway that answered.

    `state` is creating, running, idle_stopped, failed, or removed. One that nobody uses has `idle_since`, and stops at
    `stops_at`; one that is stopped has `stopped_since`, and goes at `removes_at`, both if nobody asks for it.
    """

    id: str
    thread: str
    image: str
    runtime: str
    created_at: datetime
    calls: int
    state: str = "running"
    idle_since: datetime | None = None
    stops_at: datetime | None = None
    stopped_since: datetime | None = None
    removes_at: datetime | None = None


class SandboxCalls(Wire):
    """The calls of SandboxService."""

    @property
    def _sandboxes(self) -> Any:
        return self._stub(grpc_pb.SandboxServiceStub)

    async def sandboxes(self, *, runtime: str = "", image: str = "", state: str = "") -> AsyncIterator[Sandbox]:
        """Yield the tenant's sandboxes, running, stopped or being made, by id, a page at a time as it is asked for.

        Those of a `runtime` (runc, runsc), of an `image`, as the policy names it, or in a `state`, where one is given.
        """
        token, wanted = "", {"runtime": runtime, "image": image, "state": state_number(state)}
        while True:
            request = message(pb.ListSandboxesRequest, page_size=_PAGE, page_token=token, **wanted)
            page = await self._unary(self._sandboxes.ListSandboxes, request, safe=True)
            for one in page.sandboxes:
                yield _sandbox(one)
            token = page.next_page_token
            if not token:
                return

    async def sandbox_transitions(self, *, thread: str | None = None) -> AsyncIterator[SandboxTransition]:
        """Yield what became of the tenant's sandboxes, or of one thread's, the newest first, a page at a time.

        Raises NotFound where there is no such thread.
        """
        token = ""
        while True:
            request = message(pb.ListSandboxTransitionsRequest, page_size=_PAGE, page_token=token, thread=thread)
            page = await self._unary(self._sandboxes.ListSandboxTransitions, request, safe=True)
            for one in page.transitions:
                yield transition_of(one)
            token = page.next_page_token
            if not token:
                return

    async def watch_sandbox_transitions(
        self, *, thread: str | None = None, after_id: int | None = None
    ) -> AsyncIterator[SandboxTransition]:
        """Yield what becomes of the tenant's sandboxes, or of one thread's, as it happens, without end.

        After an id, 0 for all that is told; without one what comes from now on. Where the connection breaks, or the
        gateway is restarted, it goes on after the last that came, as long as the client's Retry says.
        """
        if after_id is None:
            after_id = 0
            async for newest in self.sandbox_transitions():
                after_id = newest.id
                break

        def request() -> pb.WatchSandboxTransitionsRequest:
            return message(pb.WatchSandboxTransitionsRequest, thread=thread, after_id=after_id)

        async for said in self._resumed(self._sandboxes.WatchSandboxTransitions, request):
            if said.HasField("transition"):
                one = transition_of(said.transition)
                yield one
                after_id = one.id

    async def get_sandbox(self, thread: str) -> Sandbox:
        """Return the sandbox of a thread, in whatever state. Raises NotFound where there is none."""
        request = message(pb.GetSandboxRequest, thread=thread)
        return _sandbox((await self._unary(self._sandboxes.GetSandbox, request, safe=True)).sandbox)

    async def stop_sandbox(self, thread: str) -> Sandbox:
        """Stop the sandbox of a thread with all that runs in it, and return it as it is then. Its files stay.

        The thread's next call, or resume_sandbox(), starts it again. One that is stopped already is returned as it is,
        one that is not to stay is `removed`. Raises NotFound where there is none, and SandboxBusy while a call is under
        way in it, on whichever gateway.
        """
        request = message(pb.StopSandboxRequest, thread=thread)
        return _sandbox((await self._unary(self._sandboxes.StopSandbox, request, safe=True)).sandbox)

    async def create_sandbox(self, thread: str) -> Sandbox:
        """Return the sandbox of a thread, made ahead of its first call where none lives; it answers by then."""
        request = message(pb.CreateSandboxRequest, thread=thread)
        return _sandbox((await self._unary(self._sandboxes.CreateSandbox, request, safe=True)).sandbox)

    async def resume_sandbox(self, thread: str) -> Sandbox:
        """Return the sandbox of a thread, started again where it was stopped.

        Raises NotFound where the thread has none, stopped or not.
        """
        request = message(pb.ResumeSandboxRequest, thread=thread)
        return _sandbox((await self._unary(self._sandboxes.ResumeSandbox, request, safe=True)).sandbox)

    async def delete_sandbox(self, thread: str) -> Sandbox | None:
        """Remove the sandbox of a thread and its files, for good; return the sandbox as it was, None where none was.

        The key needs the scope `files`. Raises NotFound where there is nothing, also because an answer was lost and it
        is done already; SandboxBusy while a call is under way in it, and ThreadBusy while a run is in the thread.
        """
        request = message(pb.DeleteSandboxRequest, thread=thread)
        answer = await self._unary(self._sandboxes.DeleteSandbox, request, safe=True)
        return _sandbox(answer.sandbox) if answer.HasField("sandbox") else None

    async def get_sandbox_stats(self, thread: str) -> SandboxStats:
        """Return what the sandbox of a thread uses. Raises NotFound where none lives."""
        request = message(pb.GetSandboxStatsRequest, thread=thread)
        return stats_of((await self._unary(self._sandboxes.GetSandboxStats, request, safe=True)).stats)

    async def watch_sandbox_stats(
        self, thread: str | None = None, *, interval_s: float = 2.0, readings: int = 0
    ) -> AsyncIterator[Sequence[SandboxStats]]:
        """Yield what all sandboxes of the tenant use, or that of a thread, every `interval_s`, 0.5 to 60.

        It ends after so many `readings`, 0 for never, and goes on over a gateway's restart as long as the Retry says.
        NotFound where the thread has no sandbox at the start.
        """
        told = 0

        def request() -> pb.WatchSandboxStatsRequest:
            left = readings - told if readings else 0
            return message(
                pb.WatchSandboxStatsRequest, thread=thread, interval_ms=round(interval_s * 1000), readings=left
            )

        async for reading in self._resumed(self._sandboxes.WatchSandboxStats, request, patient=False):
            told += 1
            yield [stats_of(one) for one in reading.stats]
            if told == readings:
                return


def _sandbox(one: pb.Sandbox) -> Sandbox:
    return Sandbox(
        one.id,
        one.thread,
        one.image,
        one.runtime,
        one.created_at.ToDatetime(UTC),
        one.calls,
        state_name(one.state),
        **{name: getattr(one, name).ToDatetime(UTC) for name in _TIMES if one.HasField(name)},
    )
