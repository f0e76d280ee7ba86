"""How many files the gateway may have open: `serve` takes all that it is granted, `doctor` says when that is little."""

from __future__ import annotations

import resource

import pytest

from gateway.cli.doctor_checks import _open_files
from gateway.cli.serve import _raise_file_limit


def test_serve_takes_as_many_open_files_as_the_system_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 20_000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: taken.append(limits))
    _raise_file_limit()
    assert taken == [(20_000, 20_000)]


def test_serve_goes_on_where_the_limit_cannot_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: int, limits: tuple[int, int]) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuses)
    _raise_file_limit()


@pytest.mark.parametrize(
    "hard, state",
    [(1024, "warning"), (4095, "warning"), (4096, "ok"), (1_048_576, "ok"), (resource.RLIM_INFINITY, "ok")],
)
def test_doctor_warns_when_few_files_can_be_open(hard: int, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))
    finding = _open_files()
    assert finding.state == state
    assert ("LimitNOFILE" in finding.fix) == (state == "warning")
