"""The quota of the directory of spilled outputs, against many calls at once and against tool code."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandbox.v1 import channel_pb2 as wire
from tests.security.daemon.daemon_container import Client, Sandbox

MIB = 1024 * 1024
DIRECTORY = "/workspace/.airlock/output"


def limit(name: str, quota_bytes: int) -> wire.OutputLimit:
    return wire.OutputLimit(
        limit_chars=1000,
        head_chars=10,
        tail_chars=10,
        spill_path=f"{DIRECTORY}/{name}",
        spill_limit_bytes=64 * MIB,
        spill_quota_bytes=quota_bytes,
    )


def spill(client: Client, name: str, size: int, quota_bytes: int) -> wire.Evicted:
    request = limit(name, quota_bytes)
    reply = client.execute(f"head -c {size} /dev/zero", output_limit=request)
    assert reply.outcome == wire.OUTCOME_EXITED
    return reply.evicted


def files(client: Client) -> dict[str, int]:
    entries = client.call(list=wire.ListRequest(path=DIRECTORY, limit=10_000)).entries.entries
    return {entry.name.decode(): entry.size_bytes for entry in entries if entry.type == wire.ENTRY_TYPE_FILE}


def count(client: Client) -> int:
    return int(client.call(list=wire.ListRequest(path=DIRECTORY, limit=1)).entries.total)


@pytest.fixture
def empty_directory(client: Client) -> None:
    client.call(remove=wire.RemoveRequest(path=DIRECTORY, recursive=True))


@pytest.mark.usefixtures("empty_directory")
def test_the_oldest_spills_make_room_for_a_new_one_within_the_quota(client: Client) -> None:
    for name in ("a", "b", "c"):
        assert not spill(client, name, 100_000, 350_000).incomplete
    assert not spill(client, "d", 200_000, 350_000).incomplete
    assert files(client) == {"c": 100_000, "d": 200_000}
    evicted = spill(client, "e", 900_000, 350_000)
    assert (evicted.size_bytes, evicted.incomplete) == (350_000, True)
    assert files(client) == {"e": 350_000}


@pytest.mark.usefixtures("empty_directory")
def test_spills_at_the_same_time_hold_the_quota_together(sandbox: Sandbox, client: Client) -> None:
    def run(n: int) -> wire.ExecReply:
        request = wire.ExecRequest(argv=[b"head", b"-c", b"10M", b"/dev/zero"], output_limit=limit(f"n{n}", 20 * MIB))
        return sandbox.connect().call(exec=request).exec

    seen = [files(client)]
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(run, n) for n in range(8)]
        while len(seen) < 2 or not all(future.done() for future in running):
            seen.append(files(client))
    seen += [files(client)] * 2
    # A list takes time: a file in it may have made room for another one. Those in the next list, too, were all there.
    seen_bytes = [sum(size for name, size in now.items() if name in then) for now, then in itertools.pairwise(seen)]
    assert {future.result().outcome for future in running} == {wire.OUTCOME_EXITED}
    assert 10 * MIB <= max(seen_bytes) <= 20 * MIB


@pytest.mark.usefixtures("empty_directory")
def test_planted_names_neither_stall_the_daemon_nor_lead_the_quota_astray(client: Client) -> None:
    plant = (
        "mkdir -p /workspace/.airlock/output /tmp/kept; cd /workspace/.airlock/output; echo kept > /tmp/kept/file;"
        "ln -s /tmp/kept/file link; mkdir directory; ln -s /tmp/kept folder-link; seq 1 20000 | xargs touch"
    )
    assert client.execute(plant, timeout_ms=60_000).outcome == wire.OUTCOME_EXITED
    # More names than are looked at: no spill, and the planted files go away bit by bit.
    assert spill(client, "new", 100_000, 1_000_000).incomplete
    names = [count(client)]
    while (evicted := spill(client, "new", 100_000, 1_000_000)).incomplete:
        names.append(count(client))
        assert names[-1] < names[-2]
    assert evicted.size_bytes == 100_000
    assert client.output("cat /tmp/kept/file; ls -d /workspace/.airlock/output/[dfl]*").split() == [
        "kept",
        f"{DIRECTORY}/directory",
        f"{DIRECTORY}/folder-link",
        f"{DIRECTORY}/link",
    ]
