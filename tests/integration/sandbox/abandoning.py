"""A gateway's process that is about to be killed: `python -m tests.integration.sandbox.abandoning INSTANCE CHANNELS`.

It makes a sandbox with a background process and a command under way, says so in one line of JSON, and waits.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.protocols import ProcessSpec
from tests.integration.sandbox.live_engine import RUNTIME_IMAGE, run, spec

# Tells what it does by lines, ends with 7 when it is told to, and is told apart from the command under way.
BACKGROUND = "echo first; while [ ! -e /workspace/go ]; do sleep 0.05; done; echo second; exit 7"
UNDER_WAY = "echo under way > /workspace/begun; sleep 4321"


async def main(instance: str, channels: Path) -> None:
    """Say what was made; never return."""
    engine = DockerEngine(instance=instance, channel_root=channels, runtime_image=RUNTIME_IMAGE)
    sandbox = await engine.create(spec("left"))
    process = await sandbox.processes.start(ProcessSpec("server", [b"/bin/sh", b"-c", BACKGROUND.encode()]))
    page = await sandbox.processes.read("server", offset=0, wait_s=10)
    command = asyncio.create_task(run(sandbox.shell, UNDER_WAY, timeout_s=600))
    await run(sandbox.shell, "while [ ! -e /workspace/begun ]; do sleep 0.02; done")
    said = {"sandbox": sandbox.id, "pid": process.pid, "read": page.data.decode(), "offset": len(page.data)}
    print(json.dumps(said), flush=True)
    await command


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
