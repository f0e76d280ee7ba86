"""DockerEngine when things go wrong around it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.engines.build import own_build
from sandbox.engines.containment import RUNTIME_DIRECTORY
from sandbox.engines.docker import engine_setup
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.docker_requests import Client, DockerRequests
from sandbox.engines.docker.engine_setup import EngineContext, _fill
from sandbox.errors import EngineUnavailable, ImageMissing, NoSpace, SandboxUnavailable, TooLarge
from tests.docker_state import containers_of, mountpoint_of
from tests.integration.sandbox.live_engine import (
    IMAGE,
    LIMITS,
    RUNTIME_IMAGE,
    instance_id,
    removed,
    run,
    spec,
    text,
)
from tests.sandbox_keeper import make_keeper

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_engine_that_does_not_answer_is_reported_with_how_to_fix_it(tmp_path: Path) -> None:
    engine = DockerEngine(
        instance=instance_id(), channel_root=tmp_path, requests=DockerRequests(f"unix://{tmp_path}/none.sock")
    )
    with pytest.raises(EngineUnavailable, match=r"No such file.*Start it"):
        await engine.create(spec())
    await engine.close()


async def test_a_runtime_image_that_is_not_there_is_said_to_be_made_by_make_setup(tmp_path: Path) -> None:
    engine = DockerEngine(instance=instance_id(), channel_root=tmp_path, runtime_image="no-such-runtime-image")
    with pytest.raises(ImageMissing, match=r"no-such-runtime-image.*airlock images build"):
        await engine.create(spec())
    await engine.close()


async def test_an_image_without_the_label_is_no_runtime(tmp_path: Path) -> None:
    engine = DockerEngine(instance=instance_id(), channel_root=tmp_path, runtime_image=IMAGE)
    with pytest.raises(SandboxUnavailable, match=r"airlock\.command"):
        await engine.create(spec())
    await engine.close()


async def test_the_environment_of_the_spec_reaches_commands_and_not_the_container(engine: DockerEngine) -> None:
    wanted = dataclasses.replace(spec("environment"), env={"TOKEN": "t0p"})
    sandbox = await engine.create(wanted)
    assert text(await run(sandbox.shell, "echo $TOKEN")) == "t0p\n"
    shown = subprocess.run(
        ["docker", "inspect", *_containers(engine, sandbox.id)], check=True, capture_output=True, text=True
    )
    assert "t0p" not in shown.stdout
    await engine.remove(sandbox.id)


@contextlib.contextmanager
def runtime_image_like(ours: str, changes: dict[str, bytes]) -> Iterator[str]:
    """Yield the name of a runtime image that is another one by its id, with some of the bundle's files changed."""
    name = f"airlock-runtime-{instance_id()}"
    files = {"Dockerfile": f"FROM {ours}\nLABEL test={name}\nCOPY changed/ /opt/airlock/\n".encode()}
    files |= {f"changed/{path}": data for path, data in changes.items()}
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))
    command = ["docker", "build", "-q", "-t", name, "-"]
    subprocess.run(command, input=context.getvalue(), check=True, capture_output=True)
    try:
        yield name
    finally:
        subprocess.run(["docker", "image", "rm", "-f", name], check=True, capture_output=True)


def bundle_of(engine: DockerEngine, sandbox_id: str) -> str:
    """Return the name of the volume that holds the bundle of a sandbox."""
    command = ["docker", "inspect", "-f", "{{json .Mounts}}", *_containers(engine, sandbox_id)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    (name,) = (mount["Name"] for mount in json.loads(shown.stdout) if mount["Destination"] == RUNTIME_DIRECTORY)
    return str(name)


async def test_the_runtime_volume_comes_back_when_it_was_removed(tmp_path: Path) -> None:
    instance = instance_id()
    # An image of its own, for no other engine of the test session to hold the volume.
    with runtime_image_like(RUNTIME_IMAGE, {"x": b""}) as image:
        engine = DockerEngine(instance=instance, channel_root=tmp_path, runtime_image=image)
        try:
            first = await engine.create(spec())
            volume = bundle_of(engine, first.id)
            await engine.remove(first.id)
            subprocess.run(["docker", "volume", "rm", volume], check=True, capture_output=True)
            second = await engine.create(spec())
            assert bundle_of(engine, second.id) == volume
            assert text(await run(second.shell, "echo here")) == "here\n"
        finally:
            await removed(engine, instance)


async def test_a_runtime_volume_that_was_filled_half_way_is_made_anew(tmp_path: Path) -> None:
    instance = instance_id()
    with runtime_image_like(RUNTIME_IMAGE, {"x": b""}) as image:
        first = DockerEngine(instance=instance, channel_root=tmp_path, runtime_image=image)
        made = await first.create(spec())
        volume = bundle_of(first, made.id)
        await first.remove(made.id)
        clear = ["docker", "run", "--rm", "-v", f"{volume}:/v", IMAGE, "rm", "-r", "/v/lib", "/v/BUILD"]
        subprocess.run(clear, check=True, capture_output=True)
        later = DockerEngine(instance=instance, channel_root=tmp_path, runtime_image=image)
        try:
            made = await later.create(spec())
            assert bundle_of(later, made.id) == volume
            assert text(await run(made.shell, "echo here")) == "here\n"
        finally:
            await first.close()
            await removed(later, instance)


async def test_a_runtime_image_of_another_release_is_refused_before_anything_of_it_runs(tmp_path: Path) -> None:
    with runtime_image_like(RUNTIME_IMAGE, {"BUILD": b"0" * 64, "bin/python3": b"never run"}) as image:
        engine = DockerEngine(instance=instance_id(), channel_root=tmp_path, runtime_image=image)
        for ask in (engine.prepare(), engine.create(spec())):
            with pytest.raises(
                SandboxUnavailable, match=r"different releases.*build is 000000000000.*airlock images build"
            ):
                await ask
        assert await engine.owned() == {}
        await engine.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_container_that_dies_in_the_middle_is_replaced_with_its_files(engine: DockerEngine) -> None:
    keeper = make_keeper(engine)
    async with keeper.acquire(spec("dies")) as first:
        await first.files.write("/workspace/a", b"kept")
        subprocess.run(["docker", "kill", *_containers(engine, first.id)], check=True, capture_output=True)
        assert (await run(first.shell, "true")).outcome == "daemon_lost"
    async with keeper.acquire(spec("dies")) as second:
        assert second.id != first.id
        assert (await second.files.read_lines("/workspace/a")).data == b"kept"
    await keeper.close()


async def test_one_file_cannot_take_more_than_the_workspace_may(engine: DockerEngine) -> None:
    sandbox = await engine.create(spec("large"))
    result = await run(sandbox.shell, f"head -c {LIMITS.workspace_bytes + 1} /dev/zero > /workspace/a")
    assert result.exit_code != 0
    assert (await sandbox.files.stat("/workspace/a")).size_bytes <= LIMITS.workspace_bytes
    with pytest.raises((TooLarge, NoSpace)):
        await sandbox.files.write("/workspace/b", bytes(LIMITS.workspace_bytes + 1))
    assert sandbox.alive
    await engine.remove(sandbox.id)


async def test_tmp_is_as_large_as_asked_and_not_more(engine: DockerEngine) -> None:
    small = dataclasses.replace(spec("tmp"), limits=dataclasses.replace(LIMITS, tmp_bytes=1024 * 1024))
    sandbox = await engine.create(small)
    with pytest.raises(NoSpace):
        await sandbox.files.write("/tmp/a", bytes(2 * 1024 * 1024))
    await engine.remove(sandbox.id)


def _containers(engine: DockerEngine, sandbox_id: str) -> list[str]:
    return [f"airlock-{engine.instance}-{sandbox_id}"]


async def test_gateways_that_fill_one_new_runtime_volume_at_once_all_succeed() -> None:
    volume, instance = f"airlock-fill-{instance_id()}", instance_id()

    def fill() -> tuple[str, int]:
        build = _filled(volume, instance)
        return build, len(_files_of(volume))

    try:
        for _ in range(3):
            found = await asyncio.gather(*(asyncio.to_thread(fill) for _ in range(8)))
            assert set(found) == {(own_build(), len(_files_of(volume)))}  # each saw all of it
            subprocess.run(["docker", "volume", "rm", volume], check=True, capture_output=True)
    finally:
        subprocess.run(["docker", "volume", "rm", "-f", volume], check=False, capture_output=True)


def _filled(volume: str, instance: str) -> str:
    requests = DockerRequests()
    try:
        return requests.ask_here(_fill, RUNTIME_IMAGE, volume, instance)
    finally:
        requests.close()


def _files_of(volume: str) -> list[Path]:
    return [path for path in mountpoint_of(volume).rglob("*") if path.is_file()]


async def test_a_filler_that_a_dead_gateway_left_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_setup, "_ABANDONED_ATTEMPTS", 3)
    volume, instance = f"airlock-fill-{instance_id()}", instance_id()
    left = ["docker", "create", "--name", f"{volume}-filler", "--label", "airlock.kind=runtime", RUNTIME_IMAGE, "none"]
    subprocess.run(left, check=True, capture_output=True)
    try:
        assert await asyncio.to_thread(_filled, volume, instance) == own_build()
    finally:
        subprocess.run(["docker", "rm", "-f", f"{volume}-filler"], check=False, capture_output=True)
        subprocess.run(["docker", "volume", "rm", "-f", volume], check=False, capture_output=True)


async def test_an_engine_closes_when_what_its_cancelled_caller_began_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = DockerEngine(instance=instance_id(), channel_root=tmp_path, runtime_image=RUNTIME_IMAGE)
    began, goes_on, prepare = threading.Event(), threading.Event(), engine_setup.prepare

    def slow(client: Client, image: str, instance: str, *, remote: bool) -> EngineContext:
        began.set()
        assert goes_on.wait(60)
        return prepare(client, image, instance, remote=remote)

    monkeypatch.setattr(engine_setup, "prepare", slow)
    creating = asyncio.ensure_future(engine.create(spec()))
    assert await asyncio.to_thread(began.wait, 60)
    creating.cancel()
    await asyncio.wait([creating])
    closing = asyncio.ensure_future(engine.close())
    await asyncio.sleep(0.1)
    assert not closing.done()
    goes_on.set()
    await closing
    assert containers_of(engine.instance) == []
    assert list(tmp_path.iterdir()) == []
