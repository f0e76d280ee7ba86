"""The peer of exec: a bare asyncio subprocess, in a lean process of its own: `python -m tests.bench.bare_subprocess`.

For each line it reads, `bare <n>` or `piped <n>`, it runs `true` so many times and answers with a line. In the bench's
own process the same takes up to twice as long, for the threads and the heap there.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE


async def bare() -> None:
    """Run it with this process' own stdio."""
    process = await asyncio.create_subprocess_exec("true", stdin=DEVNULL)
    assert await process.wait() == 0


async def piped() -> None:
    """Run it and read both of its outputs."""
    process = await asyncio.create_subprocess_exec("true", stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    assert await process.communicate() == (b"", b"")
    assert process.returncode == 0


async def _serve() -> None:
    samples = {"bare": bare, "piped": piped}
    for line in sys.stdin:
        name, repeat = line.split()
        for _ in range(int(repeat)):
            await samples[name]()
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(_serve())
