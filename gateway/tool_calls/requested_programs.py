"""Programs and background processes with request ids: each starts once, however often it is requested.

    first time                      it runs; how it ended is written with its outcome
    while it runs, or is started    InProgress
    it ran, its outcome unwritten   Unavailable here, InProgress on another gateway
    later, a program                how it ended, without its output
    later, a process                the process as it is now; NotFound once it is gone
    a start that failed             it is started anew
    its gateway was lost meanwhile  a program was interrupted; a process is there, or NotFound
    another program, same id        RequestIdReused

Unlike a tool call (requested_calls.py) a program ends with its connection, the only reader of its output.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from gateway.errors import NotFound
from gateway.storage.call_journal import RequestedCall, RequestStore
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.outcome_retry_queue import OutcomeRetryQueue
from gateway.tool_calls.program_calls import EndedProgram, Program
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from gateway.tool_calls.tool_request import StoredResult, ToolRequest
from sandbox.protocols import Process, ProgramResult

_LOST = "the gateway was lost while it ran: what it had done by then is not known, and it was not run again"
_CUT_OFF = "it was ended before it was over, for its caller went away; it was not run again"
_ID_CHARS = 32


def program_request(
    request_id: str, kind: str, thread: str, program: Program, how: Mapping[str, JsonValue]
) -> ToolRequest | None:
    """Return the request of a program, None if it has no id; `kind` is the RPC, `how` its other fields."""
    if not request_id:
        return None
    content: list[JsonValue] = [list(program.argv), program.cwd, dict(program.env), dict(how)]
    return ToolRequest.of(request_id, thread, kind, json.dumps(content, sort_keys=True))


def made_process_id(tenant: Tenant, request: ToolRequest) -> str:
    """Return the id of a process whose caller gave none: the same for the same request on every gateway."""
    content = json.dumps([tenant.name, request.thread, request.id])
    return f"proc_{hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest()[:_ID_CHARS]}"


@dataclass(frozen=True)
class RequestedPrograms:
    """Looks up earlier requests; `late` has the unwritten outcomes of this process."""

    store: RequestStore
    late: OutcomeRetryQueue

    async def ended(self, tenant: Tenant, request: ToolRequest) -> EndedProgram | None:
        """Return how the program of the same request ended, None if there was none.

        Raises RequestIdReused, and InProgress while it runs.
        """
        stored = await self._earlier(tenant, request)
        if stored is None:
            return None
        remembered = StoredResult.remembered(stored)
        if remembered is None:
            return EndedProgram(stored.id, ProgramResult("interrupted", message=_LOST))
        if remembered.program is not None:
            return EndedProgram(stored.id, remembered.program)
        said = _CUT_OFF if remembered.outcome == "cancelled" else remembered.content.decode("utf-8", "replace")
        return EndedProgram(stored.id, ProgramResult("cancelled", message=said))

    async def process(
        self, tenant: Tenant, request: ToolRequest, sandbox: ThreadSandbox, process_id: str, argv: Sequence[bytes]
    ) -> Process | None:
        """Return the process that the same request started, None if it is to be started.

        Raises RequestIdReused, InProgress while it is being started, and NotFound where it is gone.
        """
        stored = await self._earlier(tenant, request)
        if stored is None:
            return None
        remembered = StoredResult.remembered(stored)
        failed = remembered is not None and remembered.is_error
        # A start may have failed because another process has the id.
        if not failed or (remembered is not None and remembered.outcome == "cancelled"):
            found = await self.kept(sandbox, process_id, argv)
            if found is not None:
                return found
        if not failed:
            raise NotFound(
                f"request {request.id!r} started the process {process_id}, which no longer exists: it or its "
                "sandbox was removed"
            )
        await self.store.forget(tenant.name, stored.id)
        return None

    async def kept(self, sandbox: ThreadSandbox, process_id: str, argv: Sequence[bytes]) -> Process | None:
        """Return the background process with an id, if it runs this argv, as far as that is known."""
        shown = b"\0".join(argv)
        found = (await sandbox.list_processes()).processes
        return next((one for one in found if one.id == process_id and shown.startswith(b"\0".join(one.argv))), None)

    async def _earlier(self, tenant: Tenant, request: ToolRequest) -> RequestedCall | None:
        stored = await self.store.call_of(tenant.name, request.id)
        if stored is not None:
            request.check_ended(stored, self.late)
        return stored
