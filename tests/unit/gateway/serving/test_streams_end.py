"""A stream under way, and a call that takes its time, ends when its caller's credential does; others do not notice."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import grpc.aio
import pytest

from airlock.wire import error_of
from gateway.credentials.keys import make_key
from gateway.errors import AirlockError, Unauthenticated, Unavailable
from gateway.identity.call_guard import CallGuard
from gateway.identity.principal import CallCredentials
from gateway.serving.fair_loop import schedule_for
from gateway.storage.key_store import KeyStore
from gateway.support.current_tenant import CURRENT_TENANT
from tests.unit.gateway.who_server import who_server

ME = CallCredentials((("authorization", "Bearer mine"),), "peer", {})
OTHER = CallCredentials((("authorization", "Bearer another"),), "peer", {})


async def test_a_stream_ends_when_its_key_is_revoked_and_that_of_another_key_goes_on(tmp_path: Path) -> None:
    async with who_server(tmp_path) as server:
        keys, mine, others = KeyStore(server.database), make_key(), make_key()
        await keys.add("acme", mine)
        await keys.add("acme", others)
        async with server.asking(mine.secret) as asking, server.asking(others.secret) as other:
            stream, other_stream = asking.always(), other.always()
            assert await anext(stream) == await anext(other_stream) == b"acme"
            await keys.revoke(mine.id, by="test")
            with pytest.raises(Unauthenticated, match="not valid"):
                await anext(stream)
            assert await other.once()
            pending = asyncio.ensure_future(anext(other_stream))
            done, _ = await asyncio.wait([pending], timeout=0.1)
            assert not done
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)


async def test_an_upload_ends_when_its_key_is_revoked(tmp_path: Path) -> None:
    async with who_server(tmp_path) as server:
        keys, key = KeyStore(server.database), make_key()
        await keys.add("acme", key)
        async with server.asking(key.secret) as asking:
            call = asking.upload()
            await call.write(b"half of it")
            await keys.revoke(key.id, by="test")
            with pytest.raises(Unauthenticated):
                try:
                    await call
                except grpc.aio.AioRpcError as error:
                    raise error_of(error) from error


async def test_a_call_that_takes_its_time_ends_when_its_key_is_revoked_and_that_of_another_key_goes_on(
    tmp_path: Path,
) -> None:
    async with who_server(tmp_path) as server:
        keys, mine, others = KeyStore(server.database), make_key(), make_key()
        await keys.add("acme", mine)
        await keys.add("acme", others)
        async with server.asking(mine.secret) as asking, server.asking(others.secret) as other:
            calls = [asyncio.create_task(one.slow()) for one in (asking, other)]
            assert await asking.once()
            assert await other.once()
            await keys.revoke(mine.id, by="test")
            with pytest.raises(Unauthenticated, match="not valid"):
                await calls[0]
            assert not calls[1].done()
            calls[1].cancel()
            await asyncio.gather(*calls, return_exceptions=True)


async def test_a_call_that_takes_its_time_ends_when_its_key_expires(tmp_path: Path) -> None:
    async with who_server(tmp_path) as server:
        key = make_key()
        await KeyStore(server.database).add("acme", key, lifetime_us=600_000)
        async with server.asking(key.secret) as asking:
            with pytest.raises(Unauthenticated):
                await asking.slow()


async def test_an_answer_that_comes_in_spite_of_its_end_is_not_given() -> None:
    async def authenticate(context: object) -> None:
        raise Unauthenticated("revoked")

    guarded = CallGuard(every_s=0.001).call(authenticate, ME)
    with pytest.raises(Unauthenticated, match="revoked"), guarded, contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def test_callers_are_asked_about_in_the_turns_of_no_tenant() -> None:
    asked_as: asyncio.Queue[str | None] = asyncio.Queue()

    async def authenticate(context: object) -> None:
        asked_as.put_nowait(CURRENT_TENANT.get())

    schedule_for("first")
    with CallGuard(every_s=0.001).call(authenticate, ME):
        assert await asyncio.wait_for(asked_as.get(), 30) is None


async def test_a_call_is_checked_within_one_interval_of_its_start() -> None:
    checked = asyncio.Event()
    rounds = 0

    async def authenticate(context: object) -> None:
        checked.set()

    async def count(context: object) -> None:
        nonlocal rounds
        rounds += 1

    every_s = 0.3
    guard = CallGuard(every_s)
    with guard.call(count, ME):
        await asyncio.sleep(every_s / 2)
        before = rounds
        with guard.call(authenticate, ME):
            await asyncio.wait_for(checked.wait(), 30)
    # In the next round of the guard, not in the one after it, which is a whole interval later.
    assert rounds - before <= 1


async def test_a_credential_is_checked_once_however_many_calls_have_it() -> None:
    checked: list[CallCredentials] = []
    both, go_on = asyncio.Event(), asyncio.Event()

    async def authenticate(context: CallCredentials) -> None:
        checked.append(context)
        if len(checked) == 2:
            both.set()
        await go_on.wait()
        if context is ME:
            raise Unauthenticated("revoked")

    guard = CallGuard(every_s=0.001)

    async def call(credentials: CallCredentials) -> None:
        with guard.call(authenticate, credentials):
            await asyncio.Event().wait()

    over = asyncio.create_task(call(ME))
    calls = [asyncio.create_task(call(ME)) for _ in range(50)]
    others = [asyncio.create_task(call(OTHER)) for _ in range(50)]
    await both.wait()
    await asyncio.sleep(0.05)
    assert [one.secret for one in checked] == [ME.secret, OTHER.secret]
    over.cancel()
    await asyncio.wait([over])
    go_on.set()
    done, _ = await asyncio.wait(calls, timeout=30)
    assert {type(one.exception()) for one in done} == {Unauthenticated}
    assert len(done) == 50
    assert over.cancelled()
    assert not any(one.done() for one in others)
    for one in others:
        one.cancel()
    await asyncio.wait(others)


async def test_a_database_that_does_not_answer_ends_no_call() -> None:
    asked = 0
    again = asyncio.Event()

    async def authenticate(context: object) -> None:
        nonlocal asked
        asked += 1
        if asked > 2:
            again.set()
        raise Unavailable("locked")

    with CallGuard(every_s=0.001).call(authenticate, ME):
        await again.wait()


async def test_a_stream_ends_when_its_key_expires(tmp_path: Path) -> None:
    async with who_server(tmp_path) as server:
        key = make_key()
        await KeyStore(server.database).add("acme", key, lifetime_us=600_000)
        async with server.asking(key.secret) as asking:
            stream = asking.always()
            assert await anext(stream)
            with pytest.raises(Unauthenticated):
                await anext(stream)


async def test_what_ends_a_stream_otherwise_is_not_mistaken() -> None:
    async def authenticate(context: object) -> None:
        raise Unauthenticated("revoked")

    async def cancelled() -> None:
        with CallGuard(every_s=60).call(authenticate, ME):
            await asyncio.Event().wait()

    task = asyncio.create_task(cancelled())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_stream_that_sends_is_notified_afterwards_and_one_that_is_not_read_is_cut_off() -> None:
    async def authenticate(context: object) -> None:
        raise Unauthenticated("revoked")

    guard = CallGuard(every_s=0.001).call(authenticate, ME)
    with pytest.raises(AirlockError, match="revoked"), guard:
        guard.send()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()  # in grpc's hands
        guard.sent()
