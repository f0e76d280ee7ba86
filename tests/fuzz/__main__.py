"""Fuzz both ends of the channel, half of the inputs each, and say what was seen."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from sandbox.client.unix_address import SOCKET_NAME
from sandbox.engines.docker.docker_engine import DockerEngine
from tests.fuzz.rounds import fuzz_daemon_end, fuzz_gateway_end
from tests.integration.sandbox.live_engine import RUNTIME_IMAGE, instance_id, removed, spec


def main() -> None:
    """Run until all inputs were judged; the first finding ends it with a traceback and its seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=110_000, help="how many in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="where to begin (default: anywhere)")
    options = parser.parse_args()
    half = max(options.inputs // 2, 1)
    table = Table("end", "inputs", "seconds", "what became of them", title=f"fuzzed from seed {options.seed}")
    with Progress(transient=True) as progress:
        gateway = progress.add_task("gateway's end", total=half)
        daemon = progress.add_task("daemon's end", total=half)
        started_s = time.monotonic()
        seen = fuzz_gateway_end(half, options.seed, lambda count: progress.advance(gateway, count))
        table.add_row("gateway", str(seen.total()), f"{time.monotonic() - started_s:.0f}", _reported(seen))
        started_s = time.monotonic()
        seen = _fuzz_a_sandbox(half, options.seed, lambda count: progress.advance(daemon, count))
        table.add_row("daemon", str(seen.total()), f"{time.monotonic() - started_s:.0f}", _reported(seen))
    Console().print(table)


def _fuzz_a_sandbox(inputs: int, seed: int, on_round: Callable[[int], None]) -> Counter[str]:
    with tempfile.TemporaryDirectory() as directory, asyncio.Runner() as runner:
        instance = instance_id()
        engine = DockerEngine(instance=instance, channel_root=Path(directory), runtime_image=RUNTIME_IMAGE)
        try:
            runner.run(engine.create(spec()))
            (socket_path,) = Path(directory).glob(f"*/{SOCKET_NAME}")
            return fuzz_daemon_end(socket_path, inputs, seed, on_round)
        finally:
            runner.run(removed(engine, instance))


def _reported(seen: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in seen.most_common())


if __name__ == "__main__":
    main()
