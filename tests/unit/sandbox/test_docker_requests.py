"""What is said of a Docker engine that does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox import docker_requests
from sandbox.docker_requests import DockerRequests
from sandbox.errors import EngineUnavailable


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
