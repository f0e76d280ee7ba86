"""A daemon that lies about who uses its sandbox: the gateway neither hangs nor grows; it loses that sandbox at most."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from sandbox.client import presence as presence_module
from sandbox.client.presence import Presence
from sandbox.client.remote_fs import RemoteFS
from sandbox.errors import DaemonLost, SandboxRetired
from sandbox.v1 import channel_pb2 as pb
from tests.unit.sandbox.fake_daemon import Answer, Peer, always, fake_daemon

PATIENCE_S = 10.0
ALONE = pb.Presence()


def then(*members: dict[str, object], keep: bool = True) -> Answer:
    """Answer attach, then each input with the next of these, and read no further."""

    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.reply(presence=ALONE)
        for member in members:
            await peer.input()
            await peer.reply(**member)
        if not keep:
            raise OSError("hang up")
        await asyncio.Event().wait()

    return answer


@pytest.mark.parametrize(
    "member",
    [
        {"presence": pb.Presence(others=65)},
        {"presence": pb.Presence(others=2**32 - 1)},
        {"retire": pb.RetireReply()},
        {"tunnel": pb.Tunnel()},
        {"chunk": pb.Chunk(data=b"x")},
        {"failure": pb.Failure(message="no kind")},
        {},
    ],
    ids=["too many", "far too many", "an answer to nothing", "tunnel", "chunk", "no kind", "empty"],
)
async def test_an_attachment_that_is_answered_with_nonsense_is_a_lost_daemon(
    tmp_path: Path, member: dict[str, object]
) -> None:
    async with fake_daemon(tmp_path, always(**member)) as daemon:
        with pytest.raises(DaemonLost):
            await asyncio.wait_for(Presence.attach(daemon.channel, "one"), PATIENCE_S)
        assert daemon.channel.lost is not None


async def test_a_daemon_that_does_not_know_of_attachments_is_an_old_one(tmp_path: Path) -> None:
    unknown = pb.Failure(kind=pb.FAILURE_KIND_INVALID_ARGUMENT, message="the request names no call")
    async with fake_daemon(tmp_path, always(failure=unknown)) as daemon:
        with pytest.raises(DaemonLost, match="rebuild the runtime image"):
            await Presence.attach(daemon.channel, "one")


async def test_an_attachment_or_a_retirement_without_an_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence_module, "_ANSWER_TIMEOUT_S", 0.2)

    async def silent(request: pb.Request, peer: Peer) -> None:
        if len(daemon.requests) > 1:
            await peer.reply(presence=ALONE)

    async with fake_daemon(tmp_path, silent) as daemon:
        with pytest.raises(DaemonLost, match="did not answer"):
            await asyncio.wait_for(Presence.attach(daemon.channel, "one"), PATIENCE_S)
    directory = tmp_path / "retire"
    directory.mkdir()
    async with fake_daemon(directory, then()) as daemon:
        presence = await Presence.attach(daemon.channel, "one")
        waiting = [asyncio.create_task(presence.retire()) for _ in range(3)]
        for ended in await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), PATIENCE_S):
            assert isinstance(ended, DaemonLost)
        assert daemon.channel.lost is not None
        assert (presence.begin_use(), presence.in_use()) == (False, False)


@pytest.mark.parametrize(
    "member",
    [
        {"retire": pb.RetireReply(refused=pb.REFUSAL_BUSY)},
        {"retire": pb.RetireReply(refused=99)},  # type: ignore[arg-type]
        {"failure": pb.Failure(kind=pb.FAILURE_KIND_EXHAUSTED, message="no")},
        {"exec": pb.ExecReply()},
    ],
    ids=["what was allowed", "no reason", "failure", "exec"],
)
async def test_a_retirement_that_is_answered_with_nonsense_is_a_lost_daemon(
    tmp_path: Path, member: dict[str, object]
) -> None:
    async with fake_daemon(tmp_path, then(member)) as daemon:
        presence = await Presence.attach(daemon.channel, "one")
        with pytest.raises(DaemonLost):
            await asyncio.wait_for(presence.retire(busy=True), PATIENCE_S)
        assert daemon.channel.lost is not None


async def test_a_retirement_that_was_given_up_leaves_its_answer_to_no_other(tmp_path: Path) -> None:
    late = asyncio.Event()

    async def answer(request: pb.Request, peer: Peer) -> None:
        await peer.reply(presence=ALONE)
        await peer.input()
        await late.wait()
        await peer.reply(retire=pb.RetireReply(refused=pb.REFUSAL_BUSY))
        await peer.input()
        await peer.reply(retire=pb.RetireReply(refused=pb.REFUSAL_ATTACHED))

    async with fake_daemon(tmp_path, answer) as daemon:
        presence = await Presence.attach(daemon.channel, "one")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(presence.retire(), 0.1)
        second = asyncio.create_task(presence.retire())
        late.set()
        assert await asyncio.wait_for(second, PATIENCE_S) == "attached"
        assert daemon.channel.lost is None
        presence.close()


async def test_a_flood_of_changes_is_read_at_the_gateways_pace(tmp_path: Path) -> None:
    sent = 0

    async def flood(request: pb.Request, peer: Peer) -> None:
        nonlocal sent
        if not request.HasField("attach"):
            await peer.reply(entry=pb.Entry(name=b"/workspace/a", type=pb.ENTRY_TYPE_FILE))
            return
        body = pb.Reply(presence=pb.Presence(others=1)).SerializeToString()
        while True:
            await peer.raw(struct.pack(">I", len(body)) + body)
            sent += 1

    async with fake_daemon(tmp_path, flood) as daemon:
        presence = await Presence.attach(daemon.channel, "one")
        noted, note = 0, presence._note

        def counted(member: str, reply: pb.Reply) -> None:
            nonlocal noted
            noted += 1
            note(member, reply)

        presence._note = counted  # type: ignore[method-assign]
        began_s = asyncio.get_running_loop().time()
        for _ in range(20):
            await RemoteFS(daemon.channel).stat("/workspace/a")
            await asyncio.sleep(0.02)
        assert noted <= 2 + (asyncio.get_running_loop().time() - began_s) / 0.025
        full = sent
        await asyncio.sleep(0.2)
        assert sent - full < 20_000  # no more than what the gateway read made room for in one receive
        assert presence.begin_use()
        presence.close()


async def test_a_change_that_is_padded_is_a_lost_daemon(tmp_path: Path) -> None:
    padding = b"\xa2\x06" + b"\xf4\x03" + b"x" * 500  # field 100, unknown

    async def pad(request: pb.Request, peer: Peer) -> None:
        body = pb.Reply(presence=ALONE).SerializeToString() + padding
        await peer.raw(struct.pack(">I", len(body)) + body)

    async with fake_daemon(tmp_path, pad) as daemon:
        with pytest.raises(DaemonLost, match="too much"):
            await asyncio.wait_for(Presence.attach(daemon.channel, "one"), PATIENCE_S)


async def test_uses_that_are_not_read_lose_the_daemon_and_never_wait(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, then()) as daemon:
        presence = await Presence.attach(daemon.channel, "one")
        for _ in range(1_000_000):
            if not presence.begin_use():
                break
            presence.end_use()
        assert not presence.begin_use()
        await asyncio.sleep(0)
        assert "does not read" in str(daemon.channel.lost)


async def test_a_daemon_that_hangs_up_on_every_attachment_is_lost_and_not_asked_forever(tmp_path: Path) -> None:
    async with fake_daemon(tmp_path, then(keep=False)) as daemon:
        with suppress(DaemonLost):
            await Presence.attach(daemon.channel, "one")
        async with asyncio.timeout(PATIENCE_S):
            while daemon.channel.lost is None:
                await asyncio.sleep(0.01)
        assert len(daemon.requests) <= 2


async def test_a_retired_sandbox_does_not_come_back(tmp_path: Path) -> None:
    again = asyncio.Event()

    async def lie(request: pb.Request, peer: Peer) -> None:
        await peer.reply(presence=pb.Presence(retired=True))
        await peer.reply(presence=pb.Presence(others=1))
        await again.wait()

    async with fake_daemon(tmp_path, lie) as daemon:
        presence = await Presence.attach(daemon.channel, "one")
        async with asyncio.timeout(PATIENCE_S):
            while not presence.others:
                await asyncio.sleep(0.01)
        assert presence.retired
        assert not presence.begin_use()
        presence.close()


async def test_a_daemon_that_says_it_is_retired_in_any_call_is_lost_and_the_next_calls_say_why(tmp_path: Path) -> None:
    retired = pb.Failure(kind=pb.FAILURE_KIND_RETIRED, message="\x1b[31mpay here")
    async with fake_daemon(tmp_path, always(failure=retired)) as daemon:
        for _ in range(2):
            with pytest.raises(SandboxRetired, match=r"^another gateway removed the sandbox$"):
                await RemoteFS(daemon.channel).stat("/workspace/a")
        assert len(daemon.requests) == 1
