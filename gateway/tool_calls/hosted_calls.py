"""The tool calls of a run that is hosted here, and may go on in another process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from agent.messages import ToolCall
from agent.tools.recovery import EarlierCall
from gateway.storage.run_writes import Claim, LeaseLost
from gateway.storage.store import Store
from gateway.support.retry import retried
from gateway.tool_calls.journaled_result import earlier_call


class HostedCalls:
    """Whose run it is, as long as it is, and which results of its step are stored. Without `host` it has no host."""

    def __init__(self, store: Store) -> None:
        self.claim: Claim | None = None
        self.read_only: frozenset[str] = frozenset()
        self.abandoned = False
        self._store = store
        self._lease_over: Callable[[], bool] = lambda: False

    def host(self, claim: Claim, read_only: Collection[str], lease_over: Callable[[], bool] = lambda: False) -> None:
        """Write for a run that is hosted here: as long as it is, and with its calls' results until they are kept.

        `read_only` are the tools whose calls may be made again when they were interrupted. No call begins once
        `lease_over`, which a process that was stopped in the midst of it finds out last.
        """
        self.claim, self.read_only, self._lease_over = claim, frozenset(read_only), lease_over

    def abandon(self) -> None:
        """Let no further call begin and write nothing more: the run goes on elsewhere, and finds it as it is."""
        self.abandoned = True

    def check(self, run_id: str | None) -> None:
        """Raise LeaseLost where the run is another process' by now."""
        if self.abandoned or self._lease_over():
            raise LeaseLost(run_id)

    async def earlier(self, calls: Sequence[ToolCall]) -> Mapping[str, EarlierCall]:
        """Return what an earlier process made of these calls, but for those that may be made (again)."""
        if self.claim is None:
            return {}
        ids = [call.id for call in calls]
        # The run has been taken: what cannot be read now must not be its end.
        read = partial(self._store.take_over_calls, self.claim, ids)
        rows = await retried(read, run_id=self.claim.run_id, what="its earlier calls")
        again = {
            id_ for id_, row in rows.items() if row["read_only"] and row["state"] != "blocked" and row["result"] is None
        }
        return {id_: earlier_call(row) for id_, row in rows.items() if id_ not in again}
