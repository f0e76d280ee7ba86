"""compose.yaml, read as `docker compose` would read it: who reaches what, and who waits for whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from gateway.cli.main import app

ROOT = Path(__file__).parents[3]
FILE = ROOT / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
# What the Compose specification has, of what is of use here: a misspelt key would be refused on the operator's machine.
KNOWN = {
    *("image", "command", "user", "environment", "secrets", "volumes", "networks", "network_mode", "healthcheck"),
    *("security_opt", "cap_drop", "cap_add", "stop_grace_period", "restart", "labels", "read_only", "tmpfs", "ports"),
    "depends_on",
}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_known_healthy_labelled_and_comes_up_again(name: str) -> None:
    service = SERVICES[name]
    assert set(service) <= KNOWN
    assert set(service["healthcheck"]) <= {"test", "interval", "timeout", "retries", "start_period"}
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["labels"]["airlock.kind"]
    assert service["restart"] == "unless-stopped"
    assert service["security_opt"] == ["no-new-privileges:true"]
    if service["healthcheck"]["test"][1] == "python3":
        compile(service["healthcheck"]["test"][3], name, "exec")


def test_the_services_are_the_gateway_its_database_and_its_way_to_the_engine() -> None:
    assert set(SERVICES) == {"database", "engine", "gateway"}
    waits = {name: one["condition"] for name, one in SERVICES["gateway"]["depends_on"].items()}
    assert waits == {"database": "service_healthy", "engine": "service_healthy"}


def test_nothing_is_published_but_on_loopback() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:7443:7443"]


def test_the_engine_s_socket_is_the_proxy_s_alone_which_has_no_network() -> None:
    holders = [name for name, one in SERVICES.items() if any("docker.sock" in volume for volume in one["volumes"])]
    assert holders == ["engine"]
    assert SERVICES["engine"]["network_mode"] == "none"
    assert SERVICES["gateway"]["environment"]["DOCKER_HOST"] == "unix:///run/engine/docker.sock"
    assert "user" not in SERVICES["gateway"]  # the image's own, 10000, which the proxy knows
    assert SERVICES["engine"]["command"][-1] == "10000"
    for name in ("engine", "gateway"):
        assert SERVICES[name]["cap_drop"] == ["ALL"]
        assert SERVICES[name]["read_only"] is True
    assert "cap_add" not in SERVICES["gateway"]


def test_the_database_is_reached_by_the_gateway_alone_and_its_password_is_a_secret() -> None:
    assert COMPOSE["networks"]["database"]["internal"] is True
    assert [name for name, one in SERVICES.items() if "database" in one.get("networks", [])] == ["database", "gateway"]
    assert SERVICES["database"]["networks"] == ["database"]
    assert "PASSWORD:" not in FILE.read_text(encoding="utf-8")
    for name in ("database", "gateway"):
        assert SERVICES[name]["secrets"] == ["database_password"]
    assert set(COMPOSE["secrets"]["database_password"]) == {"file"}
    assert "/secrets/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_each_named_volume_is_declared_and_labelled() -> None:
    used = {volume.partition(":")[0] for one in SERVICES.values() for volume in one["volumes"]}
    named = {volume for volume in used if not volume.startswith("/")}
    assert named == set(COMPOSE["volumes"])
    assert all(volume["labels"]["airlock.kind"] for volume in COMPOSE["volumes"].values())


@pytest.mark.parametrize("name", ["engine", "gateway"])
def test_the_gateway_s_image_runs_a_command_of_its_own(name: str) -> None:
    commands: Any = typer.main.get_command(app)
    command, *rest = SERVICES[name]["command"]
    options = {option for parameter in commands.commands[command].params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= options
