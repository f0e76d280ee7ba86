"""A gateway has one set of turns for heavy work, so a tenant has one turn in all of its parts together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.gateway_process import make_home

# A gateway that serves gRPC and HTTP; what it makes is noted until it is ready.
_SERVES = """
import asyncio
import sys
from pathlib import Path
from gateway.config.config import Config
from gateway.server import running_gateway
from gateway.support.heavy_work import HeavyWork

made = []
make = HeavyWork.__init__

def noted(self, *arguments):
    made.append(self)
    make(self, *arguments)

HeavyWork.__init__ = noted

async def until_ready():
    async with running_gateway(Config.load(Path(sys.argv[1])), "127.0.0.1:0"):
        print("made:", len(made))

asyncio.run(until_ready())
"""


def test_tool_calls_connections_and_http_share_the_turns_of_their_process(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    home.configure(sandbox={"engine": "memory"}, http={"listen": "127.0.0.1:0"})
    program = [sys.executable, "-c", _SERVES, str(home.config)]
    said = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60).stdout
    assert [line for line in said.splitlines() if line.startswith("made:")] == ["made: 1"]
