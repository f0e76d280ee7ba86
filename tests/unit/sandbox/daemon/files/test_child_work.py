"""Work in a child process: what it found, or that it did not come to its end."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
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


class _Lost:
    """In a cycle. Its finalizer kills a child, as that of a lost socket could close the child's output."""

    def __init__(self) -> None:
        self._itself = self
        self._pid = os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self._pid:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
async def test_a_child_does_not_finalize_what_the_server_lost() -> None:
    _Lost()
    assert await work_in_child(lambda emit: gc.collect(), wire.EntriesReply(), 5.0, "/x")
