"""A gateway behind the proxy gets the containers that it makes, and none by which it would be root on the host."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from sandbox.engine_proxy.routes import Refused, check_container, check_files, check_volume
from sandbox.engines.docker.container_config import (
    Runtime,
    Site,
    carrier_config,
    container_config,
    deep_emptier_config,
    filler_config,
)
from sandbox.engines.docker.request_threads import Lane
from sandbox.engines.docker.shared_directory import SharedDirectory
from sandbox.sandbox import SandboxSpec, owner_of

RUNTIME_VOLUME = "airlock-runtime-0123456789ab"
SPEC = SandboxSpec("tenant", "thread", "airlock-sandbox")


def body(root: Path, runtime: str = "runc", *, quota: bool = False) -> dict[str, Any]:
    (root / "sandbox-1").mkdir(exist_ok=True)
    return container_config(
        SandboxSpec("tenant", "thread", "airlock-sandbox", runtime=runtime),
        Site(
            "i",
            SharedDirectory(root, Lane("", 1)).mount,
            10000,
            Runtime(RUNTIME_VOLUME, ("/opt/airlock/lib/ld.so",)),
            quota,
        ),
        "sandbox-1",
        volumes=("/data",),
    )


@pytest.mark.parametrize("runtime", ["runc", "runsc"])
@pytest.mark.parametrize("quota", [True, False])
def test_what_a_gateway_makes_passes(tmp_path: Path, runtime: str, quota: bool) -> None:
    check_container(body(tmp_path, runtime, quota=quota), tmp_path)
    check_container(filler_config("airlock-runtime", RUNTIME_VOLUME, "i"), tmp_path)
    check_container(carrier_config("airlock-sandbox", SPEC, "i", quota=quota), tmp_path)
    emptier = deep_emptier_config(
        ["python3", "-m", "d"], "airlock-runtime", "airlock-i-workspace-t", "i", owner_of(SPEC)
    )
    check_container(emptier, tmp_path)
    check_volume({"Name": "airlock-i-quota-probe", "Driver": "local", "DriverOpts": {"size": "1m"}})


def mount(**changes: Any) -> list[dict[str, Any]]:
    kept = {"Source": "airlock-x", "Target": "/workspace", "VolumeOptions": {"NoCopy": True}}
    return [{"Type": "volume", **kept, **changes}]


def runtime_mount(**changes: Any) -> list[dict[str, Any]]:
    return mount(**{"Source": RUNTIME_VOLUME, "Target": "/opt/airlock", "ReadOnly": True, **changes})


ATTACKS: dict[str, dict[str, Any]] = {
    "privileged": {"Privileged": True},
    "privileged in the engine's other spelling": {"privileged": True},
    "binds": {"Binds": ["/:/host"]},
    "the host's root": {"Mounts": [{"Type": "bind", "Source": "/", "Target": "/run/airlock"}]},
    "the engine's socket": {"Mounts": [{"Type": "bind", "Source": "/var/run/docker.sock", "Target": "/run/airlock"}]},
    "a volume by its name alone": {"Mounts": mount(Source="state")},
    "a volume on the host's root": {
        "Mounts": mount(
            VolumeOptions={"NoCopy": True, "DriverConfig": {"Name": "local", "Options": {"o": "bind", "device": "/"}}}
        )
    },
    "a volume of another driver": {"Mounts": mount(VolumeOptions={"NoCopy": True, "DriverConfig": {"Name": "evil"}})},
    # The engine would follow what another container with the volume has put there meanwhile.
    "files of an image in a volume": {"Mounts": mount(VolumeOptions={})},
    "files of an image in a volume, unsaid": {"Mounts": [{**mount()[0], "VolumeOptions": {"Labels": {}}}]},
    "files of an image in the runtime": {"Mounts": runtime_mount(VolumeOptions={})},
    "a runtime that can be written to": {"Mounts": runtime_mount(ReadOnly=False)},
    "a runtime by another name": {"Mounts": mount(Source=RUNTIME_VOLUME)},
    "another volume for a runtime": {"Mounts": mount(Target="/opt/airlock")},
    "a volume without a place": {"Mounts": [{"Type": "volume", "Source": "airlock-x"}]},
    "the file system of a channel with other options": {"Tmpfs": {"/run/airlock/.": "remount,size=1k"}},
    "a channel by another name": {"Tmpfs": {"/run//airlock": "size=1k"}},
    "a mount of another type": {"Mounts": mount(Type="npipe")},
    "capabilities": {"CapAdd": ["SYS_ADMIN"]},
    "no capability dropped": {"CapDrop": []},
    "no filter of system calls": {"SecurityOpt": ["no-new-privileges", "seccomp=unconfined"]},
    "a writable root": {"ReadonlyRootfs": False},
    "the host's network": {"NetworkMode": "host"},
    "the host's processes": {"PidMode": "host"},
    "the host's users": {"UsernsMode": "host"},
    "the host's IPC": {"IpcMode": "host"},
    "devices": {"Devices": [{"PathOnHost": "/dev/sda", "PathInContainer": "/dev/sda", "CgroupPermissions": "rwm"}]},
    "another's volumes": {"VolumesFrom": ["postgres"]},
    "a control group of the host": {"CgroupParent": "/"},
    "another runtime": {"Runtime": "evil"},
    "the host's disk by logs": {"LogConfig": {"Type": "json-file", "Config": {}}},
    "always restarted": {"RestartPolicy": {"Name": "always"}},
    "a kernel setting of the host": {"Sysctls": {"kernel.core_pattern": "|/x"}},
    "no limit of memory": {"Memory": 0},
    "no bound by being no number": {"PidsLimit": True},
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_would_reach_the_host_is_refused(tmp_path: Path, attack: str) -> None:
    made = body(tmp_path)
    made["HostConfig"] |= copy.deepcopy(ATTACKS[attack])
    with pytest.raises(Refused):
        check_container(made, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"HostConfig": {}},
        {"HostConfig": None},
        {"Labels": {}},
        {"hostconfig": {"Privileged": True}},
        {"NetworkingConfig": {}},
        {"Volumes": {"/x": {}}},
        {"Healthcheck": {"Test": ["CMD", "x"]}},
        {"Entrypoint": "/never-started", "HostConfig": {"NetworkMode": "none"}},
    ],
)
def test_what_no_gateway_asks_for_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        check_container(body(tmp_path) | change, tmp_path)


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_what_is_no_container_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(Refused):
        check_container(value, tmp_path)
    with pytest.raises(Refused):
        check_volume(value)


def test_what_is_never_started_has_one_volume_of_the_engine_s_and_no_channel(tmp_path: Path) -> None:
    carrier = carrier_config("airlock-sandbox", SPEC, "i", quota=False)
    (channel,) = [one for one in body(tmp_path)["HostConfig"]["Mounts"] if one["Type"] == "bind"]
    check_container(carrier, tmp_path)
    for mounts in ([channel], mount() + runtime_mount(), mount() + mount(), mount(Target="/etc")):
        carrier["HostConfig"]["Mounts"] = mounts
        with pytest.raises(Refused, match="what is never started has one volume"):
            check_container(carrier, tmp_path)


@pytest.mark.parametrize("written", [True, False])
def test_files_are_only_reached_in_what_is_never_started_and_mounts_no_link(written: bool) -> None:
    workspace = {"Type": "volume", "Name": "airlock-i-workspace-1", "Destination": "/workspace"}
    runtime = {"Type": "volume", "Name": RUNTIME_VOLUME, "Destination": "/opt/airlock"}
    channel = {"Type": "bind", "Source": "/run/airlock/x", "Destination": "/run/airlock"}
    check_files({"Path": "/never-started", "Mounts": [workspace]}, written=written)
    for path, mounts in [
        ("/opt/airlock/lib/ld.so", [workspace]),
        ("/never-started", [channel]),
        ("/never-started", [workspace, channel]),
        ("/never-started", [workspace, {**workspace, "Destination": "/workspace/a"}]),
        ("/never-started", [{**workspace, "Destination": "/etc"}]),
        ("/never-started", []),
        ("/never-started", None),
    ]:
        with pytest.raises(Refused):
            check_files({"Path": path, "Mounts": mounts}, written=written)
    for mounts in ([runtime], [{**runtime, "Destination": "/workspace"}]):
        found = {"Path": "/never-started", "Mounts": mounts}
        if written:
            with pytest.raises(Refused, match="not written to"):
                check_files(found, written=True)
    check_files({"Path": "/never-started", "Mounts": [runtime]}, written=False)


def test_a_channel_is_a_directory_of_its_own_and_no_way_out(tmp_path: Path) -> None:
    root = tmp_path / "channels"
    root.mkdir()
    made = body(root)
    (channel,) = [mount for mount in made["HostConfig"]["Mounts"] if mount["Type"] == "bind"]
    (root / "link").symlink_to("/")
    (root / "file").touch()
    for source in (
        str(root),
        f"{root}/",
        f"{root}/..",
        f"{root}/sandbox-1/..",
        f"{root}/link",
        f"{root}/file",
        "",
        "/",
    ):
        channel["Source"] = source
        with pytest.raises(Refused, match="only a directory in"):
            check_container(made, root)
    channel["Source"] = f"{root}/sandbox-1"
    for change in ({"Target": "/etc"}, {"BindOptions": {"Propagation": "rshared"}}):
        changed = copy.deepcopy(made)
        changed["HostConfig"]["Mounts"] = [channel | change]
        with pytest.raises(Refused, match="a channel is mounted at"):
            check_container(changed, root)


@pytest.mark.parametrize(
    "change",
    [
        {"Name": "state"},
        {"Name": None},
        {"DriverOpts": {"o": "bind", "device": "/", "type": "none"}},
        {"Driver": "evil"},
        {"Labels": [1]},
        {"driveropts": {"device": "/"}},
    ],
)
def test_a_volume_has_a_size_and_labels_and_nothing_else(change: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        check_volume({"Name": "airlock-x", "Driver": "local", **change})


def test_a_claim_to_what_the_pool_made_passes() -> None:
    check_volume({"Name": "airlock-x", "Driver": "local", "DriverOpts": {}, "Labels": {"airlock.held": "pool-1"}})
