"""The demo, as a stranger runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.docker_state import containers_of, volumes_of
from tests.waiting import eventually

REPOSITORY = Path(__file__).parents[2]
DEMO = (sys.executable, "-m", "examples.demo")
RUN_S = 120
STOP_S = 40


@dataclass(frozen=True)
class Demo:
    """A demo under way; `temporary` is where it keeps its files, `instance` what its gateway labels in Docker."""

    process: subprocess.Popen[bytes]
    output: Path
    temporary: Path
    instance: str

    @property
    def shown(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def assert_left_nothing(self) -> None:
        assert list(self.temporary.iterdir()) == []
        assert containers_of(self.instance) == []
        assert volumes_of(self.instance) == []


@contextmanager
def running_demo(directory: Path, command: Sequence[str] = DEMO) -> Iterator[Demo]:
    """Start a demo that has no key for a real model, and wait until its gateway has an identity."""
    output, temporary = directory / "output", directory / "t"
    temporary.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    environment |= {"TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(REPOSITORY)}
    with output.open("wb") as stream:
        # A shell that started us in the background has made us ignore Ctrl-C, and a child would inherit that.
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdout=stream,
            stderr=stream,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - it takes no lock
        )

    def identities() -> list[str]:
        return [text for path in temporary.glob("*/gateway/state/instance") if (text := path.read_text("ascii"))]

    try:
        assert eventually(lambda: identities() or process.poll() is not None, RUN_S)
        assert process.poll() is None, output.read_text(encoding="utf-8")
        yield Demo(process, output, temporary, identities()[0])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # not SIGKILL: it would leave its gateway behind
            process.wait(STOP_S)


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("d")  # short: the sandbox's socket is below it


def test_the_demo_does_all_of_the_main_job_and_leaves_nothing_behind(directory: Path) -> None:
    with running_demo(directory) as demo:
        assert eventually(lambda: containers_of(demo.instance), 30)  # so that finding none at the end means something
        code = demo.process.wait(RUN_S)
        shown = demo.shown
    assert code == 0, shown
    in_order = (
        "→ ls /workspace",
        "→ read_file /workspace/README.md",
        "→ execute python3 -m pip install",
        "network refused: pypi.org:443 (rule only-the-team-index): packages come from the team's index alone",
        "--trusted-host 127.0.0.2 tally",
        "? approver: may it connect to 127.0.0.2:",
        "✓ approver: for this run",
        "Successfully installed tally-1.0",
        "→ execute python3 /tmp/tools/tally.py",
        "FAILED (failures=3)",
        "tally: 8 of 11 tests pass",
        "→ execute python3 -m ledger.trace",
        "⇣ evicted to /workspace/.airlock/output/",
        "→ grep /workspace/.airlock/output/",
        "booked 0.35, but the bank moved -0.35",
        "→ edit_file /workspace/ledger/money.py",
        "→ execute python3 /tmp/tools/tally.py",
        "│ OK",
        "tally: 11 of 11 tests pass",
        "All 11 tests pass.",
        "■ completed",
        "+    return units * 100 - cents if whole.startswith",
        "+    inside = tuple(entry for entry in ordered if first_day <= entry.day <= last_day)",
        "bytes kept out of the context",
        "✓ the run completed and the tests pass",
    )
    position = 0
    for landmark in in_order:
        assert landmark in shown[position:], f"{landmark!r} is not where it should be in:\n{shown}"
        position = shown.index(landmark, position) + len(landmark)
    spared = re.search(r"evictions\s+1: ([\d,]+) bytes kept out", shown)
    assert spared is not None, shown
    assert int(spared.group(1).replace(",", "")) > 400_000
    assert not [character for character in shown if character != "\n" and not character.isprintable()]
    demo.assert_left_nothing()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupted_demo_stops_its_gateway_and_leaves_nothing_behind(
    number: signal.Signals, directory: Path
) -> None:
    with running_demo(directory) as demo:
        assert eventually(lambda: "step 2" in demo.shown or demo.process.poll() is not None, 60)
        demo.process.send_signal(number)
        assert demo.process.wait(STOP_S) == 130, demo.shown
    demo.assert_left_nothing()


def test_a_result_that_is_not_evicted_breaks_the_script_and_fails_the_demo(directory: Path) -> None:
    policy, altered = directory / "policy.yaml", directory / "altered.py"
    altered.write_text(
        "import pathlib, runpy\n"
        "from examples.demo import demo_gateway\n"
        f"policy = pathlib.Path({str(policy)!r})\n"
        "strict = demo_gateway.POLICY.read_text()\n"
        "policy.write_text(strict.replace('limit_chars: 80000', 'limit_chars: 10000000'))\n"
        "demo_gateway.POLICY = policy\n"
        "runpy.run_module('examples.demo', run_name='__main__')\n",
        encoding="utf-8",
    )
    with running_demo(directory, (sys.executable, str(altered))) as demo:
        code = demo.process.wait(RUN_S)
        shown = demo.shown
    assert code == 1, shown
    assert "✗ the run's status is failed" in shown
    assert "it does not name the file with the whole output" in shown
    assert "✗ the tests do not pass: exited, FAILED (failures=3)" in shown
    demo.assert_left_nothing()
