"""The client of the peer SWE-ReX, run by the Python of its own environment: `swe_rex_client.py URL TOKEN`.

For each line `WHAT CLIENTS CALLS` it makes so many calls, `CLIENTS` at a time, and answers with the seconds that took.
It is the package's own RemoteRuntime that calls, as its users have it.
"""

from __future__ import annotations

import asyncio
import sys
import time

from swerex.runtime.abstract import Command, ReadFileRequest, WriteFileRequest
from swerex.runtime.remote import RemoteRuntime

PAGE = "x" * 4095 + "\n"
PATH = "/tmp/page"


async def _call(runtime: RemoteRuntime, what: str) -> None:
    if what == "execute":
        answer = await runtime.execute(Command(command="true", shell=True))
        ok = answer.exit_code == 0
    elif what == "read_file":
        ok = (await runtime.read_file(ReadFileRequest(path=PATH))).content == PAGE
    else:
        await runtime.write_file(WriteFileRequest(path=PATH, content=PAGE))
        ok = True
    if not ok:
        raise RuntimeError(what)


async def _seconds(runtime: RemoteRuntime, what: str, clients: int, calls: int) -> float:
    left = iter(range(calls))

    async def client() -> None:
        for _ in left:
            await _call(runtime, what)

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - started


async def _serve(url: str, token: str) -> None:
    host, _, port = url.rpartition(":")
    runtime = RemoteRuntime(host=host, port=int(port), auth_token=token)
    await runtime.wait_until_alive()
    print("ready", flush=True)
    for line in sys.stdin:
        what, clients, calls = line.split()
        print(await _seconds(runtime, what, int(clients), int(calls)), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
