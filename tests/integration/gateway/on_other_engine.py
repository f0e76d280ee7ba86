"""`airlock`, but that it takes its Docker engine for another one: as if it were on a machine of its own.

python -m tests.integration.gateway.on_other_engine serve --config ...
"""

from __future__ import annotations

from unittest import mock

from gateway.cli.main import main
from sandbox.engines.docker.engine_setup import EngineSetup

ENGINE = "another-engine"


async def _other_id(setup: EngineSetup) -> str:
    del setup
    return ENGINE


if __name__ == "__main__":
    with mock.patch.object(EngineSetup, "engine_id", _other_id):
        main()
