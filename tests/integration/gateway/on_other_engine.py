"""`airlock`, but that it takes its Docker engine for another one: as if it were on a machine of its own.

python -m tests.integration.gateway.on_other_engine serve --config ...
"""

from __future__ import annotations

from unittest import mock

from gateway.cli.main import main
from sandbox.engines.docker.docker_engine import DockerEngine

ENGINE = "another-engine"


async def _other_id(engine: DockerEngine) -> str:
    del engine
    return ENGINE


if __name__ == "__main__":
    with mock.patch.object(DockerEngine, "id", _other_id):
        main()
