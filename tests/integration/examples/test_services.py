"""The example services, each as its readers run it, against a real gateway."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, Served, make_home, served

EXAMPLES = Path(__file__).parents[3] / "examples"
ROOT = EXAMPLES.parent
SAID = ["read north", "read south", "read north", "read west"]
REPORT = '{"north":160,"south":80,"west":15}'


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Served]]:
    home = make_home(tmp_path_factory.mktemp("gateway"))
    with served(home) as gateway:
        yield home, gateway
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


def run(
    *command: str, cwd: Path = ROOT, gateway: tuple[Home, Served] | None = None, key: str = "", timeout_s: float = 300
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if gateway is not None:
        home, serving = gateway
        env |= {"AIRLOCK_ADDRESS": serving.address, "AIRLOCK_API_KEY": key or home.key}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.fixture(scope="module")
def typescript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The TypeScript example, generated and built in a copy, where its packages can be had."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("needs node and npm: apt-get install nodejs npm")
    copy = tmp_path_factory.mktemp("clone") / "examples" / "typescript"
    built = shutil.ignore_patterns("node_modules", "build", "gen")
    shutil.copytree(EXAMPLES / "typescript", copy, ignore=built)
    shutil.copytree(ROOT / "proto", copy.parents[1] / "proto")
    installed = run("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", cwd=copy)
    if installed.returncode and "ENOTFOUND" in installed.stderr:
        pytest.skip("needs an npm registry: set npm config registry")
    assert installed.returncode == 0, installed.stderr
    for step in ("generate", "build"):
        done = run("npm", "run", "--silent", step, cwd=copy)
        assert done.returncode == 0, done.stdout + done.stderr
    return copy


def test_the_python_service_makes_its_report(gateway: tuple[Home, Served]) -> None:
    done = run(sys.executable, "-m", "examples.report_service", gateway=gateway)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [*SAID, REPORT]


def test_the_python_service_says_what_is_wrong(gateway: tuple[Home, Served]) -> None:
    done = run(sys.executable, "-m", "examples.report_service", gateway=gateway, key="alk_nobodys")
    assert done.returncode == 1
    assert done.stderr.startswith("no report: the API key is not valid")


def test_the_typescript_service_makes_the_same_report(gateway: tuple[Home, Served], typescript: Path) -> None:
    done = run("npm", "run", "--silent", "start", cwd=typescript, gateway=gateway, timeout_s=25)  # its call's is 30 s
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*SAID, REPORT]


def test_the_typescript_service_fails_without_a_key(gateway: tuple[Home, Served], typescript: Path) -> None:
    done = run("npm", "run", "--silent", "start", cwd=typescript, gateway=gateway, key="alk_nobodys")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("no report: the API key is not valid")
    assert line.endswith("(UNAUTHENTICATED)")
