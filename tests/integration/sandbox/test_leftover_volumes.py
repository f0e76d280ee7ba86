"""Volumes with files of no thread, which a restore leaves that is killed or cannot remove the old ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from sandbox.engines.docker import docker_requests
from sandbox.engines.docker.container_config import volume_of
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.pooled_sandbox import pooled_id
from sandbox.engines.workspace_archive import WorkspaceEntry, write_tar
from sandbox.errors import SandboxUnavailable
from sandbox.sandbox import owner_of
from tests.docker_state import containers_of, volumes_of
from tests.integration.sandbox.live_engine import run, spec, text
from tests.integration.sandbox.test_pool import claimed
from tests.integration.sandbox.test_workspaces import giving, tree_of

pytestmark = pytest.mark.asyncio(loop_scope="session")
Remove = Callable[[docker_requests.Client, str], bool]


async def _left_by_a_restore(engine: DockerEngine, name: str, *, levels: int) -> str:
    """Fill a volume as a restore does, and leave it without a claim and without a lock; return its name."""
    fresh = pooled_id(name)
    paths = ["/".join(["d"] * depth) for depth in range(levels + 1)]  # "" is the root
    tree = {WorkspaceEntry(path, "directory", 0o700, 0, 0): b"" for path in paths}
    async with engine._reconciliation.transfer.carrier(spec(name), fresh) as carrier:
        pieces = write_tar(giving(tree)(), root="workspace", owner=1000)
        requests = engine._parts.requests
        await requests.threads.requests.begin(lambda: requests.put_archive(carrier, "/", pieces))
    return volume_of(engine.instance, fresh)


def _refusing(always: str, *, first: str = "") -> Remove:
    """Return a removal that fails for one volume, and for another one until its files are gone."""
    real, refused = docker_requests.remove_volume, set[str]()

    def remove(client: docker_requests.Client, name: str) -> bool:
        if name == always or (name == first and name not in refused):
            refused.add(name)
            raise SandboxUnavailable("too many open files")
        return real(client, name)

    return remove


async def test_a_start_removes_what_restores_left_and_goes_on_where_a_volume_cannot_be_removed(
    engine: DockerEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = volumes_of(engine.instance)
    deep = await _left_by_a_restore(engine, "deep", levels=900)
    stuck = await _left_by_a_restore(engine, "stuck", levels=1)
    for number in range(3):
        await _left_by_a_restore(engine, f"plain{number}", levels=1)
    emptied: list[int] = []
    run_container = docker_requests.run_container

    def counted(*args: object, **kwargs: object) -> int:
        emptied.append(run_container(*args, **kwargs))  # type: ignore[arg-type]
        return emptied[-1]

    def refused(*_: object) -> None:
        raise SandboxUnavailable("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(engine._parts.requests, "put_archive", refused)
        patched.setattr(docker_requests, "run_container", counted)
        patched.setattr(docker_requests, "remove_volume", _refusing(stuck, first=deep))
        await engine.reconcile()
    assert sorted(volumes_of(engine.instance)) == sorted([*before, stuck])
    assert emptied == [0, 0], "the deep one's program, and the stuck one's"
    assert "the volume of pooled sandbox pool-stuck stays until the next start" in caplog.text
    await engine.reconcile()
    assert sorted(volumes_of(engine.instance)) == sorted(before)
    assert containers_of(engine.instance) == []


async def test_a_deleted_tenant_leaves_no_replaced_files_that_could_not_be_removed_at_once(
    engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = volumes_of(engine.instance)
    sandbox = await claimed(engine, spec("replaced", tenant="tenant-gone"))
    assert text(await run(sandbox.shell, "echo old > file; cat file")) == "old\n"
    tree = await engine.save_workspace(sandbox.spec, tree_of)
    assert tree is not None
    old = volume_of(engine.instance, sandbox.id)
    with monkeypatch.context() as patched:
        patched.setattr(docker_requests, "remove_volume", _refusing(old))
        await engine.replace_workspace(sandbox.spec, giving(tree))
        assert old in volumes_of(engine.instance)
        with pytest.raises(SandboxUnavailable, match="may have files of this tenant"):
            await engine.remove_all_of("tenant-gone")
        assert sorted(volumes_of(engine.instance)) == sorted([*before, old])
    await engine.remove_all_of("tenant-gone")
    assert sorted(volumes_of(engine.instance)) == sorted(before)


async def test_no_removal_waits_for_a_program_that_empties_another_volume(
    engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = volumes_of(engine.instance)
    for thread, tenant in (("deep", "tenant-a"), ("plain", "tenant-a"), ("plain", "tenant-b")):
        await engine.replace_workspace(
            spec(thread, tenant=tenant), giving({WorkspaceEntry("", "directory", 0o700): b""})
        )
    deep = volume_of(engine.instance, await engine._parts.claims.pooled_of(owner_of(spec("deep"))))
    begun, going_on = asyncio.Event(), threading.Event()
    loop, run_container = asyncio.get_running_loop(), docker_requests.run_container

    def slow(*args: object, **kwargs: object) -> int:
        loop.call_soon_threadsafe(begun.set)
        going_on.wait(60)
        return run_container(*args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(docker_requests, "run_container", slow)
        patched.setattr(docker_requests, "remove_volume", _refusing("", first=deep))
        removing = asyncio.create_task(engine.remove_workspace("tenant-a", "deep"))
        try:
            await begun.wait()
            assert await engine.remove_workspace("tenant-a", "plain")
            assert await engine.remove_workspace("tenant-b", "plain")
            assert not removing.done()
        finally:
            going_on.set()
        assert await removing
    assert sorted(volumes_of(engine.instance)) == sorted(before)
