"""A hook serves many calls at once and keeps nothing of them: what it must know later is in the call's context."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from agent.hooks.hook import Hook
from gateway.config.model_settings import ModelSettings
from gateway.policy.document import PolicyDocument, QuotasSection, RedactionSection, ResultRule, Rule
from gateway.policy.judge import Policy
from gateway.runs.checkpoints import ThreadHistoryHook
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.database import Database
from gateway.storage.store import Store
from gateway.support.heavy_work import HeavyWork
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.tool_calls import NewCall, ToolCalls
from tests.unit.agent.fakes import kinds_of
from tests.unit.gateway.made_parts import made_quotas
from tests.unit.gateway.telemetry.seen import watching
from tests.unit.gateway.tool_calls.test_requested_calls import Sandbox

_AT_ONCE = 64
_DOCUMENT = PolicyDocument(
    version=1,
    rules=(Rule(id="any", tools=("execute",), effect="allow", reason="a test", at_once=100),),
    quotas=QuotasSection(tool_calls_per_minute=1000, bytes_per_day=1_000_000),
    redaction=RedactionSection(),
    results=(ResultRule(id="none", tools=("execute",), contains="never", reason="a test"),),
)
_TENANT = Tenant("acme", Policy(_DOCUMENT), ModelSettings(), {})


def _kept(thing: object, depth: int = 0) -> object:
    """Return what a hook holds, its own parts included, in a form that can be compared later."""
    if isinstance(thing, dict | list | set | frozenset | tuple):
        return type(thing), sorted(repr(one) for one in thing)
    if depth == 0 or (depth < 3 and type(thing).__module__.startswith(("gateway.tool_calls", "gateway.redaction"))):
        return {name: _kept(value, depth + 1) for name, value in vars(thing).items()}
    return id(thing)


def _texts_in(thing: object, seen: set[int]) -> Iterator[str]:
    """Yield the texts in a hook and in all that it refers to, but for the database."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, str):
        yield thing
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from _texts_in(key, seen)
            yield from _texts_in(value, seen)
    elif isinstance(thing, Collection):
        for member in thing:
            yield from _texts_in(member, seen)
    elif type(thing).__module__.startswith(("agent.", "gateway.")) and not isinstance(thing, Store | ApprovalStore):
        yield from _texts_in(getattr(thing, "__dict__", {}), seen)


async def test_hooks_used_by_many_calls_at_once_hold_nothing_that_changed(sqlite_url: str) -> None:
    database, sandbox = await Database.open(sqlite_url), Sandbox()
    try:
        keeper: Any = sandbox
        calls = ToolCalls(
            Store(database),
            keeper,
            approvals=ApprovalStore(database),
            quotas=made_quotas(database),
            heavy_work=HeavyWork(),
            telemetry=watching().telemetry,
        )
        path = await calls._tool_path(_TENANT, "t")
        # That of a run's thread keeps the thread, serves this run alone, and sees none of its calls.
        assert vars(ThreadHistoryHook).keys().isdisjoint(("before_tool_use", "around_tool_use", "after_tool_use"))
        every = {kind for kind in kinds_of(Hook) if kind.__module__.startswith("gateway.")} - {ThreadHistoryHook}
        assert {type(hook) for hook in path.hooks} == every
        before = [_kept(hook) for hook in path.hooks]
        sandbox.free.clear()
        under_way = [
            asyncio.create_task(calls.call(_TENANT, NewCall("t", "execute", f'{{"command": "true {number}"}}')))
            for number in range(_AT_ONCE)
        ]
        async with asyncio.timeout(60):
            for _ in under_way:
                await sandbox.began.get()
            assert [_kept(hook) for hook in path.hooks] == before
            seen: set[int] = set()
            kept = {text for hook in path.hooks for text in _texts_in(hook, seen)}
            sandbox.free.set()
            ended: Collection[Any] = await asyncio.gather(*under_way)
        assert {one.result.outcome for one in ended} == {"exited"}
        assert kept.isdisjoint(one.execution.call.id for one in ended)
        assert [_kept(hook) for hook in path.hooks] == before
        await calls.close()
    finally:
        await database.close()
