"""What is said of a Docker engine that does not answer, and which requests wait for which."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import cast
from unittest.mock import MagicMock

import pytest
from docker.errors import APIError

from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.errors import EngineFull, EngineUnavailable


async def _said(requests: DockerRequests) -> str:
    with pytest.raises(EngineUnavailable) as failed:
        await requests.ask(docker_requests.engine_info)
    requests.close()
    return str(failed.value)


async def test_the_cure_names_the_place_where_the_address_is_written(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none.sock"
    said = await _said(DockerRequests(url, "sandbox.engine_url of a.yaml"))
    assert url in said
    assert "set another address in sandbox.engine_url of a.yaml" in said
    assert "DOCKER_HOST" not in said


async def test_without_an_address_it_is_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "set another address in DOCKER_HOST" in await _said(DockerRequests(None, "sandbox.engine_url of a.yaml"))


@pytest.mark.parametrize("why", ["no space left on device", "fork/exec: Cannot allocate memory"])
def test_an_engine_without_room_for_one_more_says_so(why: str) -> None:
    client = MagicMock(docker_requests.docker.APIClient)
    client.start.side_effect = APIError("500 Server Error", explanation=f"failed to create task: {why}")
    with pytest.raises(EngineFull, match=why):
        docker_requests.start_container(cast(docker_requests.Client, client), {}, "name", image="image")


async def test_removing_many_volumes_keeps_no_one_waiting_for_more_than_two_of_them() -> None:
    begun: list[str] = []
    may_end = threading.Semaphore(0)

    def remove(name: str) -> None:
        begun.append(name)
        assert may_end.acquire(timeout=60)

    requests = DockerRequests("unix:///none")
    client = MagicMock(docker_requests.docker.APIClient)
    client.remove_volume.side_effect = remove
    requests._client = client
    removals = [asyncio.create_task(requests.remove_volume(f"a{one}", tenant="a")) for one in range(20)]
    await asyncio.sleep(0)
    other = asyncio.create_task(requests.remove_volume("b", tenant="b"))
    while not begun:
        await asyncio.sleep(0)
    # Whatever else is asked of the engine does not wait for any of them.
    await asyncio.gather(*(requests.ask(docker_requests.stop_container, "c") for _ in range(20)))
    assert begun == ["a0"]
    removals[0].cancel()  # who goes away gives no place back that the engine has not
    await asyncio.sleep(0)
    assert not removals[0].done()
    may_end.release(3)  # the one that is under way, one of who waited first, and then it is b's turn
    assert await other
    assert begun[:3] == ["a0", "a1", "b"]
    may_end.release(20)
    assert await asyncio.gather(*removals[1:]) == [True] * 19
    requests.close()
