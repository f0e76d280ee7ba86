"""A gateway of an example's own: configured, started, stopped and removed with the commands that an operator uses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import docker

REPOSITORY = Path(__file__).parents[1]
# The console script `airlock`, also where the project is not installed.
AIRLOCK = (sys.executable, "-m", "gateway.cli")
_READY_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0


class GatewayFailed(Exception):
    """The gateway cannot be made or does not answer. The text says why."""


@dataclass(frozen=True)
class OwnGateway:
    """A running gateway. `left_behind` is filled once it has stopped, with what it failed to remove.

    `api_key` and `approver_key` belong to the tenant "default", `tenant_keys` are those of other tenants.
    """

    address: str
    api_key: str
    approver_key: str
    tenant_keys: Mapping[str, str]
    left_behind: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def own_gateway(
    name: str,
    configure: Callable[[Path], None],
    *,
    tenants: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[OwnGateway]:
    """Run `airlock init` and `airlock serve` in a temporary directory.

    `configure` may change the configuration file that `init` made. Each of `tenants`, which it has added, gets a key.
    """
    with tempfile.TemporaryDirectory(prefix=f"airlock-{name}-") as made_directory:
        directory = Path(made_directory)
        made = await _made("init", str(directory / "gateway"))
        config = made["config"]
        configure(Path(config))
        keys = {one: (await _made("key", "create", "--config", config, "--tenant", one))["key"] for one in tenants}
        instance_file = Path(config).parent / "state" / "instance"
        ready_file, log_file = directory / "ready", directory / "gateway.log"
        serve = ("serve", "--config", config, "--listen", "127.0.0.1:0", "--ready-file", str(ready_file))
        with log_file.open("wb") as log:
            process = await _start(serve, log, environment or {})
        gateway: OwnGateway | None = None
        try:
            address = await _address(process, ready_file, log_file)
            _record_instance(instance_file)
            gateway = OwnGateway(address, made["key"], made["approver_key"], keys)
            yield gateway
        finally:
            await _stop(process)
            left_behind = await asyncio.to_thread(_remove_left_behind, instance_file)
            if gateway is not None:
                gateway.left_behind.extend(left_behind)


async def _made(*command: str) -> dict[str, Any]:
    """Return what a command that creates something prints as JSON."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *AIRLOCK, *command, "--json", cwd=REPOSITORY, stdout=pipe, stderr=pipe
    )
    try:
        output, error = await process.communicate()
    finally:
        await _stop(process)  # an interrupted `init` would keep writing into the directory
    if process.returncode:
        raise GatewayFailed(f"airlock {command[0]} failed: {error.decode('utf-8', 'replace').strip()}")
    made: dict[str, Any] = json.loads(output)
    return made


async def _start(
    arguments: tuple[str, ...], log: IO[bytes], environment: Mapping[str, str]
) -> asyncio.subprocess.Process:
    # In a session of its own, so that Ctrl-C reaches only the example, which then stops the gateway.
    return await asyncio.create_subprocess_exec(
        *AIRLOCK,
        *arguments,
        cwd=REPOSITORY,
        env={**os.environ, **environment},
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
    raise GatewayFailed(f"{problem}; `airlock doctor` says what works on this machine. It said:\n{said}")


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
