"""Quotas and rates of a real gateway: what a client sees, what a refusal leaves behind, and what a crash frees."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from gateway.client import Client
from gateway.errors import QuotaExceeded
from tests.gateway_process import Home, make_home, served

ENV = {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
POLICY = """\
version: 1
description: What the tests of quotas need.
quotas: {runs_at_once: 1, tool_calls_per_minute: 1000, tokens_per_day: 1000000, bytes_per_day: 100000}
rules:
  - id: once
    tools: [ls]
    effect: allow
    reason: Looking is free, once a day.
    rate: {calls: 1, per: day}
  - id: files
    tools: [read_file, write_file]
    effect: allow
    reason: The workspace is the agent's.
  - id: one-command
    tools: [execute]
    effect: allow
    reason: One after another.
    at_once: 1
"""
SMALL_POLICY = """\
version: 1
description: A tenant that may store next to nothing.
quotas: {threads: 1, stored_bytes: 5000}
rules: [{id: files, tools: [ls, read_file, write_file], effect: allow, reason: Files are free.}]
"""
SLEEP = Turn(calls=(Call("execute", {"command": "touch started; sleep 62"}),))


async def _home(directory: Path, database_url: str, base_url: str = "http://127.0.0.1:9") -> tuple[Home, str]:
    home = await asyncio.to_thread(make_home, directory)
    home.store_in(database_url)
    home.configure(model={"base_url": base_url, "name": "scripted"})
    return home, await asyncio.to_thread(home.add_tenant, "limited", POLICY)


async def test_a_refusal_says_on_the_wire_which_quota_and_when_to_try_again(tmp_path: Path, database_url: str) -> None:
    home, key = await _home(tmp_path / "home", database_url)
    with served(home, ENV) as gateway:
        async with Client(gateway.address, key) as airlock:
            refusals: list[QuotaExceeded] = []
            for _ in range(3):  # three, as a day may turn between two
                try:
                    await airlock.call_tool("ls", {"path": "/workspace"}, thread="t")
                except QuotaExceeded as refused:
                    refusals.append(refused)
            refused = refusals[-1]
            assert refused.details == {"quota": "rate", "rule": "once", "limit": "1"}
            assert refused.retry_after_s is not None
            assert 0 < refused.retry_after_s <= 86_400
            error = refused.__cause__
            assert isinstance(error, grpc.aio.AioRpcError)
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            status = rpc_status.from_call(error)  # type: ignore[arg-type]
            assert status is not None
            failure, retry = error_details_pb2.QuotaFailure(), error_details_pb2.RetryInfo()
            assert any(detail.Unpack(failure) for detail in status.details)
            assert any(detail.Unpack(retry) for detail in status.details)
            assert [violation.subject for violation in failure.violations] == ["once"]
            # Files count by what is moved, not by the line that says how much it was.
            await airlock.write_file("t", "/workspace/large", b"x" * 100_000)
            with pytest.raises(QuotaExceeded, match="bytes_per_day"):
                await airlock.read_file("t", "/workspace/large")
            with pytest.raises(QuotaExceeded, match="bytes_per_day"):
                await airlock.run_program(["true"], thread="t")
    verdicts = home.rows("SELECT name, state, verdict, rule FROM tool_calls ORDER BY started_us DESC LIMIT 1")
    assert verdicts == [("execute", "blocked", "deny", "quota")]


async def test_bytes_are_counted_once_and_what_is_stored_is_bounded_in_threads_and_in_bytes(
    tmp_path: Path, database_url: str
) -> None:
    home, key = await _home(tmp_path / "home", database_url)
    small_key = await asyncio.to_thread(home.add_tenant, "small", SMALL_POLICY)
    with served(home, ENV) as gateway:
        async with Client(gateway.address, key) as airlock:
            await airlock.write_file("t", "/workspace/file", b"x" * 1000)
            assert await airlock.read_file("t", "/workspace/file") == b"x" * 1000
            assert (await airlock.run_program(["printf", "%0100d", "0"], thread="t")).stdout == "0" * 100
            said = await airlock.call_tool("read_file", {"path": "/workspace/file"}, thread="t")
        counted = home.rows("SELECT sum(used) FROM counters WHERE name = 'bytes_per_day'")
        assert counted == [(2100 + len(said.content.encode()),)]
        async with Client(gateway.address, small_key) as airlock:
            await airlock.write_file("one", "/workspace/kept", b"kept")
            with pytest.raises(QuotaExceeded, match="threads") as caught:
                await airlock.call_tool("ls", {"path": "/workspace"}, thread="two")
            assert caught.value.details == {"quota": "threads", "limit": "1"}
            with pytest.raises(QuotaExceeded, match="stored_bytes") as caught:
                async with asyncio.timeout(60):
                    while True:
                        await airlock.call_tool("ls", {"path": "/" + "x" * 200}, thread="one")
            assert caught.value.details == {"quota": "stored_bytes", "limit": "5000"}
            assert await airlock.read_file("one", "/workspace/kept") == b"kept"
            assert [entry.name async for entry in airlock.list_files("one")] == ["kept"]
            assert (await airlock.stat_file("one", "/workspace/kept")).size_bytes == 4
            await airlock.remove_file("one", "/workspace/kept")
            calls = home.rows("SELECT count(*) FROM tool_calls WHERE tenant = 'small'")
            with pytest.raises(QuotaExceeded, match="stored_bytes"):
                await airlock.write_file("one", "/workspace/kept", b"kept")
            with pytest.raises(QuotaExceeded, match="stored_bytes"):
                await airlock.start_run("anything", thread="one")
            with pytest.raises(QuotaExceeded, match="stored_bytes"):
                await airlock.set_thread_metadata("one", {"key": "value"})
            assert calls == home.rows("SELECT count(*) FROM tool_calls WHERE tenant = 'small'")
            await airlock.delete_thread("one")
            await airlock.call_tool("ls", {"path": "/workspace"}, thread="two")
    assert home.rows("SELECT threads FROM storage_use WHERE tenant = 'small'") == [(1,)]


async def test_a_run_past_the_quota_leaves_nothing_and_a_taken_over_one_holds_its_place(
    tmp_path: Path, database_url: str
) -> None:
    async with ScriptedModelServer([SLEEP]) as model:
        home, key = await _home(tmp_path / "home", database_url, model.base_url)
        with served(home, ENV) as gateway:
            async with Client(gateway.address, key) as airlock:
                first = await airlock.start_run("sleep", thread="t")
                with pytest.raises(QuotaExceeded) as caught:
                    await airlock.start_run("sleep", thread="never")
                assert caught.value.details["quota"] == "runs_at_once"
                assert home.rows("SELECT name FROM threads") == [("t",)]
                assert home.rows("SELECT count(*) FROM runs") == [(1,)]
                async with asyncio.timeout(60):
                    while not home.rows("SELECT 1 FROM tool_calls WHERE state = 'executing'"):
                        await asyncio.sleep(0.02)
                with pytest.raises(QuotaExceeded, match="at once"):
                    await airlock.call_tool("execute", {"command": "true"}, thread="other")
            gateway.kill()
        with served(home, ENV) as gateway:
            async with Client(gateway.address, key) as airlock:
                with pytest.raises(QuotaExceeded, match="runs_at_once"):
                    await airlock.start_run("too soon", thread="t2")
                await airlock.cancel_run(first.id)
                assert [event async for event in airlock.watch_run(first.id)][-1].type == "run_finished"
                run = await airlock.start_run("sleep again", thread="t2")
                async with asyncio.timeout(60):
                    while not home.rows("SELECT 1 FROM tool_calls WHERE state = 'executing'"):
                        await asyncio.sleep(0.02)
                await airlock.cancel_run(run.id)
                events = [event async for event in airlock.watch_run(run.id)]
                assert events[-1].payload["status"] == "cancelled"
                # What the cancelled call and the run had held is free.
                assert (await airlock.call_tool("execute", {"command": "true"}, thread="t2")).exit_code == 0
                await airlock.cancel_run((await airlock.start_run("sleep once more", thread="t3")).id)
    spent = events[-1].payload["usage"]
    assert spent["input_tokens"] + spent["output_tokens"] > 0
    (counted,) = home.rows("SELECT sum(used) FROM counters WHERE name = 'tokens_per_day'")[0]
    assert counted >= spent["input_tokens"] + spent["output_tokens"]
