"""An engine on another machine: what happens when a part of the way there fails, and what is left of it."""

from __future__ import annotations

import asyncio
import time

import pytest

from sandbox.client.channel_authority import ChannelAuthority
from sandbox.client.tls_address import TlsAddress
from sandbox.engines.pooled_sandbox import PooledRefused, PoolKind
from sandbox.errors import DaemonLost, EngineUnavailable, SandboxError, SandboxUnavailable
from sandbox.sandbox import owner_of
from sandbox.thread_lock import Note
from sandbox.tls.identity import gateway_name, pooled_name, sandbox_name
from tests.chaos.own_engine import EngineRefused
from tests.integration.sandbox.live_engine import kill, run, text
from tests.integration.sandbox.remote_site import Site, machine, site
from tests.sandbox_keeper import make_keeper

__all__ = ["machine", "site"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_sandbox_whose_relay_is_killed_is_replaced_and_its_files_are_kept(site: Site) -> None:
    engine = site.engine()
    sandbox = await engine.create(site.spec())
    await sandbox.files.write("/workspace/a", b"kept")
    waiting = asyncio.ensure_future(run(sandbox.shell, "sleep 600", timeout_s=600))
    while "sleep 600" not in text(await run(sandbox.shell, "ps -o args", call_id="look")):
        await asyncio.sleep(0.05)
    await asyncio.to_thread(site.machine.docker, "kill", site.relay(sandbox.id))
    assert (await waiting).outcome == "daemon_lost"
    assert not sandbox.alive
    again = await engine.create(site.spec())
    assert again.id != sandbox.id
    assert text(await run(again.shell, "cat /workspace/a")) == "kept"


async def test_calls_fail_in_time_while_the_machine_is_not_reached_and_go_on_when_it_is(site: Site) -> None:
    engine = site.engine()
    async with asyncio.timeout(240):
        keeper = make_keeper(engine)
        async with keeper.acquire(site.spec()) as sandbox:
            await sandbox.files.write("/workspace/a", b"kept")
        with site.machine.unreachable():
            with pytest.raises(SandboxError):
                async with keeper.acquire(site.spec()) as sandbox:
                    await sandbox.files.stat("/workspace/a")
            with pytest.raises(EngineUnavailable, match="does not answer"):
                await engine.ping()
            with pytest.raises(SandboxError):
                async with keeper.acquire(site.spec("new")):
                    pass
        while True:
            try:
                async with keeper.acquire(site.spec()) as sandbox:
                    assert text(await run(sandbox.shell, "cat /workspace/a")) == "kept"
                    break
            except SandboxError:
                await asyncio.sleep(0.1)


async def test_the_next_process_reaches_what_a_killed_one_left(site: Site) -> None:
    before = site.engine()
    sandbox = await before.create(site.spec())
    await run(sandbox.shell, "echo 1 > /tmp/a")
    pooled = await before.pool.make_pooled(PoolKind.of(site.spec()))
    kill(before)
    pooled.lock.close()
    after = site.engine()
    assert [left.id for left in await after.reconcile()] == [sandbox.id]
    found = await after.create(site.spec())
    assert text(await run(found.shell, "cat /tmp/a")) == "1\n"
    assert not [name for name in site.names() if "pool" in name]


@pytest.mark.parametrize("noted", [True, False])
async def test_a_relay_of_a_process_that_died_before_its_sandbox_had_a_container_goes_with_its_volume(
    site: Site, noted: bool
) -> None:
    died, owner = site.engine(), owner_of(site.spec())
    await died.prepare()
    lock = await died._parts.locks.enter(owner)
    lock.write(Note("t-1", "made"))
    opening = died._parts.channels.begin(owner, "t-1")
    await opening.ready
    opening.channel.close()
    assert site.names() == ["channel-t-1", "relay-t-1"]
    other = site.engine()
    await other.reconcile()
    assert site.names() == ["channel-t-1", "relay-t-1"], "it is being made"
    if noted:
        lock.close()
    else:
        lock.retire()
    kill(died)
    await other.reconcile()
    assert site.names() == []


async def test_a_stopped_sandbox_has_no_relay_and_a_started_one_another_certificate(site: Site) -> None:
    engine = site.engine()
    sandbox = await engine.create(site.spec())
    _, first = site.place(sandbox.id)
    assert await engine.stop_idle(sandbox.id)
    with pytest.raises(EngineRefused):
        site.place(sandbox.id)
    again = await engine.create(site.spec())
    assert again.id == sandbox.id
    assert site.place(sandbox.id)[1] > first
    with pytest.raises(DaemonLost, match="not trusted"):
        await site.address(again, owner_of(site.spec()), epoch=first).open()


async def test_a_pooled_sandbox_is_renamed_once_for_the_thread_that_takes_it(site: Site) -> None:
    engine = site.engine()
    pooled = await engine.pool.make_pooled(PoolKind.of(site.spec()))
    authority = ChannelAuthority.open(site.authority, site.instance)
    port, epoch = site.place(pooled.id)
    nobodys = TlsAddress(site.machine.host, port, pooled_name(site.instance, pooled.id), authority.contexts)
    (await nobodys.open()).close()
    sandbox = await engine.pool.claim(pooled, site.spec())
    assert sandbox is not None
    assert text(await run(sandbox.shell, "echo mine")) == "mine\n"
    with pytest.raises(DaemonLost, match="not that of"):
        await nobodys.open()
    other = sandbox_name(site.instance, pooled.id, owner_of(site.spec("other")), 1)
    with pytest.raises(DaemonLost, match="was claimed before"):
        claimed = site.address(sandbox, owner_of(site.spec()), epoch=epoch)
        await claimed.claim(pooled.id, authority.sandbox_identity(other))
    found = await site.engine().find(site.spec())
    assert found is not None, "another process of the gateway finds it"
    assert found.id == sandbox.id
    with pytest.raises(PooledRefused):
        await engine.pool.claim(pooled, site.spec("other"))


async def test_what_is_configured_wrong_is_named_and_nothing_is_left(site: Site) -> None:
    with pytest.raises(SandboxUnavailable, match=r"channel_listen, which is 203\.0\.113\.1, must be an address"):
        await site.engine(listen="203.0.113.1").create(site.spec())
    with pytest.raises(SandboxUnavailable, match=r"192\.0\.2\.1 does not answer"):
        await site.engine(host="192.0.2.1").create(site.spec())
    assert site.names() == [f"workspace-{owner_of(site.spec())[1]}"]
    site.authority.chmod(0o644)
    with pytest.raises(SandboxUnavailable, match="others may read it"):
        await site.engine().create(site.spec())
    site.authority.chmod(0o600)


async def test_a_file_of_the_gateways_key_is_all_that_is_on_its_machine(site: Site) -> None:
    engine = site.engine()
    began_s = time.time()
    sandbox = await engine.create(site.spec())
    here = {path.relative_to(site.channels).parts[0] for path in site.channels.rglob("*") if path.is_file()}
    assert here == {"authority.pem", "locks"}
    assert site.authority.stat().st_mode & 0o777 == 0o600
    assert site.authority.stat().st_mtime >= began_s - 1
    assert gateway_name(site.instance) in site.machine.docker("inspect", site.relay(sandbox.id))
