"""A result is stored in one form, its bytes once."""

from __future__ import annotations

import pytest

from agent.messages import Attachment, Evicted, ToolResult
from agent.state import PolicyWord, Verdict, VerdictKind
from gateway.tool_calls.journal import result_json
from gateway.tool_calls.tool_request import StoredResult
from sandbox.protocols import ProgramResult

TEXT, BYTES = "größer\0\n".encode(), b"out\xff\n"


@pytest.mark.parametrize(
    "streams",
    [
        {"content": TEXT, "stdout": TEXT},
        {"content": BYTES, "stderr": BYTES},
        {"content": TEXT + BYTES, "stdout": TEXT, "stderr": BYTES},
        {"content": b""},
        {"content": TEXT},
    ],
)
def test_a_result_comes_back_as_it_was(streams: dict[str, bytes]) -> None:
    result = ToolResult(
        **streams,  # type: ignore[arg-type]
        outcome="exited",
        exit_code=3,
        is_error=True,
        evicted=Evicted(path="/a", size_bytes=1, lines=1, sha256="0", incomplete=False),
        note="a note",
        withheld_by="large",
        would_be_withheld_by="other",
        attachments=(Attachment(path="/a.png", media_type="image/png", size_bytes=1, sha256="0"),),
    )
    verdict = Verdict(kind=VerdictKind.ASK, hook="h", rule="r", reason="why", policy=PolicyWord(version="p"))
    program = ProgramResult("exited", exit_code=3)
    text = StoredResult.json_of(result, 1.5, verdict=verdict, approval_id="apr_1", program=program)
    assert "\0" not in text
    stored = StoredResult.model_validate_json(text)
    assert stored.result() == result
    assert (stored.duration_s, stored.verdict, stored.approval_id, stored.program) == (1.5, verdict, "apr_1", program)


def test_bytes_are_stored_once_and_text_as_text() -> None:
    output = b"a line of output\n" * 1000
    text = StoredResult.json_of(ToolResult(output, stdout=output), 0.0)
    assert text.count("a line of output") == 1000
    assert len(text) < 1.2 * len(output)


def test_a_runs_result_is_kept_without_the_streams_that_no_model_reads() -> None:
    kept = result_json(ToolResult(b"both", outcome="exited", stdout=b"o" * 2_000_000, stderr=b"e"), 1.0)
    assert kept is not None
    assert len(kept) < 1000
    assert StoredResult.model_validate_json(kept).result().content == b"both"
