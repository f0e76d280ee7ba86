"""A process of its own that takes from one counter, and holds, again and again: URL GATEWAY TIMES LIMIT.

It says that it is ready, waits for a line, and prints how many it took and how many it held.
"""

from __future__ import annotations

import asyncio
import sys

from gateway.storage.database import Database
from gateway.storage.quota_store import Hold, QuotaStore, Take


async def _hammer(url: str, gateway: str, times: int, limit: int) -> tuple[int, int]:
    taken = held = 0
    database = await Database.open(url)
    store = QuotaStore(database, gateway)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    try:
        for n in range(times):
            taken += not await store.take("t", [Take("n", 60, 60, 1, limit)])
            held += not await store.take("t", holding=[Hold(f"{gateway}{n}", "h", limit)])
    finally:
        await database.close()
    return taken, held


if __name__ == "__main__":
    print(*asyncio.run(_hammer(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
