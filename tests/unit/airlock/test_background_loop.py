"""A loop in a thread of its own, for callers in other loops, and the one that a process shares."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from airlock import ClientClosed, WrongEventLoop
from airlock.background_loop import BackgroundLoop, shared_loop


async def _nothing() -> None:
    pass


async def _endless(began: threading.Event, ended: threading.Event) -> None:
    began.set()
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()


@pytest.fixture
def background() -> Iterator[BackgroundLoop]:
    loop = BackgroundLoop()
    yield loop
    loop.close(_nothing)


def test_several_loops_await_what_runs_in_one(background: BackgroundLoop) -> None:
    async def thread() -> str:
        return threading.current_thread().name

    assert {asyncio.run(background.awaited(thread())) for _ in range(2)} == {"airlock-client"}


async def test_what_it_raises_is_raised(background: BackgroundLoop) -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        await background.awaited(fail())


async def test_cancelling_the_await_cancels_it(background: BackgroundLoop) -> None:
    began, ended = threading.Event(), threading.Event()
    waiting = asyncio.create_task(background.awaited(_endless(began, ended)))
    await asyncio.to_thread(began.wait, 30)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(ended.wait, 30)


async def test_closing_ends_what_is_awaited_and_says_so(background: BackgroundLoop) -> None:
    began, ended = threading.Event(), threading.Event()
    waiting = asyncio.create_task(background.awaited(_endless(began, ended)))
    await asyncio.to_thread(began.wait, 30)
    await asyncio.to_thread(background.close, _nothing)
    with pytest.raises(ClientClosed, match="closed while the call was under way"):
        await waiting
    with pytest.raises(ClientClosed, match="make another"):
        await background.awaited(_nothing())


def test_its_own_thread_cannot_await_it(background: BackgroundLoop) -> None:
    async def awaits() -> None:
        await background.awaited(_nothing())

    with pytest.raises(WrongEventLoop):
        background.run(awaits())


_FORKS = """
import asyncio, os, threading
from airlock.background_loop import shared_loop

async def thread():
    return threading.get_native_id()

first = shared_loop().run(thread())
assert asyncio.run(shared_loop().awaited(thread())) == first
child = os.fork()
if child == 0:
    os._exit(0 if shared_loop().run(thread()) != first else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert shared_loop().run(thread()) == first
"""


def test_a_process_shares_one_and_a_forked_child_has_its_own() -> None:
    assert shared_loop() is shared_loop()
    subprocess.run([sys.executable, "-c", _FORKS], check=True, timeout=60)
