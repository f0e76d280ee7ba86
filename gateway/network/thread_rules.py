"""Rules of single threads: they deny connections that the policy would let pass, and allow nothing.

They are read before a call of the thread begins, and again while its sandbox may connect.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import structlog

from gateway.errors import AirlockError
from gateway.policy.document import Rule
from gateway.policy.judge import Policy
from gateway.storage.entities import Thread

log = structlog.get_logger(__name__)
Read = Callable[[Thread], Awaitable[tuple[Rule, ...]]]
_KNOWN_S = 1.0


async def no_rules(_thread: Thread) -> tuple[Rule, ...]:
    """No thread has rules."""
    return ()


@dataclass(eq=False)
class _Rules:
    """The rules of a thread as they were read; `narrow` is the policy `wide` with them."""

    rules: tuple[Rule, ...] = ()
    until_s: float = 0.0
    wide: Policy | None = None
    narrow: Policy | None = None
    reading: asyncio.Task[None] | None = None


@dataclass(eq=False)
class ThreadRules:
    """The rules of threads; `read` returns those of one. They are kept for as long as a door uses them."""

    read: Read = no_rules
    clock: Callable[[], float] = time.monotonic
    _of: WeakValueDictionary[str, _Rules] = field(default_factory=WeakValueDictionary)

    async def over(self, thread: Thread, policy: Callable[[], Policy]) -> Callable[[], Policy]:
        """Return what returns the policy in force, with the rules that a thread has then.

        Raises AirlockError if they cannot be read: without them nothing may connect.
        """
        if self.read is no_rules or not policy().connects:
            return policy
        known = self._of.setdefault(thread.id, _Rules())
        await self._load(thread, known)

        def narrowed() -> Policy:
            wide = policy()
            if known.until_s < self.clock() and (known.reading is None or known.reading.done()):
                known.reading = asyncio.create_task(self._load_again(thread, known), name="network rules of a thread")
            if not known.rules:
                return wide
            if known.wide is not wide or known.narrow is None:
                document = wide.tenant_document
                rules = (*document.rules, *known.rules)
                known.narrow = Policy(document.model_copy(update={"rules": rules}), wide.operator_document)
                known.wide = wide
            return known.narrow

        return narrowed

    async def _load(self, thread: Thread, known: _Rules) -> None:
        rules = await self.read(thread)
        if rules != known.rules:
            known.rules, known.narrow = rules, None
        known.until_s = self.clock() + _KNOWN_S

    async def _load_again(self, thread: Thread, known: _Rules) -> None:
        try:
            await self._load(thread, known)
        except AirlockError as error:
            log.warning("the network rules of a thread are read again", thread=thread.name, error=str(error))
