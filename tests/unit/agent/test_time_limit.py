"""Work under a time limit that begins to count only where the work waits."""

from __future__ import annotations

import asyncio

import pytest

from agent.cancellation import within


def _in(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_work_that_never_waits_gives_its_result_and_its_errors() -> None:
    async def gives() -> int:
        return 3

    async def fails() -> int:
        raise KeyError("a")

    assert await within(_in(0), gives()) == 3
    with pytest.raises(KeyError):
        await within(_in(0), fails())


async def test_work_that_waits_goes_on_with_what_it_waited_for() -> None:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def waits() -> int:
        await asyncio.sleep(0)
        first = await answer
        async with asyncio.timeout(60):
            return first + await asyncio.to_thread(lambda: 1)

    asyncio.get_running_loop().call_soon(answer.set_result, 3)
    assert await within(_in(60), waits()) == 4
    assert await within(_in(60), answer) == 3


async def test_an_error_of_what_it_waits_for_arrives_where_it_waits() -> None:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def cleans_up() -> int:
        try:
            return await answer
        except KeyError:
            return 5

    asyncio.get_running_loop().call_soon(answer.set_exception, KeyError("a"))
    assert await within(_in(60), cleans_up()) == 5


async def test_the_limit_ends_work_that_waits_and_lets_it_clean_up() -> None:
    cleaned: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    with pytest.raises(TimeoutError):
        await within(_in(0), waits())
    assert cleaned == ["up"]


async def test_a_cancellation_reaches_the_work_and_is_no_expiry() -> None:
    reached: list[str] = []
    began = asyncio.Event()

    async def waits() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            reached.append("work")
            raise

    task = asyncio.create_task(within(_in(60), waits()))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reached == ["work"]
