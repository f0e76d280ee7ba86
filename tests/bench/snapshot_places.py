"""1 GiB kept and put back, in a directory and in a bucket: `python -m tests.bench.snapshot_places [--mib 1024]`.

A gateway process with the in-memory engine takes a snapshot of a thread's files and restores it into another thread,
with `snapshots_dir` and with a bucket of the tests' S3 server, in turn. The memory is the gateway's: its resident set
before, and at most. The server is on this machine and in Python: it is neither a network nor a fast server.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

import yaml
from rich.console import Console
from rich.table import Table

from gateway.client import Client
from tests.gateway_process import Served, make_home, served
from tests.s3_server import BUCKET, CREDENTIALS, s3_server

_MIB = 1024**2


class PeakOf:
    """The resident set of another process, before and at most."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/statm")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.before_mib = self.most_mib = self._now()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _now(self) -> float:
        return int(self._status.read_text().split()[1]) * 4096 / _MIB

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.most_mib = max(self.most_mib, self._now())


async def _measured(gateway: Served, key: str, mib: int) -> list[tuple[str, float, float, float]]:
    fill = f"for n in $(seq {mib // 16}); do head -c 16777216 /dev/urandom > f$n; done"
    rows = []
    async with Client(gateway.address, key) as client:
        done = await client.call_tool("execute", {"command": fill, "timeout_s": 300}, thread="from")
        assert done.exit_code == 0, done
        kept = await client.create_snapshot("from")
        await client.delete_snapshot(kept.id)
        for what in ("first snapshot", "the same again", "restore"):
            with PeakOf(gateway.process.pid) as memory:
                begun_s = time.monotonic()
                if what == "restore":
                    await client.restore_snapshot(kept.id, thread="to")
                else:
                    kept = await client.create_snapshot("from")
                took_s = time.monotonic() - begun_s
            assert kept.size_bytes == mib * _MIB
            rows.append((what, took_s, memory.before_mib, memory.most_mib))
        sums = "cat $(ls | sort) | sha256sum"
        found = [await client.call_tool("execute", {"command": sums}, thread=one) for one in ("from", "to")]
        assert found[0].content == found[1].content
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    mib = parser.parse_args().mib
    table = Table("where", "what", "seconds", "MiB/s", "memory before", "at most (MiB)", box=None)
    with tempfile.TemporaryDirectory(prefix="airlock-bench-") as text, s3_server() as s3:
        for where in ("directory", "bucket"):
            home = make_home(Path(text) / where)
            policy = home.config.parent / "policies" / "default.yaml"
            document = yaml.safe_load(policy.read_text(encoding="utf-8"))
            document["sandbox"] = {**document.get("sandbox", {}), "workspace_mib": 2 * mib}
            policy.write_text(yaml.safe_dump(document), encoding="utf-8")
            home.configure(sandbox={"engine": "memory"})
            if where == "bucket":
                bucket = {"bucket": f"s3://{BUCKET}/bench", "endpoint_url": s3.url, "region": "us-east-1"}
                home.configure(snapshots=bucket)
            with served(home, CREDENTIALS) as gateway:
                for what, took_s, before, most in asyncio.run(_measured(gateway, home.make_key("default"), mib)):
                    table.add_row(where, what, f"{took_s:.1f}", f"{mib / took_s:.0f}", f"{before:.0f}", f"{most:.0f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
