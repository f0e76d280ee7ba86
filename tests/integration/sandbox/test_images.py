"""The daemon in images of every kind: it brings itself along, and nothing of theirs has a say in it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import pytest

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.errors import NotFound, SandboxUnavailable
from sandbox.protocols import ProcessSpec
from sandbox.sandbox import Sandbox
from tests.docker_state import volumes_of
from tests.integration.sandbox.live_engine import IMAGE, instance_id, run, spec, text
from tests.integration.sandbox.made_images import busybox, image

pytestmark = pytest.mark.asyncio(loop_scope="session")

# What a hostile or a broken image has where a program looks for its parts. None of it is an ELF file.
BROKEN = dict.fromkeys(
    (
        *("/lib/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2", "/lib/libc.so.6", "/lib/libz.so.1"),
        *("/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/libc.so.6", "/evil.so"),
        *("/usr/bin/python3", "/usr/local/bin/python3", "/etc/ld.so.preload", "/etc/ld.so.cache"),
        *("/usr/lib/python3.11/os.py", "/usr/lib/ssl/openssl.cnf", "/usr/lib/locale/locale-archive"),
        *("/opt/airlock/lib/ld.so", "/opt/airlock/bin/python3", "/opt/airlock/BUILD"),
    ),
    b"broken\n",
)
STEERING = (
    "ENV LD_PRELOAD=/evil.so LD_LIBRARY_PATH=/lib LD_AUDIT=/evil.so PYTHONPATH=/usr/lib/python3.11 PYTHONHOME=/usr",
    "ENV GCONV_PATH=/ GLIBC_TUNABLES=glibc.malloc.check=3 OPENSSL_CONF=/usr/lib/ssl/openssl.cnf LC_ALL=tr_TR.UTF-8",
)
OWN_WAYS = (
    "USER 1234:1234",
    'ENTRYPOINT ["/bin/touch", "/tmp/entered"]',
    'CMD ["x"]',
    "ENV PATH=/nowhere HOME=/root TMPDIR=/none",
    "WORKDIR /root",
    "VOLUME /data",
    "VOLUME /workspace",
    "VOLUME /tmp",
    "HEALTHCHECK --interval=1s CMD touch /tmp/healthy",
    "EXPOSE 80",
)


@contextlib.contextmanager
def of_kind(kind: str) -> Iterator[str]:
    """Yield the name of an image."""
    if kind == "debian":
        yield IMAGE
        return
    files: Mapping[str, bytes | str]
    changes: Sequence[str] = ()
    files, changes = {
        "busybox": (busybox(), ()),
        "broken libraries": ({**busybox(), **BROKEN}, ()),
        "hostile environment": ({**busybox(), **BROKEN}, STEERING),
        "ways of its own": ({**busybox(), "/data/file": b"1", "/root/": b""}, OWN_WAYS),
    }[kind]
    with image(files, changes, modes={"/data/file": 0o666}) as name:
        yield name


@contextlib.asynccontextmanager
async def sandbox_of(engine: DockerEngine, name: str) -> AsyncIterator[Sandbox]:
    """Lend a sandbox of an image, and remove it with its files."""
    thread = instance_id()
    made = await engine.create(spec(thread, image=name))
    try:
        yield made
    finally:
        await engine.remove(made.id)
        await engine.remove_workspace("tenant-a", thread)


@pytest.mark.parametrize("kind", ["debian", "busybox", "broken libraries", "hostile environment", "ways of its own"])
async def test_files_commands_and_processes_work_in_an_image(engine: DockerEngine, kind: str) -> None:
    with of_kind(kind) as name:
        async with sandbox_of(engine, name) as sandbox:
            user = sandbox.posture.tool_uid
            await sandbox.files.write("/workspace/a/b", b"one\ntwo\n")
            assert (await sandbox.files.read_lines("/workspace/a/b", offset=1)).data == b"two\n"
            assert (await sandbox.files.grep("/workspace", "t.o")).matches[0].line == 2
            assert [entry.name for entry in (await sandbox.files.glob("/workspace", "**/b")).entries]

            # By absolute paths: an image may have a PATH of its own.
            said = await run(sandbox.shell, "/bin/cat /workspace/a/b; echo $0; /bin/ls /tmp; exit 3")
            assert (said.outcome, said.exit_code) == ("exited", 3)
            assert text(said) == "one\ntwo\n/bin/sh\n"
            assert await sandbox.files.stat("/workspace/a/b")
            assert (
                text(await run(sandbox.shell, "/bin/grep -c '' /proc/self/status >/dev/null; /bin/id -u"))
                == f"{user}\n"
            )

            started = await sandbox.processes.start(
                ProcessSpec("p", [b"/bin/sh", b"-c", b"read line; echo got $line"], stdin=True, timeout_s=60)
            )
            assert started.running
            await sandbox.processes.write("p", b"that\n", end=True, wait_s=5)
            assert (await sandbox.processes.wait("p", wait_s=10)).exit_code == 0
            assert (await sandbox.processes.read("p", offset=0)).data == b"got that\n"


async def test_a_terminal_works_where_there_is_nothing_but_busybox(engine: DockerEngine) -> None:
    with of_kind("busybox") as name:
        async with sandbox_of(engine, name) as sandbox:
            await sandbox.processes.start(
                ProcessSpec(
                    "t",
                    [b"/bin/sh", b"-c", b"/bin/tty; /bin/stty size; echo $TERM"],
                    terminal=True,
                    rows=30,
                    columns=100,
                    timeout_s=60,
                )
            )
            await sandbox.processes.wait("t", wait_s=10)
            said = (await sandbox.processes.read("t", offset=0)).data.decode().split()
            assert said[0].startswith("/dev/pts/")
            assert said[1:] == ["30", "100", "xterm-256color"]


async def test_an_image_with_nothing_in_it_has_files_and_says_that_it_has_no_shell(engine: DockerEngine) -> None:
    with image({}) as name:
        async with sandbox_of(engine, name) as sandbox:
            await sandbox.files.write("/workspace/a/b", b"1")
            assert (await sandbox.files.stat("/workspace/a/b")).size_bytes == 1
            result = await run(sandbox.shell, "true")
            assert result.outcome == "failed_to_start"
            assert "needs a /bin/sh" in result.message


async def test_a_volume_of_an_image_is_empty_and_read_only_so_that_no_disk_is_without_a_limit(
    engine: DockerEngine,
) -> None:
    with image(
        {**busybox(), "/data/": b""}, ["VOLUME /data", "VOLUME //odd/../odd/"], modes={"/data/": 0o1777}
    ) as name:
        async with sandbox_of(engine, name) as sandbox:
            (mount,) = [mount for mount in sandbox.posture.mounts if mount.path == "/data"]
            assert (mount.type, mount.read_only, mount.tool_writable) == ("tmpfs", True, False)
            for place in ("/data", "/odd"):
                assert (await run(sandbox.shell, f"/bin/touch {place}/x")).exit_code != 0
                with pytest.raises(NotFound):
                    await sandbox.files.stat(f"{place}/x")
    assert all("workspace" in volume for volume in volumes_of(engine.instance))


@pytest.mark.parametrize(
    "place", ["/opt/airlock/lib", "/opt//airlock/./lib/", "/opt/airlock/lib/python3.11/os.pyc", "/run/airlock/x"]
)
async def test_a_volume_of_an_image_cannot_lie_over_the_daemon(engine: DockerEngine, place: str) -> None:
    # Docker would fill it with the image's own files there, such as a loader, which pid 1 would then run as root.
    files = {**busybox(), "/opt/airlock/lib/ld.so": busybox()["/bin/busybox"]}
    with (
        image(files, [f"VOLUME {place}"]) as name,
        pytest.raises(SandboxUnavailable, match="build it without that VOLUME"),
    ):
        await engine.create(spec("over", image=name))


async def test_a_volume_that_reaches_the_daemon_s_place_by_a_link_does_not_bring_its_files_there(
    engine: DockerEngine,
) -> None:
    files = {**busybox(), "/a/b/": b"", "/a/b/c": "/opt/airlock/lib", "/opt/airlock/lib/evil": b"x"}
    with image(files, ["VOLUME /a/b/c"]) as name, pytest.raises(SandboxUnavailable):
        await engine.create(spec("linked", image=name))


async def test_an_image_whose_place_for_the_daemon_is_a_link_into_the_workspace_is_refused(
    engine: DockerEngine,
) -> None:
    with image({**busybox(), "/run": "/workspace"}) as name, pytest.raises(SandboxUnavailable):
        await engine.create(spec("moved", image=name))
    with (
        image({**busybox(), "/opt": "/workspace"}) as name,
        pytest.raises(SandboxUnavailable, match="/workspace/airlock"),
    ):
        await engine.create(spec("moved", image=name))
    shown = subprocess.run(
        ["docker", "ps", "-q", "--filter", f"label=airlock.instance={engine.instance}"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert len(shown.stdout.split()) <= len(engine._parts.attached.by_id)
