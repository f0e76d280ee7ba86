from __future__ import annotations

import asyncio
import gc

import pytest

from gateway.errors import Unavailable
from gateway.network.thread_rules import ThreadRules
from gateway.policy import Policy, PolicyDocument
from gateway.policy.document import Rule
from gateway.storage.entities import Thread

_THREAD = Thread("thr_1", "acme", "t")
_DENY = Rule(id="denied", tools=("connect",), effect="deny", reason="For the test.")


def _policy() -> Policy:
    wide = {
        "id": "wide",
        "tools": ("connect",),
        "hosts": ("example.com",),
        "effect": "allow",
        "reason": "For the test.",
    }
    return Policy(PolicyDocument.model_validate({"version": 1, "rules": (wide,)}))


def _allows(policy: Policy) -> bool:
    return policy.judge("connect", {"host": "example.com", "port": 443}).verdict == "allow"


class Read:
    """Returns the rules of every thread, or fails."""

    def __init__(self) -> None:
        self.rules: tuple[Rule, ...] = ()
        self.fails = False
        self.reads = 0

    async def __call__(self, thread: Thread) -> tuple[Rule, ...]:
        self.reads += 1
        if self.fails:
            raise Unavailable("no database")
        return self.rules


async def test_rules_hold_from_the_call_that_reads_them_also_for_an_earlier_one() -> None:
    read, policy = Read(), _policy()
    rules = ThreadRules(read, lambda: 0.0)
    first = await rules.over(_THREAD, lambda: policy)
    assert first() is policy
    read.rules = (_DENY,)
    second = await rules.over(_THREAD, lambda: policy)
    assert [_allows(first()), _allows(second())] == [False, False]
    assert first() is second()


async def test_rules_are_read_again_while_they_are_used_and_stay_if_that_fails() -> None:
    read, policy, now_s = Read(), _policy(), 0.0
    rules = ThreadRules(read, lambda: now_s)
    read.rules = (_DENY,)
    narrowed = await rules.over(_THREAD, lambda: policy)
    now_s, read.fails = 10.0, True
    assert not _allows(narrowed())
    await asyncio.sleep(0)
    assert read.reads == 2
    read.rules, read.fails = (), False
    narrowed()
    await asyncio.sleep(0)
    assert _allows(narrowed())


async def test_without_its_rules_nothing_of_a_thread_may_connect() -> None:
    read, policy = Read(), _policy()
    read.fails = True
    with pytest.raises(Unavailable):
        await ThreadRules(read).over(_THREAD, lambda: policy)


async def test_a_policy_that_lets_nothing_connect_needs_none() -> None:
    read, policy = Read(), Policy(PolicyDocument(version=1))
    read.fails = True
    assert (await ThreadRules(read).over(_THREAD, lambda: policy))() is policy


async def test_rules_are_kept_only_while_they_are_used() -> None:
    policy = _policy()
    rules = ThreadRules(Read())
    narrowed = await rules.over(_THREAD, lambda: policy)
    assert len(rules._of) == 1
    del narrowed
    gc.collect()
    assert len(rules._of) == 0
