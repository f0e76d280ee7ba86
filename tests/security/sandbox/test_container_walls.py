"""A tenant's image and a tenant's code against the walls of a live sandbox."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandbox.engines.containment import CAPABILITIES, RUNTIME_DIRECTORY
from sandbox.engines.docker.boot import Blueprint
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.errors import FileError, PostureTooWeak
from sandbox.sandbox import Sandbox
from tests.docker_state import containers_of
from tests.integration.sandbox.live_engine import IMAGE, LIMITS, RUNTIME_IMAGE, instance_id, removed, run, spec, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE_IMAGE = f"""
FROM {IMAGE}
RUN useradd --uid 10001 tool 2>/dev/null || true
RUN printf '#!/bin/sh\\ntouch /tmp/entered\\nsleep 60\\n' > /evil && chmod 4755 /evil /bin/sh
ENV LD_PRELOAD=/evil.so LD_LIBRARY_PATH=/ AIRLOCK_TOOL_UID=10002 AIRLOCK_DAEMON_UID=10001 PYTHONPATH=/
ENV AIRLOCK_SOCKET=/tmp/daemon.sock AIRLOCK_WORKSPACE=/root
ENTRYPOINT ["/evil"]
CMD ["x"]
USER 1234:1234
WORKDIR /root
VOLUME /data
HEALTHCHECK --interval=1s CMD touch /tmp/healthy
STOPSIGNAL SIGCONT
"""


# Under this profile the daemon cannot install its own filter.
NO_OTHER_FILTER = json.dumps(
    {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [
            {
                "names": ["prctl"],
                "action": "SCMP_ACT_ERRNO",
                "args": [{"index": 0, "value": 22, "op": "SCMP_CMP_EQ"}],
            }
        ],
    }
)


Loosen = Callable[[dict[str, Any]], object]


def loosened(monkeypatch: pytest.MonkeyPatch, loosen: Loosen) -> None:
    """Have engines ask Docker for less than the spec asks them."""
    body = Blueprint.body

    def looser(blueprint: Blueprint, sandbox_id: str, *, pooled: str = "") -> dict[str, Any]:
        asked = body(blueprint, sandbox_id, pooled=pooled)
        loosen(asked)
        return asked

    monkeypatch.setattr(Blueprint, "body", looser)


def host(**changes: Any) -> Loosen:
    """Return what replaces members of the container's HostConfig."""
    return lambda body: body["HostConfig"].update(changes)


def also_tmpfs(path: str, options: str) -> Loosen:
    """Return what makes another tmpfs, or makes one otherwise."""
    return lambda body: body["HostConfig"]["Tmpfs"].update({path: options})


def writable_bundle(body: dict[str, Any]) -> None:
    """Let the daemon's own files be written."""
    (bundle,) = (mount for mount in body["HostConfig"]["Mounts"] if mount["Target"] == RUNTIME_DIRECTORY)
    bundle["ReadOnly"] = False


def own_seccomp_filters(body: dict[str, Any]) -> None:
    """Let tool code install seccomp filters, which the policy does not ask for."""
    asked = body["Entrypoint"]
    asked[asked.index("--seccomp-filters") + 1] = "1"


def host_name(body: dict[str, Any]) -> None:
    """Share the host's name with it; Docker refuses to give it one of its own then."""
    del body["Hostname"]
    body["HostConfig"]["UTSMode"] = "host"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(engine: DockerEngine) -> AsyncIterator[Sandbox]:
    made = await engine.create(spec("walls"))
    yield made
    await engine.remove(made.id)


@pytest.fixture(scope="module")
def hostile_image() -> Iterator[str]:
    name = f"airlock-hostile-{instance_id()}"
    subprocess.run(
        ["docker", "build", "-q", "-t", name, "-"],
        input=HOSTILE_IMAGE.encode(),
        check=True,
        capture_output=True,
        env={"DOCKER_BUILDKIT": "0", "PATH": "/usr/bin:/bin:/usr/local/bin"},
    )
    yield name
    subprocess.run(["docker", "image", "rm", "-f", name], check=True, capture_output=True)


@pytest.mark.parametrize(
    "loosen, said",
    [
        (host(CapAdd=[*CAPABILITIES, "SYS_ADMIN"]), "capabilities beyond"),
        (host(ReadonlyRootfs=False), "root file system"),
        (host(SecurityOpt=["no-new-privileges", "seccomp=unconfined"]), "seccomp"),
        (host(SecurityOpt=[]), "no_new_privileges"),
        (host(PidsLimit=0), "process limit"),
        (host(Memory=2**30, MemorySwap=2**30), "memory limit"),
        (host(NanoCpus=0), "CPU limit"),
        (host(PidMode="host"), "shares the pid namespace"),
        (host(IpcMode="host", Sysctls={}), "shares the ipc namespace"),
        (host_name, "shares the uts namespace"),
        (host(Binds=["/etc:/host:ro"]), r"not asked for: /host\."),
        (host(Binds=["/var/run/docker.sock:/var/run/docker.sock"]), r"not asked for: \S+/docker\.sock\."),
        (host(Binds=["/etc:/dev/mqueue"]), r"/dev/mqueue is \w+ where mqueue was asked for"),
        (host(MaskedPaths=[], ReadonlyPaths=["/proc/sys"]), "Nothing of /proc and /sys is hidden"),
        (host(ReadonlyPaths=[]), "Nothing is mounted at /proc/sys"),
        (also_tmpfs("/scratch", "mode=1777"), "not asked for: /scratch"),
        (also_tmpfs("/tmp", "mode=1777,suid,dev"), "/tmp is mounted without nosuid and nodev"),
        (writable_bundle, "/opt/airlock is writable"),
        (host(SecurityOpt=["no-new-privileges", f"seccomp={NO_OTHER_FILTER}"]), "sockets of other families"),
        (own_seccomp_filters, "install seccomp filters"),
    ],
)
async def test_a_sandbox_weaker_than_asked_is_refused_and_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loosen: Loosen, said: str
) -> None:
    instance = instance_id()
    loosened(monkeypatch, loosen)
    engine = DockerEngine(instance=instance, channel_root=tmp_path, runtime_image=RUNTIME_IMAGE)
    try:
        with pytest.raises(PostureTooWeak, match=said):
            await engine.create(spec())
    finally:
        await removed(engine, instance)
    assert list(tmp_path.iterdir()) == []


async def test_nothing_that_an_image_declares_is_run_or_obeyed(engine: DockerEngine, hostile_image: str) -> None:
    made = await engine.create(spec("hostile", image=hostile_image))
    said = text(
        await run(
            made.shell, "id -u; pwd; tr '\\0' '\\n' < /proc/self/environ | grep -c 'LD_\\|AIRLOCK'; ls /tmp; ps ax"
        )
    )
    user = made.posture.tool_uid
    assert user > 600_000_000
    assert said.startswith(f"{user}\n/workspace\n0\n")
    assert "entered" not in said
    assert "evil" not in said
    # A set-user-id shell of the image gives no one root.
    assert text(await run(made.shell, "/bin/sh -p -c 'id -u'")) == f"{user}\n"
    await engine.remove(made.id)


async def test_two_tenants_cannot_see_each_other_s_files_processes_or_channels(engine: DockerEngine) -> None:
    one = await engine.create(spec("t", "tenant-a"))
    other = await engine.create(spec("t", "tenant-b"))
    await run(one.shell, "echo secret > /workspace/a; echo secret > /tmp/a; echo secret > /dev/shm/a; sleep 8642 &")
    found = await run(other.shell, "grep -rs secret /workspace /tmp /dev/shm; ls /dev/shm; ls -A /workspace /tmp")
    assert text(found) == "/tmp:\n\n/workspace:\n"
    assert "8642" not in text(await run(other.shell, "cat /proc/*/cmdline | tr '\\0' ' '"))
    assert "8642" in text(await run(one.shell, "cat /proc/*/cmdline | tr '\\0' ' '"))
    for made in (one, other):
        await engine.remove(made.id)


@pytest.mark.parametrize(
    "attack",
    [
        "ls /run/airlock",
        "cat /run/airlock/daemon.sock",
        "echo x > /run/airlock/x",
        "mv /run/airlock /run/other",
        "echo x > /opt/airlock/x",
        "echo x > /etc/x",
        "rm -rf /usr/bin/env",
        "chown 0 /workspace",
        "mount -t tmpfs none /mnt",
        "unshare -U true",
        "mknod /tmp/sda b 8 0",
        "kill -9 1",
        "kill -STOP 7",
        "cat /proc/1/environ",
        "cat /proc/1/root/etc/hostname",
        "ls /var/run/docker.sock",
        "su -c id",
        "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 53), 2)\"",
        'python3 -c "import os; os.setuid(0)"',
        'python3 -c "import os; os.setgroups([])"',
        "python3 -c \"import socket as s; s.socket(s.AF_UNIX).connect('/run/airlock/daemon.sock')\"",
    ],
)
async def test_tool_code_gets_nowhere(sandbox: Sandbox, attack: str) -> None:
    result = await run(sandbox.shell, attack)
    assert result.outcome == "exited"
    assert result.exit_code != 0, text(result)
    assert await sandbox.ping()


@pytest.mark.parametrize("path", ["/run/airlock/daemon.sock", "/run/airlock", "/etc/shadow", "/proc/1/environ"])
async def test_the_file_tools_have_no_more_rights_than_tool_code(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(FileError):
        await anext(sandbox.files.read(path))
    with pytest.raises(FileError):
        await sandbox.files.write(path, b"x")
    with pytest.raises(FileError):
        await sandbox.files.remove(path, recursive=True)


async def test_the_host_sees_nothing_of_the_workspace_outside_of_it(sandbox: Sandbox) -> None:
    attack = "ln -s /etc/shadow s; ln -s / r; ln s hard 2>/dev/null"
    await run(sandbox.shell, attack)
    for path in ("/workspace/s", "/workspace/r/etc/hostname"):
        with pytest.raises(FileError):
            await anext(sandbox.files.read(path))
    assert (await sandbox.files.grep("/workspace", "root")).matches == ()


async def test_an_owner_s_name_appears_nowhere_in_docker(engine: DockerEngine) -> None:
    made = await engine.create(spec("thread-Zebra", "tenant-Zebra"))
    shown = subprocess.run(
        ["docker", "inspect", *containers_of(engine.instance)], check=True, capture_output=True, text=True
    )
    assert "Zebra" not in shown.stdout
    await engine.remove(made.id)


async def test_programs_install_seccomp_filters_where_the_policy_lets_them(engine: DockerEngine) -> None:
    asked = dataclasses.replace(spec("filters"), limits=dataclasses.replace(LIMITS, seccomp_filters=True))
    made = await engine.create(asked)
    try:
        assert not made.posture.seccomp_filters_refused
        install = (
            "import array, ctypes, struct; body = array.array('B', struct.pack('=HBBI', 6, 0, 0, 0x7FFF0000));"
            "program = struct.pack('@HP', 1, body.buffer_info()[0]);"
            "print(ctypes.CDLL(None).prctl(22, 2, program, 0, 0))"
        )
        assert text(await run(made.shell, f'python3 -c "{install}"')) == "0\n"
        # The daemon's own stays.
        family = await run(made.shell, "python3 -c 'import socket; socket.socket(socket.AF_NETLINK)'")
        assert "Address family not supported" in text(family)
    finally:
        await engine.remove(made.id)
