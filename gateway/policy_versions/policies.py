"""The policies in force on this gateway. The database is the authority; every gateway follows it within a second.

A tenant's policy is compiled on first use and dropped once it is unused for long, so the cost depends on the tenants in
use. Tenants with the same texts share one policy.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

import structlog

from gateway.errors import AirlockError, Misconfigured, Unavailable
from gateway.policy import Policy, PolicyDocument, PolicyError
from gateway.policy.judge import digest_of
from gateway.policy.yaml_lines import read_yaml
from gateway.storage.policy_store import OPERATOR, Change, PolicyStore
from gateway.support.background import in_background

log = structlog.get_logger(__name__)
# How many tenants' policies stay compiled without being in use; the least recently used is dropped first.
_KEPT = 256
_FOLLOW_S = 0.25
T = TypeVar("T")


@dataclass(frozen=True)
class _Layer:
    digest: str
    document: PolicyDocument


@dataclass(eq=False)
class InForce:
    """The policy in force for a tenant; `policy` is replaced when another one comes into force.

    `reference` names the texts that it consists of, for `Policies.at`. `layers` keeps both alive, so that a change of
    one does not load the other again.
    """

    policy: Policy
    reference: str = ""
    layers: tuple[_Layer, ...] = ()

    def replace(self, other: InForce) -> None:
        """Put another policy in force, for all users of this object."""
        self.policy, self.reference, self.layers = other.policy, other.reference, other.layers


class Policies:
    """Which policy is in force for which tenant."""

    def __init__(self, store: PolicyStore, *, kept: int = _KEPT) -> None:
        self.store = store
        self.compiled = 0
        """The number of compilations since the start."""
        self._kept = kept
        self._last: dict[str, Change] = {}
        self.newest = 0
        """The id of the last change that this gateway has seen, 0 for none."""
        self._in_force: WeakValueDictionary[str, InForce] = WeakValueDictionary()
        self._recent: OrderedDict[str, InForce] = OrderedDict()
        self._layers: WeakValueDictionary[str, _Layer] = WeakValueDictionary()
        self._policies: WeakValueDictionary[str, Policy] = WeakValueDictionary()
        self._loading: dict[str, asyncio.Task[InForce]] = {}
        self._compiling = asyncio.Lock()
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="policy-compiler")

    async def open(self) -> None:
        """Read what is in force, without compiling anything."""
        self._last = await self.store.last_of_each()
        self.newest = max((change.id for change in self._last.values()), default=0)

    def close(self) -> None:
        self._compiler.shutdown(wait=False, cancel_futures=True)

    def change_in_force(self, tenant: str) -> Change | None:
        """Return the change that put the current policy in force."""
        return self._last.get(tenant)

    async def in_force(self, tenant: str) -> InForce:
        """Return what is in force for a tenant; Misconfigured if there is nothing, or it no longer loads."""
        found = self._in_force.get(tenant)
        if found is None:
            loading = self._loading.get(tenant)
            if loading is None:
                loading = self._loading[tenant] = asyncio.create_task(self._load(tenant), name=f"policy of {tenant}")
                loading.add_done_callback(lambda _: self._loading.pop(tenant, None))
            # Shielded: others may wait for it too.
            found = await asyncio.shield(loading)
        self._recent[tenant] = found
        self._recent.move_to_end(tenant)
        if len(self._recent) > self._kept:
            self._recent.popitem(last=False)
        return found

    async def at(self, tenant: str, reference: str) -> InForce:
        """Return a former policy; NotFound if its texts are not stored. Concurrent callers wait for one compilation."""
        async with self._compiling:
            operator, _, own = reference.partition(":")
            layers = [await self._layer(tenant, own)]
            if operator:
                layers.append(await self._layer(OPERATOR, operator))
            policy = self._policies.get(reference)
            if policy is None:
                policy = await self._in_thread(partial(_compiled, *(layer.document for layer in layers)))
                self.compiled += 1
                self._policies[reference] = policy
            return InForce(policy, reference, tuple(layers))

    async def take(self, changes: Iterable[Change]) -> None:
        """Apply changes, in any order; policies in use are replaced before this returns."""
        touched: set[str] = set()
        for change in changes:
            self.newest = max(self.newest, change.id)
            if change.tenant not in self._last or change.id > self._last[change.tenant].id:
                self._last[change.tenant] = change
                touched.add(change.tenant)
        for tenant, in_force in list(self._in_force.items()):
            if OPERATOR in touched or tenant in touched:
                await self._update(tenant, in_force)
        # Last, since naming a version reads its text, and nothing in force should wait for a log line.
        for tenant in sorted(touched):
            change = self._last[tenant]
            version = await self.named(change)
            log.info("policy in force", tenant=tenant, version=version, kind=change.kind, by=change.by)

    async def named(self, change: Change) -> str:
        """Return the version of a change as `airlock policy history` shows it; a digest if its text does not load."""
        try:
            layer = await self._layer(change.tenant, change.digest)
            return f"policy_{digest_of(layer.document)[:12]}"
        except AirlockError:
            return change.digest

    def following(self) -> AbstractAsyncContextManager[None]:
        return in_background(self._follow_all(), "policies follow the database")

    async def _follow_all(self) -> None:
        answers = True  # logged once, not in each round
        while True:
            await asyncio.sleep(_FOLLOW_S)
            try:
                await self.take(await self.store.changes_since(self.newest))
                answers = True
            except Unavailable as error:
                if answers:
                    log.warning("policy changes are not seen; the last valid policies stay in force", error=str(error))
                answers = False
            except Exception:  # the next round may succeed
                log.exception("following the policies failed")

    async def _update(self, tenant: str, in_force: InForce) -> None:
        """Put the current policy in force; one that does not load here leaves the last good one in place."""
        try:
            while in_force.reference != (reference := self._reference(tenant)):
                loaded = await self.at(tenant, reference)
                if reference == self._reference(tenant):
                    in_force.replace(loaded)
                    log.info("calls are judged by another policy", tenant=tenant, policy=loaded.policy.version)
        except AirlockError as error:
            log.error("the last valid policy stays in force", tenant=tenant, error=str(error))  # noqa: TRY400 - one line

    async def _load(self, tenant: str) -> InForce:
        while True:
            reference = self._reference(tenant)
            loaded = await self.at(tenant, reference)
            if reference == self._reference(tenant):
                self._in_force[tenant] = loaded
                return loaded

    def _reference(self, tenant: str) -> str:
        own, operator = self._last.get(tenant), self._last.get(OPERATOR)
        if own is None:
            raise Misconfigured(
                f"tenant {tenant} has no policy, so all its calls are refused: run `airlock policy apply FILE "
                f"--tenant {tenant}`"
            )
        return f"{operator.digest if operator is not None else ''}:{own.digest}"

    async def _layer(self, tenant: str, digest: str) -> _Layer:
        found = self._layers.get(digest)
        if found is None:
            text = await self.store.text(digest)
            whose = f"tenant {tenant}" if tenant else "the operator's layer"
            try:
                document = await self._in_thread(partial(stored_document, text))
            except (PolicyError, ValueError) as error:
                raise Misconfigured(
                    f"the stored policy of {whose} no longer loads: {error}; apply a new one"
                ) from error
            found = self._layers[digest] = _Layer(digest, document)
        return found

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._compiler, work)
        except RuntimeError as error:  # the executor is shut down
            raise Unavailable("the gateway is shutting down: try again when it is back") from error


def stored_document(text: str) -> PolicyDocument:
    """Parse a stored text, without its examples, which were checked when it was applied. Raises ValueError."""
    reading = read_yaml(text)
    if reading.problems:
        raise ValueError("; ".join(problem.message for problem in reading.problems))
    return PolicyDocument.model_validate(reading.data)


def _compiled(tenant: PolicyDocument, operator: PolicyDocument | None = None) -> Policy:
    """Return a policy with everything precomputed, so that no call has to."""
    policy = Policy(tenant, operator)
    _ = (policy.version, policy.document, policy.tells_paths_apart)
    return policy
