"""How an error ends a command for programs."""

import json

import pytest
import typer

from gateway.cli.terminal import EXIT_GATEWAY, run_client
from gateway.client import ThreadBusy
from gateway.errors import AirlockError, ApprovalPending, QuotaExceeded


@pytest.mark.parametrize(
    "error, told",
    [
        (
            QuotaExceeded("no more", 12.5, quota="runs_at_once"),
            {"reason": "QUOTA_EXCEEDED", "quota": "runs_at_once", "retry_after_s": 12.5},
        ),
        (ApprovalPending("it waits", approval_id="apr_1"), {"reason": "APPROVAL_PENDING", "approval_id": "apr_1"}),
        (ThreadBusy("a run is under way"), {"reason": "THREAD_BUSY"}),
    ],
)
def test_an_error_tells_programs_its_reason_and_details(
    error: AirlockError, told: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        run_client(work(), as_json=True)
    assert ended.value.exit_code == EXIT_GATEWAY
    assert json.loads(capsys.readouterr().out) == {"error": str(error), **told}
