"""The tool calls of a run that is hosted here, and may go on in another process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from agent.messages import ToolCall
from agent.tools.recovery import EarlierCall
from gateway.storage.run_writes import Claim, LeaseLost
from gateway.storage.store import Store
from gateway.support.background import retried
from gateway.tool_calls.journaled_result import earlier_call


class HostedCalls:
    """The claim of the gateway that hosts the run. Calls that belong to no run never call `host`."""

    def __init__(self, store: Store) -> None:
        self.claim: Claim | None = None
        self.read_only: frozenset[str] = frozenset()
        self.abandoned = False
        self._store = store
        self._lease_over: Callable[[], bool] = lambda: False

    def host(self, claim: Claim, read_only: Collection[str], lease_over: Callable[[], bool] = lambda: False) -> None:
        """Write for a run under its claim, with the calls' results until their step is kept.

        `read_only` are the tools whose interrupted calls may be made again. No call begins once `lease_over` returns
        True: a process that was stopped finds out last that its lease expired.
        """
        self.claim, self.read_only, self._lease_over = claim, frozenset(read_only), lease_over

    def abandon(self) -> None:
        """Begin no further call and write nothing more: the run continues on another gateway from what is stored."""
        self.abandoned = True

    def check(self, run_id: str | None) -> None:
        """Raise LeaseLost if another process hosts the run by now."""
        if self.abandoned or self._lease_over():
            raise LeaseLost(run_id)

    async def earlier(self, calls: Sequence[ToolCall]) -> Mapping[str, EarlierCall]:
        """Return the outcomes of these calls in an earlier process; calls that may be made again are left out."""
        if self.claim is None:
            return {}
        ids = [call.id for call in calls]
        # The run is claimed: a failed read must not end it.
        read = partial(self._store.take_over_calls, self.claim, ids)
        rows = await retried(read, run_id=self.claim.run_id, what="its earlier calls")
        again = {
            id_ for id_, row in rows.items() if row["read_only"] and row["state"] != "blocked" and row["result"] is None
        }
        return {id_: earlier_call(row) for id_, row in rows.items() if id_ not in again}
