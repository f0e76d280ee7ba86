"""Tests that look at what a program asks of the kernel need strace, and to be let trace."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def _strace_works() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], check=False, capture_output=True).returncode == 0


needs_strace = pytest.mark.skipif(
    not _strace_works(), reason="needs strace and the right to trace: apt-get install strace, run as root"
)
