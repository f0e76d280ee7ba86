"""Workers, slots and what a gateway refuses: processes that say that they answer, die, and are started again."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from gateway.config.config import Config
from gateway.config.identity_settings import TlsSettings
from gateway.errors import Misconfigured
from gateway.serving import workers as workers_room
from gateway.serving.directory_locks import locked_slot, locked_state
from gateway.serving.listening import is_loopback, refuse_open_files, refuse_plaintext, reserved
from gateway.serving.workers import Worker, Workers, supervised_worker

# Says that it answers and where it is scraped, leaves its process id, and ends on request.
SERVING = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
open(f"{sys.argv[1]}/{sys.argv[2]}.{os.getpid()}", "w").close()
os.write(int(sys.argv[3]), f"host:{sys.argv[2]}\\n".encode())
os.close(int(sys.argv[3]))
signal.pause()
"""


class Set:
    """Workers that run a script, and what they left in a directory."""

    def __init__(self, directory: Path, script: str, count: int) -> None:
        self.directory = directory
        self.script = script
        self.workers = Workers(self._command, count)

    def _command(self, index: int, ready: int) -> Sequence[str]:
        return [sys.executable, "-c", self.script, str(self.directory), str(index), str(ready)]

    def started(self, index: int) -> set[int]:
        """Return the processes that a worker has been."""
        return {int(path.suffix[1:]) for path in self.directory.glob(f"{index}.*")}


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Set]:
    made = Set(tmp_path, SERVING, 2)
    await made.workers.start()
    yield made
    await made.workers.stopped()


async def test_the_parent_knows_where_each_worker_is_scraped(two: Set) -> None:
    assert two.workers.metrics == ["host:0", "host:1"]


async def test_a_worker_that_dies_is_started_again_and_the_others_go_on(two: Set) -> None:
    (dead,), (other,) = two.started(0), two.started(1)
    os.kill(dead, signal.SIGKILL)
    async with asyncio.timeout(30):
        while len(two.started(0)) < 2:
            await asyncio.sleep(0.01)
    assert two.started(1) == {other}
    os.kill(other, 0)


async def test_all_end_on_request_and_none_is_started_again(two: Set) -> None:
    await two.workers.stopped()
    for index in range(2):
        (process,) = two.started(index)
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


async def test_a_worker_that_cannot_start_ends_the_others_and_is_named(tmp_path: Path) -> None:
    script = f"import sys\nif sys.argv[2] == '1': sys.exit(2)\n{SERVING}"
    made = Set(tmp_path, script, 2)
    with pytest.raises(Misconfigured, match=r"worker 1 failed to start \(exit code 2\)"):
        await made.workers.start()
    for process in made.started(0):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


async def test_one_that_dies_again_and_again_is_given_longer_and_longer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[float] = []
    monkeypatch.setattr(workers_room.log, "error", lambda *_, pause_s, **__: reported.append(pause_s))
    monkeypatch.setattr(workers_room, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(workers_room, "_LAST_PAUSE_S", 0.004)
    made = Set(tmp_path, "import os, sys; os.write(int(sys.argv[3]), b'1'); sys.exit(3)", 1)
    await made.workers.start()
    async with asyncio.timeout(60):
        while len(reported) < 4:
            await asyncio.sleep(0.01)
    await made.workers.stopped()
    assert reported[:4] == [0.002, 0.004, 0.004, 0.004]


def test_only_the_parent_that_started_a_worker_is_taken_for_it() -> None:
    for said in ("", "0", "0/2", "0/2@", "0/2@1x", "-1/2@5"):
        with pytest.raises(Misconfigured, match="--workers"):
            supervised_worker(said)


def test_a_directory_is_one_gateway_s_and_a_slot_one_worker_s(tmp_path: Path) -> None:
    with locked_state(tmp_path), pytest.raises(Misconfigured, match="in use"), locked_state(tmp_path):
        pass
    first, second = (locked_slot(tmp_path, Worker(index, 2)) for index in range(2))
    again = locked_slot(tmp_path, Worker(1, 2))
    with first, second, pytest.raises(Misconfigured, match="has not stopped yet"), again:
        pass


def test_the_successor_in_a_dead_worker_s_slot_gets_its_name_and_one_that_ended_in_order_none(
    tmp_path: Path,
) -> None:
    with pytest.raises(RuntimeError), locked_slot(tmp_path, Worker(0, 1)) as slot:
        slot.record("gw_first")
        raise RuntimeError
    with locked_slot(tmp_path, Worker(0, 1)) as slot:
        assert slot.predecessors == ("gw_first",)
        slot.record("gw_second")
    with locked_slot(tmp_path, Worker(0, 1)) as slot:
        assert slot.predecessors == ()


def test_the_first_worker_inherits_from_those_that_there_are_no_more_and_not_from_those_that_live(
    tmp_path: Path,
) -> None:
    for index in (1, 2, 3):
        (tmp_path / f"slot-{index}").write_text(f"gw_{index}", encoding="ascii")
    with locked_slot(tmp_path, Worker(3, 4)), locked_slot(tmp_path, Worker(0, 2)) as slot:
        assert slot.predecessors == ("gw_2",)
    assert not (tmp_path / "slot-2").exists()
    with locked_slot(tmp_path, Worker(1, 2)) as slot:
        assert slot.predecessors == ("gw_1",)


def test_a_reserved_port_is_free_for_those_that_share_it_and_another_gateway_s_is_not_reserved() -> None:
    with reserved("127.0.0.1:0") as address:
        port = int(address.rpartition(":")[2])
        with socket.socket() as worker:
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            worker.bind(("127.0.0.1", port))
            worker.listen()
            with pytest.raises(Misconfigured, match="in use"), reserved(address):
                pass
    with pytest.raises(Misconfigured, match="HOST:PORT"), reserved("127.0.0.1"):
        pass


@pytest.mark.parametrize(
    "listen, loopback",
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("0.0.0.0:1", False), ("example.com:1", False)],
)
def test_loopback_is_distinguished_from_what_other_machines_reach(listen: str, loopback: bool) -> None:
    assert is_loopback(listen) == loopback


def config(directory: Path, **sections: object) -> Config:
    return Config.model_validate({"tenants": {"t": {"policy": "p.yaml"}}, "directory": directory, **sections})


def test_plain_text_beyond_loopback_is_refused_unless_it_is_said_or_encrypted(tmp_path: Path) -> None:
    plain = config(tmp_path)
    with pytest.raises(Misconfigured, match=r"tls.*--insecure-plaintext"):
        refuse_plaintext(plain, "0.0.0.0:7443", insecure=False)
    refuse_plaintext(plain, "127.0.0.1:7443", insecure=False)
    refuse_plaintext(plain, "0.0.0.0:7443", insecure=True)
    tls = plain.model_copy(update={"tls": TlsSettings(certificate=Path("c"), key=Path("k"))})
    refuse_plaintext(tls, "0.0.0.0:7443", insecure=False)


def test_files_that_every_user_can_read_are_refused_unless_a_closed_directory_keeps_them_out(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "airlock.db").touch(mode=0o644)
    refuse_open_files(config(tmp_path))
    state.chmod(0o755)
    tmp_path.chmod(0o700)
    refuse_open_files(config(tmp_path))
    opened = [path for path in (tmp_path, *tmp_path.parents) if path.stat().st_mode & 0o001 == 0]
    modes = {path: path.stat().st_mode for path in opened}
    try:
        for path in opened:
            path.chmod(modes[path] | 0o001)
        with pytest.raises(Misconfigured, match=r"chmod 700 .*state"):
            refuse_open_files(config(tmp_path))
        with pytest.raises(Misconfigured, match=r"chmod 600 .*mine\.db"):
            (tmp_path / "mine.db").touch(mode=0o644)
            state.chmod(0o700)
            refuse_open_files(config(tmp_path, database_url=f"sqlite:///{tmp_path}/mine.db"))
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
