"""The HTTP application: what becomes of an answer that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from structlog.testing import capture_logs

from gateway.config.http_settings import HttpSettings
from gateway.errors import NotFound
from gateway.http.app import make_app


class Connection:
    """The server's end of a connection, as far as an application sees it."""

    def __init__(self, error: Exception | None, *, begun: bool) -> None:
        self.sent: list[Any] = []
        self.aborted = False
        self._gone = asyncio.Event()
        self._app = make_app([Route("/", _failing(error, begun=begun))], HttpSettings(), loopback=False)

    async def request(self) -> None:
        state = {"abort": self._abort, "gone": self._gone}
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "state": state}
        await self._app(scope, self._receive, self._send)

    def _abort(self) -> None:
        self.aborted = True
        self._gone.set()

    async def _receive(self) -> Any:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


def _failing(error: Exception | None, *, begun: bool) -> Any:
    """Return a route's function that fails, before or after its answer has begun; without an error it waits."""

    async def fail() -> None:
        if error is None:
            await asyncio.Event().wait()
        else:
            raise error

    async def content() -> AsyncIterator[bytes]:
        yield b"a part"
        await fail()

    async def answer(_request: Request) -> Response:
        if not begun:
            await fail()
        return StreamingResponse(content())

    return answer


async def test_a_fault_is_a_problem_document_without_its_text_and_is_logged_once() -> None:
    connection = Connection(RuntimeError("a secret"), begun=False)
    with capture_logs() as logged:
        await connection.request()
    start, body = connection.sent
    assert (start["status"], connection.aborted) == (500, False)
    assert b"INTERNAL" in body["body"]
    assert b"secret" not in body["body"]
    assert [line["event"] for line in logged] == ["fault in an HTTP request"]


async def test_an_answer_that_fails_after_its_beginning_ends_the_connection() -> None:
    for error, said in (
        (RuntimeError("broken"), "fault in an HTTP answer"),
        (NotFound("the sandbox is gone"), "an HTTP answer was cut off"),
        (TimeoutError(), "an HTTP answer was not read in time"),
    ):
        connection = Connection(error, begun=True)
        with capture_logs() as logged:
            await connection.request()
        assert connection.aborted
        assert connection.sent[-1]["more_body"]
        assert [line["event"] for line in logged] == [said]


async def test_a_request_that_the_stop_of_the_gateway_ends_may_be_tried_again() -> None:
    waiting, begun = Connection(None, begun=False), Connection(None, begun=True)
    with capture_logs() as logged:
        tasks = [asyncio.create_task(one.request()) for one in (waiting, begun)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
    assert waiting.sent[0]["status"] == 503
    assert b"UNAVAILABLE" in waiting.sent[1]["body"]
    assert begun.aborted
    assert logged == []
