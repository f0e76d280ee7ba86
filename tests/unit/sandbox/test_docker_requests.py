"""What is said of a Docker engine that does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import cast
from unittest.mock import MagicMock

import pytest
from docker.errors import APIError

from sandbox import docker_requests
from sandbox.docker_requests import DockerRequests
from sandbox.errors import EngineFull, EngineUnavailable


async def _said(requests: DockerRequests) -> str:
    with pytest.raises(EngineUnavailable) as failed:
        await requests.ask(docker_requests.engine_id)
    requests.close()
    return str(failed.value)


async def test_the_cure_names_the_place_where_the_address_is_written(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none.sock"
    said = await _said(DockerRequests(url, "sandbox.engine_url of a.yaml"))
    assert url in said
    assert "name another in sandbox.engine_url of a.yaml" in said
    assert "DOCKER_HOST" not in said


async def test_without_an_address_it_is_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "name another in DOCKER_HOST" in await _said(DockerRequests(None, "sandbox.engine_url of a.yaml"))


@pytest.mark.parametrize("why", ["no space left on device", "fork/exec: Cannot allocate memory"])
def test_an_engine_without_room_for_one_more_says_so(why: str) -> None:
    client = MagicMock(docker_requests.docker.APIClient)
    client.start.side_effect = APIError("500 Server Error", explanation=f"failed to create task: {why}")
    with pytest.raises(EngineFull, match=why):
        docker_requests.start_container(cast(docker_requests.Client, client), {}, "name", image="image")
