"""Ids of sessions: whose they are, and which calls a session may cancel."""

from __future__ import annotations

import anyio
from hypothesis import given
from hypothesis import strategies as st

from gateway.credentials.caller import Caller
from gateway.identity.principal import Principal
from gateway.mcp.sessions import RunningCalls, Session

ONE = Principal(None, Caller("key_1", "alk_one"))
OTHER = Principal(None, Caller("key_2", "alk_two"))


def test_an_id_is_known_to_its_own_credential_alone_and_says_whether_the_client_shows_urls() -> None:
    for opens_urls in (True, False):
        opened = Session.opened(ONE, opens_urls=opens_urls)
        assert Session.known(opened.id, ONE) == opened
        assert Session.known(opened.id, OTHER) is None
        assert opened.id.isascii()
        assert opened.id.isprintable()


@given(st.text(max_size=200))
def test_what_was_not_made_here_is_no_session(text: str) -> None:
    assert Session.known(text, ONE) is None


def test_a_changed_id_is_no_session() -> None:
    opened = Session.opened(ONE, opens_urls=False)
    for changed in (f"u{opened.id[1:]}", f"{opened.id}0", opened.id[:-1], opened.id.upper()):
        assert Session.known(changed, ONE) is None


async def test_a_session_cancels_its_own_calls_alone() -> None:
    running, mine, theirs = RunningCalls(), *(Session.opened(ONE, opens_urls=False) for _ in range(2))
    for session, request_id in ((theirs, 1), (mine, 2), (mine, "1"), (mine, None), (mine, [1])):
        with running.cancellable(mine, 1) as scope:
            running.cancel(session, request_id)
            await anyio.lowlevel.checkpoint()
        assert not scope.cancelled_caught
    with running.cancellable(mine, 1) as scope:
        running.cancel(mine, 1)
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    running.cancel(mine, 1)  # over by now
