"""The requests that a gateway makes (docker_requests.py), and what is validated in each. All others are refused.

It may create containers as in container_config.py, and nothing with access to the host. Unknown fields are refused: the
engine ignores the case of names, and each release adds fields.
"""

import posixpath
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from sandbox.engines.containment import CAPABILITIES, CHANNEL_DIRECTORY, RUNTIME_DIRECTORY
from sandbox.engines.docker import container_config as config
from sandbox.protocols import WORKSPACE

OWN_NAME = re.compile(r"airlock-[A-Za-z0-9_.-]{1,200}")
LIMIT_BYTES = 64 * 1024
_LINE = re.compile(r"([A-Z]{3,7}) (/[\x21-\x7e]*) HTTP/1\.[01]")
_FIELD = re.compile(r"([A-Za-z0-9-]{1,64}):[ \t]*([\x20-\x7e\t]*?)[ \t]*")
_VERSION = re.compile(r"/v1\.([0-9]{1,2})(?=/)")
# Before 1.25 a start could change the whole configuration.
_LEAST_MINOR_VERSION = 40
_CONTAINER_PATH = r"/containers/(?P<container>[A-Za-z0-9][A-Za-z0-9_.-]{0,250})"
_IMAGE = r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,510}"


class Refused(Exception):
    """The request is not allowed for a gateway; str() names the field."""


class BadRequest(Exception):
    """The request is malformed or ambiguous."""


@dataclass(frozen=True)
class Head:
    """A request: `version` is "" or like /v1.41, and `path` is decoded, without the version."""

    method: str
    version: str
    path: str
    query: Mapping[str, str]
    fields: Mapping[str, str]

    @property
    def length_bytes(self) -> int | None:
        """The length of the body; None if it is chunked."""
        return None if "transfer-encoding" in self.fields else int(self.fields.get("content-length", "0"))


def read_head(data: bytes) -> Head:
    """Parse a head, including its final empty line; raises BadRequest."""
    lines = data.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    line = _LINE.fullmatch(lines[0])
    if line is None:
        raise BadRequest("the request line is none")
    fields: dict[str, str] = {}
    for text in lines[1:]:
        field = _FIELD.fullmatch(text)
        name = field[1].lower() if field is not None else ""
        if field is None or name in fields:
            raise BadRequest("a header field is malformed, or there twice")
        fields[name] = field[2]
    _check_body(fields)
    parts = urlsplit(line[2])
    version = _VERSION.match(parts.path)
    if version is not None and int(version[1]) < _LEAST_MINOR_VERSION:
        raise BadRequest(f"version 1.{_LEAST_MINOR_VERSION} of the engine's API is the least")
    found = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=32)
    query = dict(found)
    path = unquote(parts.path[version.end() :] if version is not None else parts.path)
    if len(query) != len(found) or parts.netloc or parts.fragment:
        raise BadRequest("a parameter is there twice, or the target is no path")
    if not path.isascii() or not path.isprintable() or {"", ".", ".."} & {*path.split("/")[1:]}:
        raise BadRequest("the path is not plain")
    return Head(line[1], version[0] if version is not None else "", path, query, fields)


def _check_body(fields: Mapping[str, str]) -> None:
    length, coding = fields.get("content-length"), fields.get("transfer-encoding")
    if "upgrade" in fields or "upgrade" in fields.get("connection", "").lower():
        raise BadRequest("no connection becomes another one here")
    if coding is not None and (coding.lower() != "chunked" or length is not None):
        raise BadRequest("the length of the body may be read in two ways")
    if length is not None and not re.fullmatch(r"[0-9]{1,15}", length):
        raise BadRequest("Content-Length is no number")


@dataclass(frozen=True)
class Route:
    """A kind of request: its parameters and its body.

    `body`: "container" and "volume" are parsed and validated, "stream" passes unchanged, "none" is dropped. `starts`
    says that the request starts the container, `files` that the engine reads or writes files of the container.
    """

    method: str
    path: str
    parameters: tuple[str, ...] = ()
    _: KW_ONLY
    body: Literal["none", "container", "volume", "stream"] = "none"
    starts: bool = False
    files: bool = False


ROUTES = (
    Route("GET", "/_ping"),
    Route("HEAD", "/_ping"),
    Route("GET", "/version"),
    Route("GET", "/info"),
    Route("GET", "/images/json", ("all", "digests", "filter", "filters", "only_ids")),
    Route("GET", f"/images/{_IMAGE}/json"),
    # From a registry only: to load an image from a URL the engine would fetch anything its host can reach.
    Route("POST", "/images/create", ("fromImage", "tag", "platform")),
    Route("GET", "/containers/json", ("all", "filters", "limit", "size", "trunc_cmd")),
    Route("POST", "/containers/create", ("name",), body="container"),
    Route("GET", f"{_CONTAINER_PATH}/json"),
    Route("POST", f"{_CONTAINER_PATH}/start", starts=True),
    Route("POST", f"{_CONTAINER_PATH}/stop", ("t",)),
    Route("POST", f"{_CONTAINER_PATH}/kill", ("signal",)),
    Route("POST", f"{_CONTAINER_PATH}/wait", ("condition",)),
    Route("GET", f"{_CONTAINER_PATH}/stats", ("stream", "one-shot")),
    Route("GET", f"{_CONTAINER_PATH}/archive", ("path",), files=True),
    Route("PUT", f"{_CONTAINER_PATH}/archive", ("path",), body="stream", files=True),
    Route("DELETE", _CONTAINER_PATH, ("v", "force", "link")),
    Route("GET", "/volumes", ("filters",)),
    Route("POST", "/volumes/create", body="volume"),
    Route("GET", f"/volumes/{OWN_NAME.pattern}"),
    Route("DELETE", f"/volumes/{OWN_NAME.pattern}", ("force",)),
)


def route_of(head: Head) -> tuple[Route, str | None]:
    """Return a request's route and the name or id of its container, if any; raises Refused."""
    for route in ROUTES:
        found = re.fullmatch(route.path, head.path) if route.method == head.method else None
        if found is None:
            continue
        unknown = sorted(set(head.query).difference(route.parameters))
        if unknown:
            raise Refused(f"{head.method} {head.path}: no parameter {unknown[0][:64]!r} for a gateway")
        name = head.query.get("name")
        if name is not None and not OWN_NAME.fullmatch(name):
            raise Refused("a container's name begins with airlock-")
        return route, found.groupdict().get("container")
    raise Refused(f"{head.method} {head.path}: no request that a gateway makes")


NEVER_STARTED = "/never-started"
"""The entry point of a container that exists for its volumes only."""
_RUNTIME_VOLUME = re.compile(r"airlock-runtime-[0-9a-f]{12}")
_SANDBOX_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,100}")
_SYSCTL = re.compile(r"kernel\.(shm|msg|sem)\w*|fs\.mqueue\.\w+|net\.ipv4\.tcp_[rw]mem")
_TMPFS_OPTION = re.compile(r"ro|rw|nosuid|nodev|noexec|exec|(size|nr_inodes|mode)=[0-9]+[kmg]?")
_ULIMITS = {"nofile", "core", "fsize", "nproc", "msgqueue"}

Check = Callable[[Any], bool]


def _is(kind: type) -> Check:
    return lambda value: type(value) is kind


_text, _flag = _is(str), _is(bool)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _number(value: Any) -> bool:
    return type(value) is int and value > 0


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
    "HostConfig": _is(dict),
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
    "Tmpfs": lambda value: _mapping(value) and all(map(_tmpfs, value.items())),
    "Sysctls": lambda value: _mapping(value) and all(_SYSCTL.fullmatch(name) for name in value),
    "Mounts": _is(list),
    "LogConfig": _one_of({"Type": "none", "Config": {}}),
    "RestartPolicy": _one_of({"Name": "no"}),
    "Memory": _number,
    "MemorySwap": _number,
    "NanoCpus": _number,
    "PidsLimit": _number,
    "Ulimits": lambda value: isinstance(value, list) and all(_ulimit(item) for item in value),
}
# Required in a container that runs; one that is never started may omit them.
_NEEDED = ("CapDrop", "SecurityOpt", "ReadonlyRootfs", "LogConfig", "Memory", "MemorySwap", "NanoCpus", "PidsLimit")
_VOLUME_MOUNT: Mapping[str, Check] = {
    "Type": _one_of("volume"),
    "Source": lambda value: _text(value) and OWN_NAME.fullmatch(value) is not None,
    "Target": _text,
    "ReadOnly": _flag,
    "VolumeOptions": _is(dict),
}
_VOLUME_OPTIONS: Mapping[str, Check] = {
    "NoCopy": _flag,
    "Labels": _mapping,
    # Other options of the local driver mount any device, including the host's root directory.
    "DriverConfig": lambda value: _volume_driver(value, "Name", "Options"),
}


def check_container(body: Any, channel_root: Path) -> None:
    """Raise Refused for a body of POST /containers/create that exceeds a sandbox or a gateway's own volumes."""
    _check("container", body, _CONTAINER)
    host = body.get("HostConfig", {})
    _check("HostConfig", host, _HOST)
    if host.get("NetworkMode") != "none":
        raise Refused("HostConfig.NetworkMode: a sandbox has no network")
    if not {config.INSTANCE_LABEL, config.KIND_LABEL} <= set(body.get("Labels", {})):
        raise Refused(f"Labels: {config.INSTANCE_LABEL} and {config.KIND_LABEL} say whose a container is")
    missing = [name for name in _NEEDED if name not in host]
    never_started = body.get("Entrypoint") == [NEVER_STARTED]
    if missing and not never_started:
        raise Refused(f"HostConfig.{missing[0]}: a sandbox has one")
    mounts = host.get("Mounts", [])
    for mount in mounts:
        _check_mount(mount, channel_root, never_started=never_started)
    if never_started:
        _check_single_volume([(mount["Type"], mount["Target"]) for mount in mounts])


def fills_volume(body: Mapping[str, Any]) -> bool:
    """Return whether the engine copies files of an image to a volume when it creates this container."""
    return any(_is_copied(mount) for mount in body["HostConfig"].get("Mounts", []))


def check_volume(body: Any) -> None:
    """Raise Refused for a body of POST /volumes/create with more than a name, a size and labels."""
    named = isinstance(body, dict) and isinstance(body.get("Name"), str) and OWN_NAME.fullmatch(body["Name"])
    driver = {k: v for k, v in body.items() if k not in ("Name", "Labels")} if named else None
    if not _volume_driver(driver) or not _mapping(body.get("Labels", {})):
        raise Refused("volume: its name begins with airlock-, its driver is local, and its one option is size")


def check_binds(found: Mapping[str, Any], channel_root: Path) -> None:
    """Raise Refused for a container, from GET /containers/{id}/json, that mounts more of the host than channels.

    The channels may have been replaced by links since it was created.
    """
    for mount in found.get("Mounts") or ():
        if mount.get("Type") not in ("volume", "tmpfs"):
            _check_source(mount.get("Source"), channel_root)


def check_files(found: Mapping[str, Any], *, written: bool) -> None:
    """Raise Refused for a container, as in check_binds(), whose files the engine must not read or write.

    To do so it mounts the container's binds and volumes by path. A bind may be a link by now, and so may a path in a
    volume that a running container has too.
    """
    mounts = found.get("Mounts") or []
    if found.get("Path") != NEVER_STARTED or not mounts:
        raise Refused("archive: only of a container that is never started, and has a volume")
    _check_single_volume([(mount.get("Type"), mount.get("Destination")) for mount in mounts])
    if written and (mounts[0]["Destination"] != WORKSPACE or _RUNTIME_VOLUME.fullmatch(str(mounts[0].get("Name")))):
        raise Refused("archive: the runtime's volume is not written to")


def _check_single_volume(mounts: Sequence[tuple[Any, Any]]) -> None:
    runtime = RUNTIME_DIRECTORY
    if any(mount not in (("volume", WORKSPACE), ("volume", runtime)) for mount in mounts) or len(mounts) > 1:
        raise Refused(f"Mounts: what is never started has one volume, at {WORKSPACE} or {runtime}, and no channel")


def _is_copied(mount: Mapping[str, Any]) -> bool:
    return mount["Type"] == "volume" and mount.get("VolumeOptions", {}).get("NoCopy") is not True


def _check_source(source: Any, channel_root: Path) -> None:
    name = PurePosixPath(source).name if isinstance(source, str) else ""
    plain = _SANDBOX_ID.fullmatch(name) and source == f"{channel_root}/{name}"
    if not plain or not _directory(channel_root / name):
        raise Refused(f"Mounts: of the host only a directory in {channel_root} may be mounted")


def _check_mount(mount: Any, channel_root: Path, *, never_started: bool) -> None:
    if isinstance(mount, dict) and mount.get("Type") == "bind":
        source = mount.get("Source")
        _check_source(source, channel_root)
        channel = {"Type": "bind", "Source": source, "Target": CHANNEL_DIRECTORY, "ReadOnly": False}
        if {**mount, "ReadOnly": False} != channel:
            raise Refused(f"Mounts: a channel is mounted at {CHANNEL_DIRECTORY}, and in no special way")
        return
    _check("Mounts", mount, _VOLUME_MOUNT)
    if not {"Type", "Source", "Target"} <= set(mount):
        raise Refused("Mounts: a mount is a volume of a name, or a channel")
    _check("Mounts.VolumeOptions", mount.get("VolumeOptions", {}), _VOLUME_OPTIONS)
    runtime = _RUNTIME_VOLUME.fullmatch(mount["Source"]) is not None
    if runtime != (mount["Target"] == RUNTIME_DIRECTORY):
        raise Refused(f"Mounts: a runtime's volume, and no other one, is mounted at {RUNTIME_DIRECTORY}")
    # The engine copies by path, as root, so links that are created meanwhile could lead it anywhere on the host.
    if not (runtime and never_started) and (_is_copied(mount) or (runtime and mount.get("ReadOnly") is not True)):
        raise Refused("Mounts: no volume is filled from an image but a runtime's, which nothing that runs may change")


def _directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _volume_driver(value: Any, name: str = "Driver", options: str = "DriverOpts") -> bool:
    if not isinstance(value, dict) or not {name, options}.issuperset(value):
        return False
    given = value.get(options, {})
    return value.get(name, "local") == "local" and _mapping(given) and set(given) <= {"size"}


def _tmpfs(item: tuple[str, str]) -> bool:
    """Return whether it is a new tmpfs: `remount`, at an alias of a channel, would change a mount of the host."""
    target, options = item
    return posixpath.normpath(target) == target and all(map(_TMPFS_OPTION.fullmatch, options.split(",")))


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
