"""What is in a volume, removed before the volume is.

An engine that removes a volume makes no other one until it is through with all files in it, a second or more for each
50,000. It blocks no request while it unpacks an archive into a container, and where a file replaces a
directory, it first removes that with all that is in it. So an archive of one file is unpacked in the place of the
workspace, in a container that is never started. That a volume is mounted there the engine sees when all is gone from
it, and refuses.

A tree with more levels than an engine may have descriptors it can remove neither way. A program of ours can.
"""

from __future__ import annotations

import io
import json
import logging
import posixpath
import tarfile

from sandbox.engines.docker import container_config as config
from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.errors import SandboxError, SandboxUnavailable
from sandbox.filesystem import WORKSPACE
from sandbox.owner import Owner

log = logging.getLogger(__name__)

# What is left when it ends is less than before; a later removal goes on with it.
_DEEP_TIMEOUT_S = 120


def empty_volume(requests: DockerRequests, volume: str, *, image: str, instance: str, owner: Owner) -> bool:
    """Remove what is in a thread's volume, if no container has that; return whether any may be gone. It blocks.

    Where an engine does not do as above, files are left, which go with the volume.
    """
    name = config.carrier_name(instance, owner)
    begun = False
    try:
        if not requests.ask_here(docker_requests.has_volume, volume):
            return begun
        if requests.ask_here(docker_requests.is_mounted, volume):
            return begun
        requests.ask_here(docker_requests.create_container, config.emptier_config(image, volume, instance, owner), name)
        try:
            begun = True
            requests.put_archive(name, posixpath.dirname(WORKSPACE), [_file_in_its_place()])
        finally:
            requests.ask_here(docker_requests.remove_container, name)
    except SandboxError as error:
        log.debug("emptied volume %s: %s", volume, error)
    return begun


def empty_deep_volume(requests: DockerRequests, volume: str, *, image: str, instance: str, owner: Owner) -> None:
    """Remove what is in a volume with a tree too deep for the engine, by a program that runs in a container; it blocks.

    Raises SandboxError where that does not come to its end, and where a container has the volume.
    """
    if requests.ask_here(docker_requests.is_mounted, volume):
        raise SandboxUnavailable(f"volume {volume} is in use")
    name = config.carrier_name(instance, owner)
    found = requests.ask_here(docker_requests.inspect_image, image)
    body = config.deep_emptier_config(json.loads(found.labels[config.COMMAND_LABEL]), image, volume, instance, owner)
    try:
        code = requests.ask_here(docker_requests.run_container, body, name, timeout_s=_DEEP_TIMEOUT_S)
    finally:
        requests.ask_here(docker_requests.remove_container, name)
    if code:
        raise SandboxUnavailable(f"volume {volume} could not be emptied: the program for it exited with {code}")


def _file_in_its_place() -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(posixpath.basename(WORKSPACE)))
    return archive.getvalue()
