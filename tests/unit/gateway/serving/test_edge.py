"""Errors cross the wire as a status and come back as the class they were."""

from __future__ import annotations

from typing import Any

import pytest
from google.rpc import error_details_pb2

from gateway.errors import AirlockError, InvalidPath, NotFound, Unavailable, all_errors, from_sandbox
from gateway.serving.edge import status_of
from sandbox import errors as sandbox_errors


def _all(root: type[BaseException]) -> list[type[BaseException]]:
    return [root, *(found for child in root.__subclasses__() for found in _all(child))]


def test_every_class_has_a_reason_of_its_own() -> None:
    classes = [kind for kind in _all(AirlockError) if kind is not AirlockError]
    assert {kind.reason for kind in classes} == set(all_errors())  # type: ignore[attr-defined]
    assert len(all_errors()) >= len(classes) - 1


@pytest.mark.parametrize("kind", all_errors().values(), ids=lambda kind: kind.__name__)
def test_a_status_carries_code_reason_and_details(kind: type[AirlockError]) -> None:
    status = status_of(kind("why", rule="r1"))
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain, dict(info.metadata)) == (kind.reason, "airlock", {"rule": "r1"})
    assert (status.code, status.message) == (kind.code.value[0], "why")


@pytest.mark.parametrize("kind", _all(sandbox_errors.SandboxError), ids=lambda kind: kind.__name__)
def test_every_sandbox_error_has_a_translation(kind: type[sandbox_errors.SandboxError]) -> None:
    needed: dict[str, dict[str, Any]] = {
        "InputNotTaken": {"taken_bytes": 1, "closed": False},
        "InputGap": {"stdin_taken_bytes": 1},
        "TooManyCreations": {"retry_after_s": 1.0, "quota": "q", "limit": "1"},
        "TooManyWaiting": {"retry_after_s": 1.0},
    }
    error = kind("why", **needed.get(kind.__name__, {}))
    assert str(from_sandbox(error)) == error.outside


def test_the_address_of_the_engine_stays_inside() -> None:
    reported = str(from_sandbox(sandbox_errors.EngineUnavailable("the engine at tcp://10.0.0.7:2376 does not answer")))
    assert "10.0.0.7" not in reported
    assert "operator" in reported


def test_the_nearest_class_is_chosen() -> None:
    assert type(from_sandbox(sandbox_errors.NotFound("x"))) is NotFound
    assert type(from_sandbox(sandbox_errors.InvalidPath("x"))) is InvalidPath
    assert type(from_sandbox(sandbox_errors.DaemonLost("x"))) is Unavailable
