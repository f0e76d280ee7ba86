"""What a gateway instance has in Docker, seen from outside."""

from __future__ import annotations

import subprocess


def containers_of(instance: str) -> list[str]:
    """Return the ids of an instance's containers, running or not."""
    return _ids("ps", "-aq", instance)


def volumes_of(instance: str) -> list[str]:
    """Return the names of an instance's volumes."""
    return _ids("volume ls", "-q", instance)


def _ids(command: str, flag: str, instance: str) -> list[str]:
    listed = subprocess.run(
        ["docker", *command.split(), flag, "--filter", f"label=airlock.instance={instance}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()
