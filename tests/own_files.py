"""A process that sees files of a test's own at paths of the machine's, such as /etc/hosts, in a mount namespace."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

needs_own_files = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root, with unshare, gives a process own files"
)


def seeing(files: Mapping[str, Path]) -> Sequence[str]:
    """Return a command that execs the one that follows it, for which each of these paths is that file."""
    mounts = (shlex.join(["mount", "--bind", str(file), path]) for path, file in files.items())
    return ("unshare", "--mount", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh")
