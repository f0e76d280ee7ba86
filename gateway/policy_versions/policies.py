"""The policies in force on this gateway. The database is the authority; every gateway on it follows within a second.

A tenant's policy is compiled when the tenant is first heard of, and forgotten again when it has been quiet for long and
nobody holds it, so that thousands of tenants cost what those in use cost. Tenants with the same texts share one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

import structlog

from gateway.errors import AirlockError, Misconfigured, Unavailable
from gateway.policy import Policy, PolicyDocument, PolicyError
from gateway.policy.versions import digest_of
from gateway.policy.yaml_lines import read_yaml
from gateway.storage.policy_store import OPERATOR, Change, PolicyStore
from gateway.support.background import in_background

log = structlog.get_logger(__name__)
# Tenants whose policy stays compiled; beyond that the one that was quiet for longest is forgotten.
_KEPT = 256
_FOLLOW_S = 0.25
T = TypeVar("T")


@dataclass(frozen=True)
class _Layer:
    digest: str
    document: PolicyDocument


class InForce:
    """What is in force for a tenant: `policy` is another one from the moment on that another is in force.

    `reference` names the texts that it is made of, for `Policies.version`.
    """

    def __init__(self, policy: Policy, reference: str = "", layers: tuple[_Layer, ...] = ()) -> None:
        self.policy = policy
        self.reference = reference
        self._layers = layers  # held, so that a change of one layer does not read the other one again

    def fixed(self) -> InForce:
        """Return what does not follow any more."""
        return InForce(self.policy, self.reference, self._layers)

    def replace(self, other: InForce) -> None:
        """Put another policy in force, for all that hold this."""
        self.policy, self.reference, self._layers = other.policy, other.reference, other._layers


class Policies:
    """Which policy is in force for whom."""

    def __init__(self, store: PolicyStore, *, kept: int = _KEPT) -> None:
        self.store = store
        self.compiled = 0
        """How many policies were compiled since the start."""
        self._kept = kept
        self._last: dict[str, Change] = {}
        self._newest = 0
        self._in_force: WeakValueDictionary[str, InForce] = WeakValueDictionary()
        self._recent: OrderedDict[str, InForce] = OrderedDict()
        self._layers: WeakValueDictionary[str, _Layer] = WeakValueDictionary()
        self._policies: WeakValueDictionary[str, Policy] = WeakValueDictionary()
        self._loading: dict[str, asyncio.Task[InForce]] = {}
        self._compiling = asyncio.Lock()
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="policy-compiler")

    async def open(self) -> None:
        """Look at what is in force; nothing is compiled for that."""
        self._last = await self.store.last_of_each()
        self._newest = max((change.id for change in self._last.values()), default=0)

    def close(self) -> None:
        """Stop compiling."""
        self._compiler.shutdown(wait=False, cancel_futures=True)

    def change_in_force(self, tenant: str) -> Change | None:
        """Return the change that put in force what is in force."""
        return self._last.get(tenant)

    @property
    def newest(self) -> int:
        """The id of the last change that this gateway knows of, 0 for none."""
        return self._newest

    async def in_force(self, tenant: str) -> InForce:
        """Return what is in force for a tenant. Misconfigured where there is nothing, or it does not load any more."""
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

    async def current(self, tenant: str) -> Policy:
        """Return the policy that is in force now."""
        return (await self.in_force(tenant)).policy

    async def version(self, tenant: str, reference: str) -> Policy:
        """Return a policy that was in force once, by the reference that a run has kept of it."""
        return (await self.at(tenant, reference)).policy

    async def at(self, tenant: str, reference: str) -> InForce:
        """Return a policy that was in force once, fixed; NotFound when its texts are not stored."""
        return await self._made(tenant, reference)

    async def take(self, changes: Iterable[Change]) -> None:
        """Take note of changes, in any order; what is in use is replaced before this returns."""
        touched: set[str] = set()
        for change in changes:
            self._newest = max(self._newest, change.id)
            if _is_later(change, self._last.get(change.tenant)):
                self._last[change.tenant] = change
                touched.add(change.tenant)
        for tenant, seat in list(self._in_force.items()):
            if OPERATOR in touched or tenant in touched:
                await self._follow(tenant, seat)
        # Last, for to name a version is to read it, and nothing in force waits for a log.
        for tenant in sorted(touched):
            change = self._last[tenant]
            version = await self.named(change)
            log.info("policy in force", tenant=tenant, version=version, kind=change.kind, by=change.by)

    async def named(self, change: Change) -> str:
        """Return the version of a change as `airlock policy history` has it; a digest where its text does not load."""
        try:
            return version_of((await self._layer(change.tenant, change.digest)).document)
        except AirlockError:
            return change.digest

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the changes that others make, until the block ends."""
        async with in_background(self._follow_all(), "policies follow the database"):
            yield

    async def _follow_all(self) -> None:
        answers = True
        while True:
            await asyncio.sleep(_FOLLOW_S)
            try:
                await self.take(await self.store.changes_since(self._newest))
                answers = True
            except Unavailable as error:
                if answers:
                    log.warning("changes of policies are not seen; the last good ones hold", error=str(error))
                answers = False
            except Exception:  # the next look may go well, and must come
                log.exception("fault while following the policies")

    async def _follow(self, tenant: str, seat: InForce) -> None:
        """Put into a seat what is in force; what does not load here leaves the last good one there."""
        try:
            while seat.reference != (reference := self._reference(tenant)):
                made = await self._made(tenant, reference)
                if reference == self._reference(tenant):
                    seat.replace(made)
                    log.info("calls are judged by another policy", tenant=tenant, policy=made.policy.version)
        except AirlockError as error:
            log.error("the last valid policy stays in force", tenant=tenant, error=str(error))  # noqa: TRY400 - it says why

    async def _load(self, tenant: str) -> InForce:
        while True:
            reference = self._reference(tenant)
            made = await self._made(tenant, reference)
            if reference == self._reference(tenant):
                self._in_force[tenant] = made
                return made

    def _reference(self, tenant: str) -> str:
        own, operator = self._last.get(tenant), self._last.get(OPERATOR)
        if own is None:
            raise Misconfigured(
                f"tenant {tenant} has no policy, so all its calls are refused: run `airlock policy apply FILE "
                f"--tenant {tenant}`"
            )
        return f"{operator.digest if operator is not None else ''}:{own.digest}"

    async def _made(self, tenant: str, reference: str) -> InForce:
        """Return a policy of the texts that a reference names; who comes while it is compiled waits for that one."""
        async with self._compiling:
            return await self._make(tenant, reference)

    async def _make(self, tenant: str, reference: str) -> InForce:
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
        """Compile without holding up the calls of others."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._compiler, work)
        except RuntimeError as error:  # the executor is shut down
            raise Unavailable("the gateway is shutting down: try again when it is back") from error


def stored_document(text: str) -> PolicyDocument:
    """Return what a stored text says: its examples were true when it was applied. Raises ValueError."""
    reading = read_yaml(text)
    if reading.problems:
        raise ValueError("; ".join(problem.message for problem in reading.problems))
    return PolicyDocument.model_validate(reading.data)


def layered(tenant: PolicyDocument, operator: PolicyDocument | None = None) -> Policy:
    """Return the policy that two layers make together."""
    return Policy(tenant) if operator is None else Policy(tenant, operator)


def version_of(document: PolicyDocument) -> str:
    """Return the version of one layer by itself; nothing is compiled for that."""
    return f"policy_{digest_of(document)[:12]}"


def _compiled(tenant: PolicyDocument, operator: PolicyDocument | None = None) -> Policy:
    """Return a policy with all that is worked out of it once, so that no call has to."""
    policy = layered(tenant, operator)
    _ = (policy.version, policy.document, policy.tells_paths_apart)
    return policy


def _is_later(change: Change, known: Change | None) -> bool:
    return known is None or change.id > known.id
