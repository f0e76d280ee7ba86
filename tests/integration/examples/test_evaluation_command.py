"""`python -m examples.evaluation` as `make eval` runs it: a gateway of its own, a table, and nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from anyio.from_thread import start_blocking_portal

from agent.models.scripted_model_server import ScriptedModelServer, Turn
from tests.docker_state import containers_of
from tests.integration.examples.evaluation_scripts import SCRIPTS
from tests.integration.test_demo import REPOSITORY, RUN_S, STOP_S, running_demo
from tests.waiting import eventually

EVALUATION = (sys.executable, "-m", "examples.evaluation")


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("e")  # short: the sandbox's socket is below it


def written_model(directory: Path, base_url: str) -> Path:
    path = directory / "model.yaml"
    prices = {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 2.0}
    model = {"name": "scripted", "base_url": base_url, "api_key_env": None, **prices}
    path.write_text(yaml.safe_dump({"model": model}), encoding="utf-8")
    return path


def test_it_prints_a_table_for_the_tasks_that_were_named_and_leaves_only_the_log(directory: Path) -> None:
    with start_blocking_portal() as portal:
        server = ScriptedModelServer(SCRIPTS["fix-test-right"].turns)
        with portal.wrap_async_context_manager(server):
            model = written_model(directory, server.base_url)
            # The second task gets the first one's script, and so fails.
            with running_demo(directory, (*EVALUATION, str(model), "fix-test", "find-bug")) as evaluation:
                code = evaluation.process.wait(RUN_S)
                shown = evaluation.shown
    assert code == 0, shown
    evaluation.assert_left_nothing()
    assert "✓ fix-test" in shown
    assert "✗ find-bug: the run's status is failed" in shown
    assert "1 of 2 passed" in shown
    assert "$0.0" in shown
    log = Path(shown.rpartition("inspect's log: ")[2].strip())
    assert log.is_relative_to(REPOSITORY / ".build" / "evaluation")
    log.unlink()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminate"])
def test_an_interrupted_evaluation_leaves_nothing_behind(directory: Path, number: signal.Signals) -> None:
    interrupted = threading.Event()
    with start_blocking_portal() as portal:
        # The model answers nothing until the evaluation has been interrupted; it has a thread of its own.
        server = ScriptedModelServer([Turn(say=lambda _: f"Interrupted: {interrupted.wait(RUN_S)}")])
        with portal.wrap_async_context_manager(server):
            model = written_model(directory, server.base_url)
            with running_demo(directory, (*EVALUATION, str(model), "--at-once", "1")) as evaluation:
                try:
                    assert eventually(lambda: server.requests or evaluation.process.poll() is not None, RUN_S)
                    assert containers_of(evaluation.instance), evaluation.shown
                    evaluation.process.send_signal(number)
                    assert evaluation.process.wait(STOP_S) == 130, evaluation.shown
                finally:
                    interrupted.set()
    evaluation.assert_left_nothing()


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("none.yaml",), "none.yaml: "),
        (("gpt-5-mini", "no-such-task"), "invalid choice: 'no-such-task'"),
        (("gpt-5-mini", "--at-once", "99"), "invalid choice: 99"),
    ],
)
def test_wrong_usage_is_named_before_anything_is_started(arguments: tuple[str, ...], said: str) -> None:
    ran = subprocess.run(
        [*EVALUATION, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, said in ran.stdout + ran.stderr) == (2, True), ran.stdout + ran.stderr
