"""Queries about request ids: which call and which run one was given to, and what is remembered of it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, select, update

from gateway.storage.database import ConstraintViolated, Database
from gateway.storage.prepared import Prepared
from gateway.storage.tables import runs, tool_calls
from gateway.support.clock import NowUs, now_us

REMEMBERED_US = 24 * 3600 * 1_000_000
"""How long a tool call's request id is remembered; a run's as long as the run is."""

_CALL = tool_calls.c
_COLUMNS = (_CALL.id, _CALL.name, _CALL.request_digest, _CALL.state, _CALL.outcome, _CALL.result, _CALL.started_us)
_CALL_OF = Prepared(
    select(*_COLUMNS).where(_CALL.tenant == bindparam("of_tenant"), _CALL.request_id == bindparam("asked"))
)
# As the databases name the constraint: PostgreSQL by its name, SQLite by its columns.
_REQUEST_ID = ("uq_tool_calls_request_id", "tool_calls.tenant, tool_calls.request_id")
_FORGOTTEN = {"request_id": None, "request_digest": None, "result": None}


def is_of_request_id(error: ConstraintViolated) -> bool:
    """Return whether a call was not written because another has its request id."""
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


class RequestStore:
    """Typed access to request ids."""

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock

    async def call_of(self, tenant: str, request_id: str) -> RequestedCall | None:
        """Return the call that a request id was given to; one of more than 24 hours ago is forgotten."""
        found = await self._database.look(_CALL_OF, {"of_tenant": tenant, "asked": request_id})
        if not found:
            return None
        row = found[0]
        if row.started_us <= self._clock() - REMEMBERED_US and row.state != "executing":
            await self.forget(tenant, row.id)
            return None
        return RequestedCall(row.id, row.name, row.request_digest, row.state, row.outcome, row.result)

    async def remember(self, tenant: str, call_id: str, request_id: str, digest: str, result: str | None) -> bool:
        """Give a call that is over its request id and what is remembered; False where another has the id."""
        kept = {"request_id": request_id, "request_digest": digest, "result": result}
        whose = (_CALL.id == call_id) & (_CALL.tenant == tenant)
        try:
            await self._database.write((update(tool_calls).where(whose).values(**kept), None))
        except ConstraintViolated:
            return False
        return True

    async def forget(self, tenant: str, call_id: str) -> None:
        """Let a call's request id be used anew."""
        whose = (_CALL.id == call_id) & (_CALL.tenant == tenant)
        await self._database.write((update(tool_calls).where(whose).values(**_FORGOTTEN), None))

    async def run_of(self, tenant: str, request_id: str) -> tuple[str, str] | None:
        """Return the id of the run that a request id was given to, and the digest of that request."""
        columns = runs.c
        query = select(columns.id, columns.request_digest).where(
            columns.tenant == tenant, columns.request_id == request_id
        )
        found = await self._database.rows(query)
        return (found[0].id, found[0].request_digest) if found else None
