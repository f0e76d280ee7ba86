"""A port that another program has is refused first, before anything is started for it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.errors import Misconfigured
from gateway.serving.listening import refuse_taken


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_only_an_address_that_is_taken_is_refused(taken: str) -> None:
    with pytest.raises(Misconfigured, match="in use"):
        refuse_taken(taken)
    for free in ("127.0.0.1:0", "localhost:0", "nosuch.invalid:7443"):  # the last is grpc's to refuse
        refuse_taken(free)


def test_a_gateway_says_in_one_line_that_its_port_is_taken(taken: str, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["init", str(tmp_path / "home")]).exit_code == 0
    serve = ["serve", "--config", str(tmp_path / "home" / "airlock.yaml"), "--listen", taken]
    ended = subprocess.run(
        [sys.executable, "-m", "gateway.cli", *serve], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        f"error: --listen {taken}: the port is in use, or the address does not belong to this machine"
    ]
