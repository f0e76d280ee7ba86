"""What a gateway instance has in Docker, seen from outside."""

from __future__ import annotations

import subprocess
from pathlib import Path


def containers_of(instance: str) -> list[str]:
    """Return the ids of an instance's containers, running or not."""
    return _ids("ps", "-aq", instance)


def volumes_of(instance: str) -> list[str]:
    """Return the names of an instance's volumes."""
    return _ids("volume ls", "-q", instance)


def mountpoint_of(volume: str) -> Path:
    """Return where the host has a volume's files."""
    asked = ["docker", "volume", "inspect", "--format", "{{.Mountpoint}}", volume]
    return Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())


def _ids(command: str, flag: str, instance: str) -> list[str]:
    listed = subprocess.run(
        ["docker", *command.split(), flag, "--filter", f"label=airlock.instance={instance}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()
