"""Whether a value fits a JSON Schema, whatever the value was made for."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from pydantic import JsonValue

from agent.capabilities.json_schema import checked, errors_of

# Doubles its work with each character of a text that does not match; a minute would be long over before it ends.
_BACKTRACKS: dict[str, JsonValue] = {"type": "string", "pattern": "^(a|a)*$"}


async def test_a_value_that_fits_has_no_errors_and_another_says_where_it_does_not() -> None:
    schema = checked({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    assert await errors_of(schema, {"n": 1}) == []
    assert await errors_of(schema, {"n": "one"}) == ["$.n: 'one' is not of type 'integer'"]


async def test_a_pattern_that_backtracks_without_bound_ends_at_the_time_limit_and_delays_no_one() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    other = asyncio.create_task(others())
    (error,) = await errors_of(checked(_BACKTRACKS), "a" * 64 + "b", limit_s=1)
    other.cancel()
    assert "could not be judged within 1 s" in error
    assert turns > 1


async def test_a_check_that_gets_no_processor_for_longer_than_its_limit_still_answers() -> None:
    before = children()
    checking = asyncio.create_task(errors_of(checked({"type": "integer"}), 1, limit_s=1))
    async with asyncio.timeout(30):
        while not (started := children() - before):
            await asyncio.sleep(0.001)
    (process,) = map(int, started)
    os.kill(process, signal.SIGSTOP)
    await asyncio.sleep(2)
    os.kill(process, signal.SIGCONT)
    assert await checking == []


async def test_a_cancelled_judgement_leaves_no_process() -> None:
    before = children()
    judging = asyncio.create_task(errors_of(checked(_BACKTRACKS), "a" * 64 + "b"))
    async with asyncio.timeout(30):
        while children() == before:
            await asyncio.sleep(0.01)
    judging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await judging
    assert children() == before


def children() -> set[str]:
    """Return the processes that this one has started and not yet waited for."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
