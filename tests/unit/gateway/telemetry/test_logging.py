"""The log on a terminal: what tenants chose in it moves no cursor."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

LINE = """
import structlog
from gateway.telemetry.logging import set_up_logging
set_up_logging()
structlog.get_logger().warning("refused", path="a\\x1b[2Jb\\x9bc\\u202e")
"""


def test_the_log_on_a_terminal_is_printable() -> None:
    reader, writer = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", LINE], stderr=writer, check=True, timeout=120)
        said = os.read(reader, 65536).decode()
    finally:
        os.close(reader)
        os.close(writer)
    assert "a\u241b[2Jb" in said
    assert not [bad for bad in ("\x1b[2J", "\x9b", "\u202e") if bad in said]
