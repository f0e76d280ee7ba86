"""One gateway with an HTTP listener and a real engine, for E2B's own SDK."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2b import Sandbox

from tests.gateway_process import make_home
from tests.integration.http.conftest import Listening, listening

Connection = dict[str, Any]


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with listening(make_home(tmp_path_factory.mktemp("e2b"))) as serving:
        yield serving


@pytest.fixture(scope="session")
def connection(gateway: Listening) -> Connection:
    """What E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY would say."""
    return connection_of(gateway, gateway.key)


def connection_of(gateway: Listening, key: str) -> Connection:
    return {"api_url": f"{gateway.url}/e2b", "sandbox_url": f"{gateway.url}/e2b", "api_key": key}


@pytest.fixture(scope="session")
def sandbox(connection: Connection) -> Iterator[Sandbox]:
    """A sandbox that tests share, each in a directory of its own."""
    made = Sandbox.create(timeout=1800, envs={"GREETING": "hello"}, **connection)
    yield made
    made.kill()


@pytest.fixture
def make_sandbox(connection: Connection) -> Iterator[Callable[..., Sandbox]]:
    made: list[Sandbox] = []

    def make(**options: Any) -> Sandbox:
        made.append(Sandbox.create(**{**connection, **options}))
        return made[-1]

    yield make
    for one in made:
        one.kill()
