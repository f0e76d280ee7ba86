"""Work in a child process: what it found, or that it did not come to its end."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from sandbox.daemon.failures import Fault
from sandbox.daemon.files.slow_work import Emit, work_in_child
from sandbox.v1 import channel_pb2 as wire


def _killed(emit: Emit) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _killed_after_some(emit: Emit) -> None:
    emit(wire.EntriesReply(total=1))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("work", [_killed, _killed_after_some])
async def test_a_child_that_was_killed_has_not_found_nothing(work: Any) -> None:
    with pytest.raises(Fault, match="killed"):
        await work_in_child(work, wire.EntriesReply(), 5.0, "/x")


async def test_a_child_that_ends_without_a_word_has_found_nothing() -> None:
    assert await work_in_child(lambda emit: None, wire.EntriesReply(), 5.0, "/x")
