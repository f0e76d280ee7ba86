"""A short run of `make fuzz`, the same inputs each time."""

from __future__ import annotations

import asyncio

import pytest

from tests.fuzz.gateway_end import CALLS, HostileChannel
from tests.fuzz.rounds import fuzz_daemon_end, fuzz_gateway_end
from tests.security.daemon.daemon_container import Sandbox

_SEED = 4


def _no_progress(_count: int) -> None:
    """No one watches."""


def test_a_daemon_that_answers_anything_does_not_break_the_gateway() -> None:
    seen = fuzz_gateway_end(1_000, _SEED, _no_progress)
    assert seen.total() >= 1_000
    # The inputs reach past the first check: some are believed, some are refused as what an honest daemon may say.
    assert min(seen["answered"], seen["failed"], seen["daemon lost"]) >= 5, seen


def test_a_gateway_that_sends_anything_does_not_break_the_daemon(sandbox: Sandbox) -> None:
    seen = fuzz_daemon_end(sandbox.socket_path, 1_000, _SEED, _no_progress)
    assert seen.total() >= 1_000
    assert len(seen) > 8, seen


@pytest.mark.parametrize("call", CALLS)
def test_a_daemon_that_says_nothing_is_lost(call: str) -> None:
    from sandbox.errors import DaemonLost

    async def ask() -> str:
        channel = HostileChannel(b"")
        try:
            result = await CALLS[call](channel)
        except DaemonLost:
            return "daemon_lost"
        finally:
            channel.close()
        return str(getattr(result[0] if isinstance(result, tuple) else result, "outcome", result))

    assert asyncio.run(ask()) == "daemon_lost"
