"""Parts of a gateway, for tests that are about others: real ones, over the test's database."""

from typing import Any, cast

from gateway.storage.approval_store import ApprovalStore
from gateway.storage.database import Database
from gateway.storage.quota_store import QuotaStore
from gateway.storage.store import Store
from gateway.support.heavy_work import HeavyWork
from gateway.tenancy.quotas import Quotas
from gateway.tool_calls.thread_sandbox import ThreadEngines
from gateway.tool_calls.tool_calls import ToolCalls
from sandbox.keeper.sandbox_keeper import SandboxKeeper


def made_quotas(database: Database, process: str = "gw_test") -> Quotas:
    return Quotas(QuotaStore(database, process))


def made_tool_calls(
    database: Database,
    keeper: object = None,
    *,
    store: Store | None = None,
    approvals: ApprovalStore | None = None,
    quotas: Quotas | None = None,
    engines: ThreadEngines | None = None,
    kind: type[ToolCalls] = ToolCalls,
) -> Any:
    return kind(
        store or Store(database),
        cast(SandboxKeeper, keeper),
        approvals=approvals or ApprovalStore(database),
        quotas=quotas or made_quotas(database),
        heavy_work=HeavyWork(),
        engines=engines,
    )
