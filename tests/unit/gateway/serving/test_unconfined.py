"""The in-memory engine is taken by name only, and never where others than this machine's could have commands run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.config.config import Config
from gateway.errors import Misconfigured
from gateway.serving.listening import refuse_unconfined


def config(**sandbox: object) -> Config:
    return Config.model_validate({"tenants": {"t": {"policy": "p.yaml"}}, "directory": Path(), "sandbox": sandbox})


def test_docker_is_the_default_engine() -> None:
    assert config().sandbox.engine == "docker"
    refuse_unconfined(config(), "0.0.0.0:7443", workers=8)


@pytest.mark.parametrize("listen", ["127.0.0.1:7443", "[::1]:7443", "localhost:7443"])
def test_the_in_memory_engine_serves_this_machine(listen: str) -> None:
    refuse_unconfined(config(engine="memory"), listen, workers=1)


@pytest.mark.parametrize("listen", ["0.0.0.0:7443", "[::]:7443", "10.0.0.1:7443", "example.com:7443"])
def test_the_in_memory_engine_is_refused_where_others_get_to_it(listen: str) -> None:
    with pytest.raises(Misconfigured, match=r"unconfined.*127\.0\.0\.1"):
        refuse_unconfined(config(engine="memory"), listen, workers=1)


def test_the_in_memory_engine_is_of_one_process() -> None:
    with pytest.raises(Misconfigured, match="--workers"):
        refuse_unconfined(config(engine="memory"), "127.0.0.1:7443", workers=2)


def test_sandboxes_that_end_with_their_process_cannot_be_kept() -> None:
    with pytest.raises(ValidationError, match="on_stop"):
        config(engine="memory", on_stop="keep")
