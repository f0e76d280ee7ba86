"""A report service: it copies a table into a sandbox, runs a Python program that adds it up, and fetches the result.

    AIRLOCK_ADDRESS=127.0.0.1:7443 AIRLOCK_API_KEY=alk_... python -m examples.report_service

AIRLOCK_TLS_CA names the CA certificates of a gateway that uses TLS, as it does for the command line.
examples/typescript does the same with stubs generated from proto/.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from pathlib import Path

from airlock import AirlockError, Client, Tls

SALES = b"region,amount\nnorth,120\nsouth,80\nnorth,40\nwest,15\n"
PROGRAM = b"""
import collections, csv, json
totals = collections.Counter()
for row in csv.DictReader(open("/workspace/sales.csv")):
    totals[row["region"]] += int(row["amount"])
    print("read", row["region"], flush=True)
json.dump(dict(totals.most_common()), open("/workspace/report.json", "w"))
"""


class NoReport(Exception):
    """The report could not be made. The text is for the service's caller."""


async def report(airlock: Client, table: bytes) -> dict[str, int]:
    """Return the totals by region. Raises NoReport, and AirlockError if the gateway does not answer."""
    thread = f"report-{uuid.uuid4()}"
    await airlock.write_file(thread, "/workspace/sales.csv", table)
    await airlock.write_file(thread, "/workspace/report.py", PROGRAM)
    # The client sends a request id with each call, so a call is not repeated when a connection breaks after it ran.
    result = await airlock.call_tool(
        "execute",
        {"command": "python3 /workspace/report.py", "timeout_s": 20},
        thread=thread,
        on_output=lambda _stream, data: print(data.decode(), end="", flush=True),
        timeout_s=30,
    )
    if result.verdict != "allow" or result.exit_code != 0:
        # A denied call is a result that names the rule, not an exception.
        raise NoReport(f"{result.outcome}, rule {result.rule}: {result.reason}{result.note}")
    totals: dict[str, int] = json.loads(await airlock.read_file(thread, "/workspace/report.json"))
    return totals


async def main() -> None:
    """Print one report."""
    address = os.environ.get("AIRLOCK_ADDRESS", "127.0.0.1:7443")
    ca = os.environ.get("AIRLOCK_TLS_CA")
    tls = Tls(ca=Path(ca)) if ca else None
    try:
        async with Client(address, os.environ["AIRLOCK_API_KEY"], tls=tls) as airlock:
            print(json.dumps(await report(airlock, SALES), separators=(",", ":")))
    except (NoReport, AirlockError) as error:
        sys.exit(f"no report: {error}")


if __name__ == "__main__":
    asyncio.run(main())
