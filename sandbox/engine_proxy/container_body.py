"""What a gateway may have made: containers as container_config.py describes them, and nothing that reaches the host.

Every field that is not known is refused: the engine reads names in any case, and knows more of them each year.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from sandbox.docker.container_config import CAPABILITIES, CHANNEL_DIRECTORY, INSTANCE_LABEL, KIND_LABEL

OWN_NAME = re.compile(r"airlock-[A-Za-z0-9_.-]{1,200}")
NEVER_STARTED = "/never-started"
"""The entry point of a container that is only there for its volumes."""
_SANDBOX_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,100}")
_SYSCTL = re.compile(r"kernel\.(shm|msg|sem)\w*|fs\.mqueue\.\w+")
_ULIMITS = {"nofile", "core", "fsize", "nproc", "msgqueue"}

Check = Callable[[Any], bool]


class Refused(Exception):
    """What was asked for may not be had by a gateway; str() names the field."""


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _mapping(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _one_of(*values: Any) -> Check:
    return lambda value: any(value == one and type(value) is type(one) for one in values)


def _within(values: set[str]) -> Check:
    return lambda found: _texts(found) and values.issuperset(found)


_CONTAINER: Mapping[str, Check] = {
    "Image": _text,
    "Entrypoint": _texts,
    "Cmd": _texts,
    "User": _text,
    "WorkingDir": _text,
    "Healthcheck": _one_of({"Test": ["NONE"]}),
    "StopSignal": _text,
    "Hostname": _text,
    "Env": _texts,
    "NetworkDisabled": _flag,
    "Labels": _mapping,
    "HostConfig": lambda value: isinstance(value, dict),
}
_HOST: Mapping[str, Check] = {
    "Runtime": _one_of("runc", "runsc"),
    "Init": _flag,
    "NetworkMode": _one_of("none"),
    "IpcMode": _one_of("private", "none"),
    "CapDrop": _one_of(["ALL"]),
    "CapAdd": _within({*CAPABILITIES}),
    "SecurityOpt": _one_of(["no-new-privileges"]),
    "ReadonlyRootfs": _one_of(True),
    "Tmpfs": _mapping,
    "Sysctls": lambda value: _mapping(value) and all(_SYSCTL.fullmatch(name) for name in value),
    "Mounts": lambda value: isinstance(value, list),
    "LogConfig": _one_of({"Type": "none", "Config": {}}),
    "RestartPolicy": _one_of({"Name": "no"}),
    "Memory": _number,
    "MemorySwap": _number,
    "NanoCpus": _number,
    "PidsLimit": _number,
    "Ulimits": lambda value: isinstance(value, list) and all(_ulimit(item) for item in value),
}
# What a container that runs has in any case, and one that is never started may do without.
_NEEDED = ("CapDrop", "SecurityOpt", "ReadonlyRootfs", "LogConfig", "Memory", "MemorySwap", "NanoCpus", "PidsLimit")
_VOLUME_MOUNT: Mapping[str, Check] = {
    "Type": _one_of("volume"),
    "Source": lambda value: _text(value) and OWN_NAME.fullmatch(value) is not None,
    "Target": _text,
    "ReadOnly": _flag,
    "VolumeOptions": lambda value: isinstance(value, dict),
}
_VOLUME_OPTIONS: Mapping[str, Check] = {
    "NoCopy": _flag,
    "Labels": _mapping,
    # The local driver mounts whatever device its other options name, the host's root directory as well.
    "DriverConfig": lambda value: _volume_driver(value, "Name", "Options"),
}


def check_container(body: Any, channel_root: Path) -> None:
    """Raise Refused for a body of POST /containers/create that is more than a sandbox, or its gateway's own volumes."""
    _check("container", body, _CONTAINER)
    host = body.get("HostConfig", {})
    _check("HostConfig", host, _HOST)
    if host.get("NetworkMode") != "none":
        raise Refused("HostConfig.NetworkMode: a sandbox has no network")
    if not {INSTANCE_LABEL, KIND_LABEL} <= set(body.get("Labels", {})):
        raise Refused(f"Labels: {INSTANCE_LABEL} and {KIND_LABEL} say whose a container is")
    missing = [name for name in _NEEDED if name not in host]
    if missing and body.get("Entrypoint") != [NEVER_STARTED]:
        raise Refused(f"HostConfig.{missing[0]}: a sandbox has one")
    for mount in host.get("Mounts", []):
        _check_mount(mount, channel_root)


def check_volume(body: Any) -> None:
    """Raise Refused for a body of POST /volumes/create that is more than a volume of a size, or one with labels."""
    named = isinstance(body, dict) and isinstance(body.get("Name"), str) and OWN_NAME.fullmatch(body["Name"])
    driver = {k: v for k, v in body.items() if k not in ("Name", "Labels")} if named else None
    if not _volume_driver(driver) or not _mapping(body.get("Labels", {})):
        raise Refused("volume: its name begins with airlock-, its driver is local, and its one option is size")


def check_binds(found: Mapping[str, Any], channel_root: Path) -> None:
    """Raise Refused for a container, as GET /containers/{id}/json tells of it, that has more of the host than channels.

    Of what it was made from they may be links by now.
    """
    for mount in found.get("Mounts") or ():
        if mount.get("Type") not in ("volume", "tmpfs"):
            _check_source(mount.get("Source"), channel_root)


def _check_source(source: Any, channel_root: Path) -> None:
    name = PurePosixPath(source).name if isinstance(source, str) else ""
    plain = _SANDBOX_ID.fullmatch(name) and source == f"{channel_root}/{name}"
    if not plain or not _directory(channel_root / name):
        raise Refused(f"Mounts: of the host only a directory in {channel_root} may be mounted")


def _check_mount(mount: Any, channel_root: Path) -> None:
    if isinstance(mount, dict) and mount.get("Type") == "bind":
        source = mount.get("Source")
        _check_source(source, channel_root)
        if {**mount, "ReadOnly": False} != {
            "Type": "bind",
            "Source": source,
            "Target": CHANNEL_DIRECTORY,
            "ReadOnly": False,
        }:
            raise Refused(f"Mounts: a channel is mounted at {CHANNEL_DIRECTORY}, and in no special way")
        return
    _check("Mounts", mount, _VOLUME_MOUNT)
    if "Source" not in mount or "Type" not in mount:
        raise Refused("Mounts: a mount is a volume of a name, or a channel")
    _check("Mounts.VolumeOptions", mount.get("VolumeOptions", {}), _VOLUME_OPTIONS)


def _directory(path: Path) -> bool:
    """Return whether a path is a directory and no link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _volume_driver(value: Any, name: str = "Driver", options: str = "DriverOpts") -> bool:
    if not isinstance(value, dict) or not {name, options}.issuperset(value):
        return False
    given = value.get(options, {})
    return value.get(name, "local") == "local" and _mapping(given) and set(given) <= {"size"}


def _ulimit(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"Name", "Soft", "Hard"} and value["Name"] in _ULIMITS


def _check(what: str, value: Any, known: Mapping[str, Check]) -> None:
    if not isinstance(value, dict):
        raise Refused(f"{what}: a mapping is expected")
    for name, given in value.items():
        check = known.get(name)
        if check is None:
            raise Refused(f"{what}: {name[:64]!r} is nothing that a gateway asks for")
        if not check(given):
            raise Refused(f"{what}.{name}: not as a gateway asks for it")
