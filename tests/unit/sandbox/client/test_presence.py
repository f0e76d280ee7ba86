"""Who uses a sandbox, as its daemon says: two gateways at a real one, over its Unix socket and over TLS."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from sandbox.client.channel import Channel, Connection
from sandbox.client.channel_authority import ChannelAuthority
from sandbox.client.channel_sandbox import ChannelSandbox, EngineRecord
from sandbox.client.presence import Presence
from sandbox.client.remote_fs import RemoteFS
from sandbox.client.remote_processes import RemoteProcesses
from sandbox.client.remote_shell import RemoteShell
from sandbox.client.tls_address import TlsAddress
from sandbox.client.unix_address import UnixAddress
from sandbox.engines.local.local_process import LocalProcess
from sandbox.errors import DaemonLost, Exhausted, SandboxRetired
from sandbox.sandbox import SandboxSpec
from sandbox.v1 import channel_pb2 as pb
from tests.relayed_process import INSTANCE, NAME, RelayedProcess

PATIENCE_S = 10.0


class Place:
    """A sandbox's daemon, and the gateways that reach it."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.root, self._sockets, self._kind = directory / "root", directory / "sockets", kind
        for made in (self._sockets, self.root, self.root / "workspace", self.root / "tmp"):
            made.mkdir(exist_ok=True)
        self._lock = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        self._channels: list[Channel] = []
        self._presences: list[Presence] = []
        self.keys = directory / "channels.pem"
        if kind == "tls":
            authority = ChannelAuthority.open(self.keys, INSTANCE)
            self.process: LocalProcess = RelayedProcess(authority, self.root, self._sockets, self._lock)
        else:
            self.process = LocalProcess(self.root, self._sockets, self._lock)

    @property
    def address(self) -> list[str]:
        """What address_of() takes."""
        if isinstance(self.process, RelayedProcess):
            assert self.process._address.address is not None
            return [str(self.keys), str(self.process._address.address.result().port)]
        return [str(self._sockets)]

    def channel(self) -> Channel:
        """Return another gateway's channel."""
        self._channels.append(Channel(address_of(self.address)))
        return self._channels[-1]

    async def attach(self, process: str, channel: Channel | None = None) -> Presence:
        self._presences.append(await Presence.attach(channel or self.channel(), process))
        return self._presences[-1]

    async def end(self) -> None:
        for presence in self._presences:
            presence.close()
        await asyncio.sleep(0)
        for channel in (*self._channels, self.process.channel):
            channel.close()
        await asyncio.to_thread(self.process.end)
        os.close(self._lock)


def address_of(words: list[str]) -> UnixAddress | TlsAddress:
    if len(words) == 1:
        return UnixAddress(Path(words[0]))
    return TlsAddress("127.0.0.1", int(words[1]), NAME, ChannelAuthority.open(Path(words[0]), INSTANCE).contexts)


@asynccontextmanager
async def started(directory: Path, kind: str) -> AsyncIterator[Place]:
    place = Place(directory, kind)
    try:
        await place.process.start()
        yield place
    finally:
        await place.end()


@pytest.fixture(params=["unix", "tls"])
async def place(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    async with started(tmp_path, request.param) as made:
        yield made


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def run(channel: Channel, command: str) -> str:
    """Return the outcome of a command."""
    result = await RemoteShell(channel, env={}).execute(
        command, timeout_s=60, call_id="c1", limit_chars=80_000, head_chars=2_000, tail_chars=2_000
    )
    return f"{result.outcome} {result.message}".strip()


GATEWAY = """
import asyncio, sys
from sandbox.client.channel import Channel
from sandbox.client.presence import Presence
from tests.unit.sandbox.client.test_presence import address_of, run

async def main():
    channel = Channel(address_of(sys.argv[1:]))
    presence = await Presence.attach(channel, "killed")
    assert presence.begin_use()
    await run(channel, "touch begun; sleep 1000")

asyncio.run(main())
"""


@contextmanager
def another_gateway(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """Run a gateway process that is attached and has a call under way."""
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PATH": os.environ["PATH"]}
    process = subprocess.Popen([sys.executable, "-c", GATEWAY, *place.address], env=paths)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_processes_see_each_other_come_and_begin_and_end_and_go(place: Place) -> None:
    first, second = await place.attach("first"), await place.attach("second")
    await until(lambda: (first.others, second.others) == (1, 1))
    assert (first.in_use(), second.in_use()) == (False, False)

    assert first.begin_use()
    assert first.in_use()
    await until(second.in_use)
    first.end_use()
    assert not first.in_use()
    await until(lambda: not second.in_use())

    again = await place.attach("second")
    await until(lambda: again.others == 1)
    assert first.others == 1  # two connections of one process
    assert first.begin_use()
    await until(second.in_use)
    first.close()
    await until(lambda: (second.others, second.in_use(), again.others) == (0, False, 0))
    assert (first.begin_use(), first.in_use()) == (False, False)


async def test_a_sandbox_is_retired_only_when_nothing_is_in_the_way_that_was_not_allowed(place: Place) -> None:
    mine, channel = await place.attach("mine"), place.channel()
    other = await place.attach("other", channel)
    await place.attach("mine")
    assert await mine.retire() == "attached"
    assert await mine.retire(busy=True) == "attached"
    assert other.begin_use()
    await until(mine.in_use)
    assert await mine.retire(attached=True) == "busy"
    assert await run(channel, "true") == "exited"
    other.end_use()
    assert mine.begin_use()
    assert await mine.retire(attached=True) == "busy"  # its own use, too
    mine.end_use()

    assert await mine.retire(attached=True) is None
    await until(lambda: other.retired)
    assert (mine.begin_use(), other.begin_use()) == (False, False)
    assert await other.retire() == "attached"
    assert await mine.retire(attached=True, busy=True) is None


async def test_a_retired_sandbox_begins_no_call_and_says_so(place: Place) -> None:
    mine = await place.attach("mine")
    assert await RemoteProcesses(place.channel(), env={}, file_limit_bytes=1).list() is not None
    assert await mine.retire() is None
    for call in (
        lambda files: files.write("/workspace/a", b"x" * 3_000_000),
        lambda files: files.stat("/workspace"),
        lambda files: RemoteProcesses(files.channel, env={}, file_limit_bytes=1).remove("p1"),
    ):
        channel = place.channel()
        with pytest.raises(SandboxRetired, match="another gateway removed the sandbox"):
            await call(RemoteFS(channel))
        assert isinstance(channel.lost, SandboxRetired)
    with pytest.raises(SandboxRetired):
        await place.attach("late")
    outcome = await run(place.channel(), "touch a")
    assert outcome.startswith("daemon_lost another gateway removed the sandbox. The command did not run;")
    assert not (place.root / "workspace" / "a").exists()
    # What still runs in it can be counted.
    channel = place.channel()
    await channel.hello(timeout_s=5.0)
    assert not (await RemoteProcesses(channel, env={}, file_limit_bytes=1).list()).processes


async def test_calls_that_are_under_way_go_on_in_a_sandbox_that_is_retired_although_it_is_busy(place: Place) -> None:
    mine, channel = await place.attach("mine"), place.channel()
    other = await place.attach("other", channel)
    assert other.begin_use()
    command = "touch begun; until [ -e go ]; do sleep 0.01; done; touch done"
    call = asyncio.create_task(run(channel, command))
    await until((place.root / "workspace" / "begun").exists)
    assert await mine.retire() == "busy"
    assert await mine.retire(attached=True, busy=True) is None
    (place.root / "workspace" / "go").touch()
    assert await call == "exited"
    assert (place.root / "workspace" / "done").exists()


async def test_a_call_without_a_use_keeps_a_sandbox_busy_and_one_that_was_given_up_does_not(place: Place) -> None:
    mine = await place.attach("mine")
    call = asyncio.create_task(run(place.channel(), "touch begun; sleep 1000"))
    await until((place.root / "workspace" / "begun").exists)
    assert await mine.retire() == "busy"
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert await mine.retire() is None


async def test_a_process_that_is_killed_leaves_no_use_and_no_place(place: Place) -> None:
    mine = await place.attach("mine")
    with another_gateway(place) as other:
        await until((place.root / "workspace" / "begun").exists)
        await until(lambda: mine.in_use() and mine.others == 1)
        assert await mine.retire(attached=True) == "busy"
        other.send_signal(signal.SIGSTOP)  # one that only hangs keeps both
        assert await mine.retire(attached=True) == "busy"
        other.kill()
        await until(lambda: (mine.in_use(), mine.others) == (False, 0))
    assert await mine.retire() is None


async def test_an_attachment_whose_connection_breaks_is_made_again_with_its_use(tmp_path: Path) -> None:
    async with started(tmp_path, "tls") as place:
        channel = place.channel()
        mine, other = await place.attach("mine", channel), await place.attach("other")
        assert mine.begin_use()
        await until(other.in_use)
        await asyncio.sleep(1.1)
        first = mine._call
        for relay in list(channel._address._relays):  # type: ignore[attr-defined]
            relay.cancel()
        await until(lambda: mine._call not in (first, None))
        await until(lambda: (other.others, other.in_use()) == (1, True))
        assert channel.lost is None
        mine.end_use()
        await until(lambda: not other.in_use())
        assert mine.begin_use()


async def test_a_daemon_that_is_gone_is_noticed_without_a_call(place: Place) -> None:
    channel = place.channel()
    mine = await place.attach("mine", channel)
    await asyncio.to_thread(place.process.end)
    await until(lambda: channel.lost)
    assert not mine.begin_use()
    with pytest.raises(DaemonLost):
        await mine.retire()


async def test_a_daemon_lets_only_so_many_attach_under_names_of_some_length(tmp_path: Path) -> None:
    async with started(tmp_path, "unix") as place:
        channel = place.channel()
        for name in ("", "x" * 129):
            with pytest.raises(DaemonLost):
                await place.attach(name)
        for number in range(64):
            await place.attach(f"gateway-{number}", channel)
        with pytest.raises(Exhausted, match="64 gateways"):
            await place.attach("one-more", channel)
        assert channel.lost is None
        first, second = place._presences[:2]
        await until(lambda: second.others == 63)  # changes are sent some time after they are made
        first.close()
        await until(lambda: second.others == 62)
        await place.attach("one-more", channel)
        health = pb.Request(health=pb.HealthRequest())
        # A place is no call.
        assert await channel.query(health, "health", lambda reply: reply.calls, timeout_s=5.0) == 1


async def test_changes_are_sent_at_a_bounded_rate_and_the_last_one_always(tmp_path: Path) -> None:
    async with started(tmp_path, "unix") as place:
        mine, other = await place.attach("mine"), await place.attach("other")
        heard: list[bool] = []
        note = mine._note

        def noted(member: str, reply: pb.Reply) -> None:
            note(member, reply)
            heard.append(reply.presence.others_in_use)

        mine._note = noted  # type: ignore[method-assign]
        began_s = asyncio.get_running_loop().time()
        for _ in range(500):
            assert other.begin_use()
            await asyncio.sleep(0.001)
            other.end_use()
        assert other.begin_use()
        await until(mine.in_use)
        assert len(heard) <= 3 + (asyncio.get_running_loop().time() - began_s) / 0.05
        other.end_use()
        await until(lambda: not mine.in_use())


async def test_a_gateway_that_reads_nothing_and_one_that_sends_nonsense_disturb_no_other(tmp_path: Path) -> None:
    async with started(tmp_path, "unix") as place:
        mine, other = await place.attach("mine"), await place.attach("other")
        deaf, confused = Connection(await address_of(place.address).open()), place.channel()
        await deaf.send(pb.Request(attach=pb.AttachRequest(process="deaf")))
        for _ in range(5_000):  # more answers than its socket has room for, while it reads none
            if deaf.send_at_once(pb.Input(retire=pb.RetireRequest())):
                break
        async with confused.call(pb.Request(attach=pb.AttachRequest(process="confused"))) as call:
            await call.connection.send(pb.Input(data=b"x"))
            with pytest.raises(DaemonLost):
                while True:
                    await call.receive(timeout_s=PATIENCE_S)
        await until(lambda: (mine.others, other.others) == (2, 2))
        for _ in range(50):
            assert other.begin_use()
            await until(mine.in_use)
            other.end_use()
            await until(lambda: not mine.in_use())
        deaf.close()
        await until(lambda: mine.others == 1)
        assert await mine.retire(attached=True) is None


async def test_a_sandbox_shows_its_uses_by_a_presence(tmp_path: Path) -> None:
    async with started(tmp_path, "unix") as place:
        spec = SandboxSpec("tenant", "thread", "image")
        channel = place.channel()
        presence = await Presence.attach(channel, "one", lambda: 3)
        sandbox = ChannelSandbox("s1", spec, channel, pb.Posture(), EngineRecord(presence, ended_processes=3))
        other = await place.attach("two")
        assert (sandbox.take_ended_processes(), sandbox.take_ended_processes()) == (3, 0)
        assert sandbox.borrow()
        assert sandbox.borrow()
        sandbox.give_back()
        await until(other.in_use)
        sandbox.give_back()
        await until(lambda: not other.in_use())
        assert other.begin_use()
        await until(lambda: sandbox.busy)
        other.end_use()
        await until(lambda: not sandbox.busy)
        assert await other.retire(attached=True) is None
        await until(lambda: presence.retired)
        assert not sandbox.borrow()
        assert not sandbox.alive
        presence.close()


@pytest.mark.parametrize(
    "kind, rounds",
    [("unix", 60), ("tls", 30), *(pytest.param(kind, 400, marks=pytest.mark.full) for kind in ("unix", "tls"))],
)
async def test_a_call_that_races_a_retirement_runs_whole_or_never_begins(
    tmp_path: Path, kind: str, rounds: int
) -> None:
    ended = {"refused": 0, "retired": 0}
    chance = random.Random(rounds)
    number = 0
    while number < rounds:
        directory = tmp_path / str(number)
        directory.mkdir()
        async with started(directory, kind) as place:
            mine, channel = await place.attach("mine"), place.channel()
            other = await place.attach("other", channel)
            retired = False
            while not retired and number < rounds:
                number += 1
                retired = await race(place.root / "workspace" / f"r{number}", mine, other, channel, chance)
                ended["retired" if retired else "refused"] += 1
    assert all(ended.values()), ended


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def race(lines: Path, mine: Presence, other: Presence, channel: Channel, chance: random.Random) -> bool:
    """Return whether the sandbox was retired."""
    first = chance.choice(["call", "retirement", "both"])

    async def call() -> str | None:
        if first == "retirement":
            await asyncio.sleep(chance.uniform(0, 0.002))
        if not other.begin_use():
            return None
        try:
            return await run(channel, f"echo begun >> {lines.name}; echo done >> {lines.name}")
        finally:
            other.end_use()

    async def retirement() -> str | None:
        if first == "call":
            await asyncio.sleep(chance.uniform(0, 0.004))
        refused = await mine.retire(attached=True)
        if refused is None:
            at_once.append(text_of(lines))
        return refused

    at_once: list[str] = []
    outcome, refused = await asyncio.gather(call(), retirement())
    written = text_of(lines)
    assert at_once in ([], [written])
    assert refused in ("busy", None)
    if refused == "busy":
        assert outcome == "exited"
    if outcome == "exited":
        assert written == "begun\ndone\n"
    else:
        assert outcome is None or "did not run" in outcome
        assert written == ""
    return refused is None
