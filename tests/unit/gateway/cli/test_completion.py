"""Completion as shells ask for it: the script that `airlock --show-completion` prints, in a real bash."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_BIN = Path(sys.executable).parent
# The shell is named, not looked for among the parents of this process: under CI there may be none.
_ENV = {
    **os.environ,
    "PATH": f"{_BIN}:{os.environ['PATH']}",
    "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
}


@functools.cache
def _script() -> str:
    shown = subprocess.run(
        [_BIN / "airlock", "--show-completion", "bash"],
        env=_ENV,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return shown.stdout


@pytest.mark.parametrize(
    "typed, offered",
    [
        ("airlock pol", {"policy"}),
        ("airlock policy ro", {"rollback"}),
        ("airlock runs watch --fr", {"--from"}),
        ("airlock te", {"tenant"}),
    ],
)
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash: apt-get install bash")
def test_bash_completes_subcommands_and_options(typed: str, offered: set[str]) -> None:
    words = typed.split()
    asked = f'COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _airlock_completion airlock; echo "${{COMPREPLY[@]}}"'
    completed = subprocess.run(
        ["bash", "-c", f"{_script()}\n{asked}"], env=_ENV, capture_output=True, text=True, check=True, timeout=60
    )
    assert offered <= set(completed.stdout.split())


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_too(shell: str) -> None:
    shown = subprocess.run(
        [_BIN / "airlock", "--show-completion", shell], env=_ENV, capture_output=True, text=True, check=True, timeout=60
    )
    assert "_AIRLOCK_COMPLETE" in shown.stdout
