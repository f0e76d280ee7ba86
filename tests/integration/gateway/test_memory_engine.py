"""A gateway without Docker: real processes, and the in-memory engine that the configuration names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.client import Client, NotFound
from tests.gateway_process import Home, airlock, airlock_process, make_home, served

# Where no engine answers: nothing here may need one. gRPC's handlers of forks are off in these tests, not elsewhere.
NO_DOCKER = {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "GRPC_ENABLE_FORK_SUPPORT": "1"}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = make_home(tmp_path)
    made.configure(sandbox={"engine": "memory", "keep_workspaces": True})
    return made


async def test_calls_files_and_processes_work_without_docker_and_files_outlive_the_gateway(home: Home) -> None:
    with served(home, NO_DOCKER) as gateway:
        async with Client(gateway.address, home.key) as client:
            ran = await client.call_tool("execute", {"command": "echo made > a; echo out"}, thread="t1")
            assert (ran.verdict, ran.outcome, ran.exit_code, ran.content) == ("allow", "exited", 0, "out\n")
            for code, value in (("x = 6", ""), ("x * 7", "42")):
                ran = await client.call_tool("execute_python", {"code": code}, thread="t1")
                assert (ran.outcome, ran.content) == ("completed", value), ran
            read = await client.call_tool("read_file", {"path": "/workspace/a"}, thread="t1")
            assert "made" in read.content
            for tool, arguments in (("glob", {"pattern": "*"}), ("grep", {"pattern": "made"})):
                found = await client.call_tool(tool, {"path": "/workspace", **arguments}, thread="t1")
                assert (found.is_error, "/workspace/a" in found.content) == (False, True), found
            await client.write_file("t1", "/workspace/b.bin", bytes(range(256)))
            with pytest.raises(NotFound):
                await client.read_file("other", "/workspace/b.bin")
            assert (await client.get_sandbox("t1")).runtime == "runc"
    with served(home, NO_DOCKER) as gateway:
        async with Client(gateway.address, home.key) as client:
            assert await client.read_file("t1", "/workspace/b.bin") == bytes(range(256))
            for thread in ("t1", "other"):
                await client.delete_thread(thread)
    assert list(home.config.parent.glob("state/memory/workspaces/*/*")) == []


async def test_the_kernel_enforces_rules_on_files_for_its_commands_too(home: Home, tmp_path: Path) -> None:
    async def ran(command: str) -> tuple[str, bool]:
        result = await client.call_tool("execute", {"command": command}, thread="t1")
        return result.outcome, "Permission denied" in result.content

    with served(home, NO_DOCKER) as gateway:
        async with Client(gateway.address, home.key) as client:
            assert await ran(f"cp /etc/hostname a; echo x > {tmp_path}/outside") == ("exited", True)
            assert await ran("cat a") == ("exited", False)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    "options, said",
    [(["--listen", "0.0.0.0:0", "--insecure-plaintext"], "unconfined"), (["--workers", "2"], "one process")],
)
def test_it_serves_this_machine_only_and_from_one_process(home: Home, options: list[str], said: str) -> None:
    refused = airlock_process("serve", "--config", str(home.config), *options, check=False)
    assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr


def test_doctor_looks_for_no_engine_and_says_that_nothing_is_confined(home: Home) -> None:
    looked = airlock("doctor", "--config", str(home.config), "--json", env=NO_DOCKER)
    findings = {one["what"]: one for one in json.loads(looked.stdout)["findings"]}
    assert (findings["engine"]["state"], "unconfined" in findings["engine"]["detail"]) == ("warning", True)
