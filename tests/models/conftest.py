"""The model servers: each is started once, in the one worker that runs these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.models.servers import LLAMA_CPP_PYTHON, LLAMA_SERVER, ModelServer, are_built, running

CONTEXT_TOKENS = 8192


@pytest.fixture(scope="session")
def built() -> None:
    """Skip without servers."""
    if not are_built():
        pytest.skip("needs real model servers: deploy/models builds them, in about ten minutes")


@pytest.fixture(scope="session")
def llama_server(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with running(LLAMA_SERVER, tmp_path_factory.mktemp("models"), context_tokens=CONTEXT_TOKENS) as server:
        yield server


@pytest.fixture(scope="session")
def llama_cpp_python(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with running(LLAMA_CPP_PYTHON, tmp_path_factory.mktemp("models"), context_tokens=CONTEXT_TOKENS) as server:
        yield server


@pytest.fixture(params=[LLAMA_SERVER, LLAMA_CPP_PYTHON])
def server(request: pytest.FixtureRequest) -> ModelServer:
    """Return one server after the other."""
    found: ModelServer = request.getfixturevalue(
        "llama_server" if request.param == LLAMA_SERVER else "llama_cpp_python"
    )
    return found
