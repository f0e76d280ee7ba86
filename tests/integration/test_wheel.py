"""The wheels in empty environments: a gateway that builds its images and serves, and a client with two dependencies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.docker_state import containers_of, volumes_of
from tests.made_instances import record_instance

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
TAG = f"test-{os.getpid()}"
_NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info")


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None, check: bool = True) -> str:
    """Run a command away from the tree, which it would import from otherwise, and return what it printed."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AIRLOCK"))}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=plain | (env or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert not check or done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Installed:
    """An environment with nothing but a wheel and what that needs."""

    directory: Path

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def airlock(self) -> Path:
        return self.directory / "bin" / "airlock"


def installed(source: Path, directory: Path) -> Installed:
    """Build a wheel of a copied tree, whose builds leave nothing in ours, and install it."""
    made = Installed(directory / "venv")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", directory / "wheels", ".", cwd=source)
    [wheel] = (directory / "wheels").glob("*.whl")
    run(sys.executable, "-m", "venv", made.directory, cwd=directory)
    run(made.python, "-m", "pip", "--disable-pip-version-check", "install", "-q", wheel, cwd=directory)
    return made


def dependencies(project: Path) -> list[str]:
    needed: list[str] = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    return needed


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("tree") / "airlock"
    shutil.copytree(ROOT, target, ignore=_NOT_COPIED)
    shutil.copy(ROOT / ".dockerignore", target)
    return target


@pytest.fixture(scope="module")
def gateway(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return installed(tree, tmp_path_factory.mktemp("gateway-wheel"))


@pytest.fixture(scope="module")
def images(gateway: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Build the images under a tag of their own: other checkouts use those without."""
    names = {kind: f"airlock-{kind}:{TAG}" for kind in ("runtime", "sandbox")}
    try:
        said = run(gateway.airlock, "images", "build", "--tag", TAG, "--json", cwd=tmp_path_factory.mktemp("images"))
        assert json.loads(said) == {"images": [*names.values()]}
        yield names
    finally:
        found = subprocess.run(
            ["docker", "image", "inspect", "-f", "{{.Id}}", names["runtime"]],
            capture_output=True,
            text=True,
            check=False,
        )
        if volume := found.stdout.strip()[7:19]:
            subprocess.run(["docker", "volume", "rm", f"airlock-runtime-{volume}"], capture_output=True, check=False)
        subprocess.run(["docker", "rmi", *names.values()], capture_output=True, check=False)


@contextmanager
def serving(gateway: Installed, directory: Path, images: dict[str, str]) -> Iterator[dict[str, str]]:
    """Serve with the built images; yield the variables for its commands."""
    keys = json.loads(run(gateway.airlock, "init", directory / "data", "--json", cwd=directory))
    config = Path(keys["config"])
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    document["sandbox"] = {"runtime_image": images["runtime"], "keep_workspaces": False, "pool_limit": 0}
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    policy = config.parent / "policies" / "default.yaml"
    text = policy.read_text(encoding="utf-8")
    policy.write_text(text.replace("image: airlock-sandbox\n", f"image: {images['sandbox']}\n"), encoding="utf-8")
    ready = directory / "ready"
    serve = [gateway.airlock, "serve", "--config", config, "--listen", "127.0.0.1:0", "--ready-file", ready]
    with (
        (directory / "log").open("w") as log,
        subprocess.Popen(serve, cwd=directory, stdout=log, stderr=log) as process,
    ):
        try:
            deadline = time.monotonic() + 120
            while not ready.exists():
                assert process.poll() is None, (directory / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            record_instance(instance := (config.parent / "state" / "instance").read_text(encoding="ascii"))
            yield {"AIRLOCK_ADDRESS": ready.read_text(encoding="utf-8"), "AIRLOCK_API_KEY": keys["key"]}
        finally:
            process.terminate()
    assert process.returncode == 0
    assert containers_of(instance) == []
    assert volumes_of(instance) == []


def test_the_wheels_serve_and_call_where_nothing_else_is_installed(
    gateway: Installed, images: dict[str, str], tree: Path, tmp_path: Path
) -> None:
    client = installed(tree / "clients" / "python", tmp_path)
    packages = json.loads(run(client.python, "-m", "pip", "list", "--format", "json", cwd=tmp_path))
    names = {package["name"].lower() for package in packages} - {"pip", "setuptools", "wheel"}
    assert names == {"airlock-agent-client", "grpcio", "protobuf", "typing_extensions"}

    with serving(gateway, tmp_path, images) as env:
        assert run(gateway.airlock, "exec", "--", "echo", "hi", cwd=tmp_path, env=env) == "hi\n"
        code = """
import os, sys
import airlock
with airlock.SyncClient(os.environ["AIRLOCK_ADDRESS"], os.environ["AIRLOCK_API_KEY"]) as client:
    print(client.execute("cat", stdin=b"from the small client").raise_for_status().stdout)
    try:
        client.read_file("default", "missing")
    except airlock.NotFound as error:
        print(type(error).__name__)
print(sorted({"agent", "gateway", "sandbox", "pydantic", "opentelemetry"} & set(sys.modules)))
"""
        newest = run(client.python, "-W", "error", "-c", code, cwd=tmp_path, env=env)
        lowest = [one.replace(">=", "==") for one in dependencies(tree / "clients" / "python" / "pyproject.toml")]
        run(client.python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *lowest, cwd=tmp_path)
        oldest = run(client.python, "-W", "error", "-c", code, cwd=tmp_path, env=env)
    assert newest.splitlines() == ["from the small client", "NotFound", "[]"]
    assert oldest == newest


def test_the_doctor_of_the_wheel_says_which_images_a_gateway_needs(gateway: Installed, tmp_path: Path) -> None:
    found = json.loads(run(gateway.airlock, "doctor", "--json", cwd=tmp_path, check=False))
    assert {"image airlock-sandbox", "image airlock-runtime"} <= {finding["what"] for finding in found["findings"]}
    assert run(gateway.airlock, "--version", cwd=tmp_path).startswith("airlock 0.")
