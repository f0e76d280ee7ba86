"""The queries of request ids: which call or run has one, and what is remembered of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import bindparam, select, update

from gateway.storage.database import ConstraintViolated
from gateway.storage.prepared import Prepared
from gateway.storage.queries import Queries, mapped
from gateway.storage.tables import runs, tool_calls

REMEMBERED_US = 24 * 3600 * 1_000_000
"""How long a tool call's request id is remembered; a run's as long as the run."""

_CALL = tool_calls.c
_CALL_OF = Prepared(
    select(_CALL.id, _CALL.name, _CALL.state, _CALL.outcome, _CALL.result, _CALL.started_us)
    .add_columns(_CALL.request_digest.label("digest"))
    .where(_CALL.tenant == bindparam("of_tenant"), _CALL.request_id == bindparam("asked"))
)
# The constraint in the databases' messages: PostgreSQL has its name, SQLite its columns.
_REQUEST_ID = ("uq_tool_calls_request_id", "tool_calls.tenant, tool_calls.request_id")
FORGOTTEN = {"request_id": None, "request_digest": None, "result": None}


def is_of_request_id(error: ConstraintViolated) -> bool:
    """Return whether a call was refused because another has its request id."""
    return any(name in str(error) for name in _REQUEST_ID)


@dataclass(frozen=True)
class RequestedCall:
    """The journal's row of a call with a request id. `result` is JSON, see gateway/tool_calls/tool_request.py."""

    id: str
    name: str
    digest: str
    state: str
    outcome: str | None
    result: str | None


class RequestStore(Queries):
    """Typed access to request ids."""

    async def call_of(self, tenant: str, request_id: str) -> RequestedCall | None:
        """Return the call that a request id was given to; after 24 hours it is forgotten."""
        found = await self._database.look(_CALL_OF, {"of_tenant": tenant, "asked": request_id})
        if not found:
            return None
        row = found[0]
        if row.started_us <= self.clock() - REMEMBERED_US and row.state != "executing":
            await self.forget(tenant, row.id)
            return None
        return mapped(RequestedCall, row)

    async def remember(self, tenant: str, call_id: str, request_id: str, digest: str, result: str | None) -> bool:
        """Give a finished call its request id and remembered result; False if another call has the id."""
        kept = {"request_id": request_id, "request_digest": digest, "result": result}
        try:
            await self._change(tenant, call_id, kept)
        except ConstraintViolated:
            return False
        return True

    async def forget(self, tenant: str, call_id: str) -> None:
        await self._change(tenant, call_id, FORGOTTEN)

    async def _change(self, tenant: str, call_id: str, changes: Mapping[str, str | None]) -> None:
        whose = (_CALL.id == call_id) & (_CALL.tenant == tenant)
        await self._database.write((update(tool_calls).where(whose).values(changes), None))

    async def run_of(self, tenant: str, request_id: str) -> tuple[str, str] | None:
        query = select(runs.c.id, runs.c.request_digest).where(runs.c.tenant == tenant, runs.c.request_id == request_id)
        found = await self._database.first(query)
        return None if found is None else (found.id, found.request_digest)
