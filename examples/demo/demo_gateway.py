"""A gateway for the demo: configured, started, stopped and removed with the commands that an operator uses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import docker
import yaml

REPOSITORY = Path(__file__).parents[2]
POLICY = Path(__file__).parent / "policy.yaml"
OPERATOR_POLICY = Path(__file__).parent / "operator.yaml"
AGENTS = Path(__file__).parent / "agents.yaml"
# Where the policies say that the package index listens.
_INDEX_PORT = 8181
# The console script `airlock`, also where the project is not installed.
AIRLOCK = (sys.executable, "-m", "gateway.cli")
_READY_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0


class DemoError(Exception):
    """The demo cannot continue. The text says why."""


@dataclass(frozen=True)
class DemoGateway:
    """A running gateway. `left_behind` is filled once it has stopped, with what it failed to remove."""

    address: str
    api_key: str
    approver_key: str
    left_behind: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def demo_gateway(scripted_base_url: str | None, investigator: str, index_port: int) -> AsyncIterator[DemoGateway]:
    """Run `airlock init` and `airlock serve` in a temporary directory.

    With a URL, the model is the scripted one and `investigator` its subagent's; else the environment names the model.
    The policy is about the package index at `index_port`.
    """
    with tempfile.TemporaryDirectory(prefix="airlock-demo-") as name:
        directory = Path(name)
        made = await _init(directory / "gateway")
        config_path = Path(made["config"])
        state_dir = _configure(config_path, scripted_base_url, investigator, index_port)
        ready_file, log_file = directory / "ready", directory / "gateway.log"
        serve = ("serve", "--config", str(config_path), "--listen", "127.0.0.1:0", "--ready-file", str(ready_file))
        with log_file.open("wb") as log:
            process = await _start(serve, log)
        gateway: DemoGateway | None = None
        try:
            address = await _address(process, ready_file, log_file)
            _record_instance(state_dir / "instance")
            gateway = DemoGateway(address, made["key"], made["approver_key"])
            yield gateway
        finally:
            await _stop(process)
            left_behind = await asyncio.to_thread(_remove_left_behind, state_dir / "instance")
            if gateway is not None:
                gateway.left_behind.extend(left_behind)


async def _init(directory: Path) -> dict[str, str]:
    init = (*AIRLOCK, "init", str(directory), "--json")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*init, cwd=REPOSITORY, stdout=pipe, stderr=pipe)
    try:
        output, error = await process.communicate()
    finally:
        await _stop(process)  # an interrupted `init` would keep writing into the directory
    if process.returncode:
        raise DemoError(f"airlock init failed: {error.decode('utf-8', 'replace').strip()}")
    made: dict[str, str] = json.loads(output)
    return made


def _configure(config_path: Path, scripted_base_url: str | None, investigator: str, index_port: int) -> Path:
    """Give the tenant the demo's policy and the gateway the demo's agent and model; return its state directory."""
    policies = config_path.parent / "policies"
    config: dict[str, Any] = yaml.safe_load(config_path.read_text(encoding="utf-8"))
    config["sandbox"] = {**(config.get("sandbox") or {}), "keep_workspaces": False}
    config["operator_policy"] = str(policies / OPERATOR_POLICY.name)
    config["agents"] = yaml.safe_load(AGENTS.read_text(encoding="utf-8"))
    if scripted_base_url is not None:
        model = {"base_url": scripted_base_url, "name": "scripted", "api_key_env": "AIRLOCK_DEMO_MODEL_KEY"}
        config["model"] = model
        subagents = config["agents"]["default"]["capabilities"]["subagents"]["definitions"]
        subagents["investigator"]["model"] = {**model, "name": investigator}
    config_path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    for source, target in (
        (POLICY, config["tenants"]["default"]["policy"]),
        (OPERATOR_POLICY, config["operator_policy"]),
    ):
        text = source.read_text(encoding="utf-8").replace(f":{_INDEX_PORT}", f":{index_port}")
        (config_path.parent / target).write_text(text, encoding="utf-8")
    return config_path.parent / str(config.get("state_dir", "state"))


async def _start(arguments: tuple[str, ...], log: IO[bytes]) -> asyncio.subprocess.Process:
    # In a session of its own, so that Ctrl-C reaches only the demo, which then stops the gateway.
    return await asyncio.create_subprocess_exec(
        *AIRLOCK,
        *arguments,
        cwd=REPOSITORY,
        env={**os.environ, "AIRLOCK_DEMO_MODEL_KEY": "scripted"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


async def _address(process: asyncio.subprocess.Process, ready_file: Path, log_file: Path) -> str:
    try:
        async with asyncio.timeout(_READY_TIMEOUT_S):
            while process.returncode is None:
                if address := _text(ready_file):
                    return address
                await asyncio.sleep(0.05)
            problem = f"the gateway ended with exit code {process.returncode}"
    except TimeoutError:
        problem = f"the gateway did not answer within {_READY_TIMEOUT_S:.0f} s"
    said = _text(log_file)[-2_000:]
    raise DemoError(f"{problem}; `airlock doctor` says what works on this machine. It said:\n{said}")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()


def _record_instance(instance_file: Path) -> None:
    """Record the instance id, so that `make clean` finds containers and volumes if this process is killed."""
    record = REPOSITORY / ".build" / "instances"
    record.parent.mkdir(exist_ok=True)
    with record.open("a", encoding="ascii") as file:
        file.write(f"{_text(instance_file)}\n")


def _remove_left_behind(instance_file: Path) -> list[str]:
    """Remove containers and volumes that the gateway left, for example because it was killed; return their names."""
    if not instance_file.exists():
        return []
    labels: dict[str, str | list[str] | bool] = {"label": f"airlock.instance={_text(instance_file)}"}
    left_behind = []
    try:
        with contextlib.closing(docker.from_env()) as engine:
            for container in engine.containers.list(all=True, filters=labels):
                left_behind.append(f"container {container.name}")
                container.remove(force=True, v=True)
            for volume in engine.volumes.list(filters=labels):
                left_behind.append(f"volume {volume.name}")
                volume.remove(force=True)
    except docker.errors.DockerException as error:
        left_behind.append(f"sandbox that the engine could not list: {error}")
    return left_behind
