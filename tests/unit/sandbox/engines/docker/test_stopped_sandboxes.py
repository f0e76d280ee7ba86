"""Which sandboxes are stopped, and which of them are to go."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.engines.docker.lock_directory import Stopped, StoppedSandboxes
from sandbox.thread_lock import Note

NOTE = Note("s-1", "made", "thread", "image", "runc", created_s=5.0)
MANY, FEW = "a" * 24, "b" * 24


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stopped(tmp_path: Path, clock: Clock) -> StoppedSandboxes:
    return StoppedSandboxes(tmp_path, "gw_1", clock)


def test_what_is_written_is_read_by_any_process_of_the_instance_and_by_no_other(
    stopped: StoppedSandboxes, tmp_path: Path
) -> None:
    stopped.write((MANY, FEW), Stopped(NOTE, 3))
    assert StoppedSandboxes(tmp_path, "gw_1").read((MANY, FEW)) == Stopped(NOTE, 3)
    other = StoppedSandboxes(tmp_path, "gw")
    assert (other.has((MANY, FEW)), other.owners(), other.read((MANY, FEW))) == (False, [], None)
    stopped.remove((MANY, FEW))
    stopped.remove((MANY, FEW))
    assert (stopped.has((MANY, FEW)), stopped.read((MANY, FEW))) == (False, None)
    stopped.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("said", ["", "{", "[]", "{}", '{"processes": 1}', '{"sandbox": 1'])
def test_a_file_that_cannot_be_read_reports_nothing(stopped: StoppedSandboxes, tmp_path: Path, said: str) -> None:
    stopped.write((MANY, FEW), Stopped(NOTE))
    (file,) = (tmp_path / "stopped").iterdir()
    file.write_text(said)
    assert stopped.read((MANY, FEW)) is None


def test_what_a_later_release_says_besides_is_passed_over(stopped: StoppedSandboxes, tmp_path: Path) -> None:
    stopped.write((MANY, FEW), Stopped(NOTE, 1))
    (file,) = (tmp_path / "stopped").iterdir()
    file.write_text(file.read_text().replace("{", '{"later": 1, ', 1))
    assert stopped.read((MANY, FEW)) == Stopped(NOTE, 1)


def test_the_longest_stopped_come_first_and_go_when_their_time_is_over(stopped: StoppedSandboxes, clock: Clock) -> None:
    for thread in ("2", "1", "3"):
        stopped.write((MANY, thread), Stopped(NOTE))
        clock.now_s += 10
    assert stopped.owners() == [(MANY, "2"), (MANY, "1"), (MANY, "3")]
    assert stopped.surplus(timeout_s=31, limit=9) == []
    assert stopped.surplus(timeout_s=20, limit=9) == [(MANY, "2"), (MANY, "1")]


def test_past_the_limit_the_tenant_with_the_most_loses_its_longest_stopped(
    stopped: StoppedSandboxes, clock: Clock
) -> None:
    for owner in ((FEW, "1"), (MANY, "1"), (MANY, "2"), (MANY, "3")):
        stopped.write(owner, Stopped(NOTE))
        clock.now_s += 1
    assert stopped.surplus(timeout_s=99, limit=2) == [(MANY, "1"), (MANY, "2")]
    assert set(stopped.surplus(timeout_s=99, limit=0)) == set(stopped.owners())


def test_a_directory_that_takes_no_file_is_an_error_and_leaves_no_half_of_one(
    stopped: StoppedSandboxes, tmp_path: Path
) -> None:
    stopped.write((MANY, "1"), Stopped(NOTE))
    (tmp_path / "stopped" / f"gw_1-{MANY}-2.stopped").mkdir()
    with pytest.raises(OSError, match=r"\.stopped"):
        stopped.write((MANY, "2"), Stopped(NOTE))
    assert not list((tmp_path / "stopped").glob("*.half"))
