"""How an error ends a command for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest
import typer

from gateway.cli.command import GatewayCli, command
from gateway.cli.terminal import EXIT_GATEWAY
from gateway.client import Client, ThreadBusy
from gateway.errors import AirlockError, ApprovalPending, QuotaExceeded


@pytest.mark.parametrize(
    "error, reported",
    [
        (
            QuotaExceeded("no more", 12.5, quota="runs_at_once"),
            {"reason": "QUOTA_EXCEEDED", "quota": "runs_at_once", "retry_after_s": 12.5},
        ),
        (ApprovalPending("it waits", approval_id="apr_1"), {"reason": "APPROVAL_PENDING", "approval_id": "apr_1"}),
        (ThreadBusy("a run is under way"), {"reason": "THREAD_BUSY"}),
    ],
)
def test_an_error_gives_programs_its_reason_and_details(
    error: AirlockError, reported: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    @command
    async def work(_: GatewayCli) -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        _run(work)
    assert ended.value.exit_code == EXIT_GATEWAY
    assert json.loads(capsys.readouterr().out) == {"error": str(error), **reported}


class Refusing(grpc.GenericRpcHandler):
    """A gateway whose disk is full."""

    def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        async def refuse(_: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the database refuses writes")

        return grpc.unary_unary_rpc_method_handler(refuse)  # type: ignore[arg-type]


def _run(work: Callable[..., None], address: str = "") -> None:
    work(address=address, key="alk_x", as_json=True)


def _said(work: Callable[..., None], capsys: pytest.CaptureFixture[str], address: str = "") -> str:
    with pytest.raises(typer.Exit):
        _run(work, address)
    return str(json.loads(capsys.readouterr().out)["error"])


def test_an_answered_client_is_not_asked_whether_a_gateway_runs(capsys: pytest.CaptureFixture[str]) -> None:
    @command
    async def work(_: GatewayCli) -> None:
        server = grpc.aio.server(handlers=(Refusing(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with Client(f"127.0.0.1:{port}", "alk_x", retry=None) as airlock:
                await airlock.get_run("run_1")
        finally:
            await server.stop(None)

    said = _said(work, capsys)
    assert "the database refuses writes" in said
    assert "Is the gateway running?" not in said


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nosuch.invalid:7443"])
def test_where_no_connection_comes_about_it_is_said_how_to_start_a_gateway(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @command
    async def work(cli: GatewayCli) -> None:
        async with Client(cli.address, cli.key, retry=None) as airlock:
            await airlock.get_run("run_1")

    assert _said(work, capsys, address).endswith("Is the gateway running? Start it with `airlock serve`")
