"""Where tool processes start, and when none may."""

from __future__ import annotations

import errno
import os
import select
from pathlib import Path

import pytest

from sandbox.daemon.supervisor import tool_spawner
from sandbox.daemon.supervisor.control_wire import SPAWN, encode_program
from sandbox.daemon.supervisor.launch import ToolIdentity


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts programs in a group of their call: run as root")
@pytest.mark.parametrize("filtered, started", [(False, False), (True, True)])
def test_no_program_starts_without_the_filter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, filtered: bool, started: bool
) -> None:
    monkeypatch.setattr(tool_spawner.launch, "lower_oom_priority", lambda: None)
    monkeypatch.setattr(tool_spawner, "filter_tool_code", lambda **_: filtered)
    tried = tool_spawner.ToolSpawner(ToolIdentity(os.getuid(), os.getgid()))
    line = tried.open()
    output = os.open(tmp_path / "output", os.O_CREAT | os.O_WRONLY)
    try:
        tried.start(SPAWN, 7, encode_program([b"/bin/echo", b"started"], [], b"/"), [output, output])
        assert select.select([line], [], [], 10)[0]
        news = tried.news()
        assert news is not None
        expected = (tool_spawner.RUNNING, 7, 0) if started else (tool_spawner.REFUSED, 7, errno.EPERM)
        assert (news.kind, news.call, news.value) == expected
    finally:
        os.close(output)
        tried._close()
