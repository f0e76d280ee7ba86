"""Which engines are another machine's, and which of them may be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.engines.docker.engine_address import problem_of, remote_host


@pytest.mark.parametrize(
    "address, host",
    [
        ("unix:///var/run/docker.sock", ""),
        ("tcp://127.0.0.1:2375", ""),
        ("tcp://localhost:2375", ""),
        ("tcp://[::1]:2376", ""),
        ("ssh://airlock@localhost", ""),
        ("tcp://10.0.0.7:2376", "10.0.0.7"),
        ("https://10.0.0.7:2376", "10.0.0.7"),
        ("tcp://[fd00::7]:2376", "fd00::7"),
        ("ssh://airlock@engine.example:2222", "engine.example"),
    ],
)
def test_an_engine_is_another_machine_s_unless_its_address_is_of_this_one(address: str, host: str) -> None:
    assert remote_host(address) == host


@pytest.mark.parametrize("address", ["tcp://10.0.0.7:2376", "http://10.0.0.7:2375", "https://10.0.0.7:2376"])
def test_over_the_network_an_engine_is_used_in_mutual_tls_alone(address: str, tmp_path: Path) -> None:
    assert "DOCKER_TLS_VERIFY=1" in problem_of(address, {"DOCKER_CERT_PATH": str(tmp_path)})
    verifying = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tmp_path)}
    (tmp_path / "ca.pem").touch()
    assert f"{tmp_path} has no cert.pem and no key.pem" in problem_of(address, verifying)
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).touch()
    assert problem_of(address, verifying) == ""


@pytest.mark.parametrize("address", ["unix:///run/docker.sock", "tcp://127.0.0.1:2375", "ssh://engine.example"])
def test_no_certificate_is_needed_on_this_machine_and_over_ssh(address: str) -> None:
    assert problem_of(address, {}) == ""
