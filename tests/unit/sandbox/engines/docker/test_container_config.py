"""The walls of a container, as they are asked of Docker."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.engines.docker.container_config import (
    CHANNEL_DIRECTORY,
    Runtime,
    Site,
    container_config,
    image_volumes,
    user_ids,
    volume_of,
)
from sandbox.sandbox import SandboxLimits, SandboxSpec, digest, made_digest, owner_by_name


def _channel(sandbox_id: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": f"/channels/{sandbox_id}", "Target": CHANNEL_DIRECTORY}


def config(spec: SandboxSpec, *, quota: bool = False, volumes: Sequence[str] = ()) -> dict[str, Any]:
    return container_config(
        spec,
        Site("i1", _channel, 77, Runtime("runtime-volume", ["/opt/airlock/bin/daemon"]), quota),
        "s1",
        volumes=volumes,
    )


SPEC = SandboxSpec("Tenant-Ärger", "thread/../x", "image", limits=SandboxLimits(workspace_bytes=1000), env={"KEY": "v"})


def test_no_text_of_a_tenant_reaches_docker_but_the_image() -> None:
    reported = json.dumps(config(SPEC), ensure_ascii=False)
    assert "Tenant" not in reported
    assert "thread/" not in reported
    assert "KEY" not in reported


def test_what_the_image_says_to_run_is_never_run() -> None:
    reported = config(SPEC)
    assert reported["Entrypoint"][0] == "/opt/airlock/bin/daemon"
    assert reported["Cmd"] == []
    assert reported["User"] == "0:77"
    assert reported["Healthcheck"] == {"Test": ["NONE"]}


def test_each_thread_has_users_of_its_own_that_stay_the_same() -> None:
    pairs = [user_ids("i", tenant, thread) for tenant in ("a", "b") for thread in ("x", "y")]
    everyone = [user for pair in pairs for user in pair]
    assert len(set(everyone)) == 8
    assert all(600_000_000 <= user < 2**30 for user in everyone)
    assert user_ids("i", "a", "x") == pairs[0]
    tool_user, daemon_user = user_ids("i1", SPEC.tenant, SPEC.thread)
    entrypoint = config(SPEC)["Entrypoint"]
    assert entrypoint[-6:] == [
        "--tool-uid", str(tool_user), "--tool-gid", str(tool_user), "--daemon-uid", str(daemon_user)
    ]  # fmt: skip


def test_the_image_s_environment_cannot_steer_the_loader_of_pid_1() -> None:
    removed = config(SPEC)["Env"]
    assert "LD_PRELOAD" in removed
    assert "AIRLOCK_TOOL_UID" in removed
    assert not [variable for variable in removed if "=" in variable]


def test_every_wall_is_asked_for() -> None:
    host = config(SPEC)["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert sorted(host["CapAdd"]) == ["CHOWN", "KILL", "SETGID", "SETUID"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["ReadonlyRootfs"] is True
    assert host["Memory"] == host["MemorySwap"] == SPEC.limits.memory_bytes
    assert host["PidsLimit"] == 512
    assert host["LogConfig"]["Type"] == "none"
    assert {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in host["Ulimits"]} == {
        "nofile": (4096, 4096),
        "core": (0, 0),
        "fsize": (1000, 1000),
        "nproc": (512, 512),
        "msgqueue": (800 * 1024, 800 * 1024),
    }
    assert "Privileged" not in host


def test_gvisor_gets_the_tasks_that_its_kernel_takes_of_the_host_besides() -> None:
    limits = config(dataclasses.replace(SPEC, runtime="runsc"))["HostConfig"]
    assert limits["PidsLimit"] == 16 * (512 + 8)
    assert (limits["Memory"], limits["Sysctls"]) == (SPEC.limits.memory_bytes, {})


def test_the_bundle_is_mounted_read_only_and_the_workspace_is_labelled() -> None:
    workspace, bundle, channel = config(SPEC)["HostConfig"]["Mounts"]
    assert bundle["ReadOnly"] is True
    assert bundle["Target"] == "/opt/airlock"
    assert workspace["VolumeOptions"]["Labels"]["airlock.kind"] == "workspace"
    assert channel == {"Type": "bind", "Source": "/channels/s1", "Target": "/run/airlock"}


def test_a_quota_is_asked_of_the_volume_where_the_engine_can() -> None:
    mounts = [config(SPEC, quota=quota)["HostConfig"]["Mounts"][0] for quota in (True, False)]
    assert mounts[0]["VolumeOptions"]["DriverConfig"]["Options"] == {"size": "1000"}
    assert "DriverConfig" not in mounts[1]["VolumeOptions"]


@given(st.lists(st.text(), min_size=2, max_size=2), st.lists(st.text(), min_size=2, max_size=2))
def test_two_owners_never_share_a_digest_by_how_their_names_are_cut(one: list[str], other: list[str]) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)


def test_the_same_thread_name_of_two_tenants_is_two_workspaces() -> None:
    assert volume_of("i1", owner_by_name("a", "t")[1]) != volume_of("i1", owner_by_name("b", "t")[1])
    assert volume_of("i1", owner_by_name("ab", "c")[1]) != volume_of("i1", owner_by_name("a", "bc")[1])


def test_something_empty_and_read_only_goes_over_the_volumes_that_an_image_declares() -> None:
    volumes = image_volumes(["/data", "//var/./lib/x/../db/", "/workspace", "/tmp/", "/opt/airlock", "/run/airlock"])
    assert volumes == ("/data", "/var/lib/db")
    laid = config(SPEC, volumes=volumes)["HostConfig"]["Tmpfs"]
    assert sorted(laid) == ["/data", "/dev/shm", "/tmp", "/var/lib/db"]
    assert laid["/data"].startswith("ro,size=4k,")
    assert "size=" in laid["/tmp"]
    assert "mode=1777" in laid["/tmp"]


@pytest.mark.parametrize("place", ["/opt/airlock/lib", "/opt//airlock/x/../lib/", "/run/airlock/daemon.sock"])
def test_a_volume_inside_of_airlock_s_places_is_refused(place: str) -> None:
    with pytest.raises(ValueError, match="Airlock reserves"):
        image_volumes(["/data", place])


def test_containers_that_differ_in_anything_have_different_digests() -> None:
    same, other = made_digest(config(SPEC)), config(SPEC)
    assert made_digest(config(SPEC)) == same
    other["HostConfig"]["PidsLimit"] += 1
    assert made_digest(other) != same


def test_what_lasts_in_memory_is_bounded_and_an_image_that_declares_it_as_a_volume_changes_nothing() -> None:
    host = config(SPEC, volumes=["/dev/shm"])["HostConfig"]
    assert all("nr_inodes=" in options and "size=" in options for options in host["Tmpfs"].values())
    assert sorted(host["Tmpfs"]) == ["/dev/shm", "/tmp"]
    assert host["IpcMode"] == "private"  # what the settings below are of
    assert int(host["Sysctls"]["kernel.shmall"]) * 4096 == 16 * 1024 * 1024


def test_gvisor_is_not_asked_for_settings_of_a_kernel_that_it_is_not() -> None:
    assert config(dataclasses.replace(SPEC, runtime="runsc"))["HostConfig"]["Sysctls"] == {}
