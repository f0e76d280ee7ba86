"""The evaluation itself, with scripted models: each task can be solved, and no wrong result passes a task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from inspect_ai.log import EvalLog, read_eval_log

from agent.models.scripted_model_server import ScriptedModelServer
from examples.evaluation.evaluation_gateway import TENANTS, configure
from examples.evaluation.result_table import Result, results
from examples.evaluation.tasks import TASKS
from tests.gateway_process import make_home, served
from tests.integration.examples.evaluation_scripts import SCRIPTS

ROOT = Path(__file__).parents[3]
EVALUATE = (sys.executable, "-m", "tests.integration.examples.evaluate_scripts")


@dataclass(frozen=True)
class Evaluated:
    log: EvalLog
    log_text: str
    results: dict[str, Result]
    script_failures: list[str]
    keys: dict[str, str]


@pytest.fixture(scope="module", params=["memory", pytest.param("docker", marks=pytest.mark.full)])
def evaluated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    """All scripts, in one evaluation by one gateway: each has an agent of its own, which differs in its model only."""
    home, logs = make_home(tmp_path_factory.mktemp("evaluation")), tmp_path_factory.mktemp("logs")
    model_server = ScriptedModelServer([], by_model={name: script.turns for name, script in SCRIPTS.items()})
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(model_server):
        configure(home.config, {"base_url": model_server.base_url, "api_key_env": None})
        agents = {name: {"model": {"name": name}} for name in SCRIPTS}
        home.configure(sandbox={"engine": request.param}, agents=agents)
        keys = {tenant: home.make_key(tenant) for tenant in TENANTS}
        with served(home) as gateway:
            env = {**os.environ, "EVALUATION_KEYS": json.dumps(keys)}
            ran = subprocess.run(
                [*EVALUATE, gateway.address, str(logs)],
                cwd=ROOT,
                env=env,
                check=False,
                capture_output=True,
                text=True,
                timeout=600,
            )
    assert ran.returncode == 0, ran.stderr
    [path] = logs.glob("*.json")
    log = read_eval_log(str(path))
    by_name = {result.name: result for result in results(log)}
    return Evaluated(log, path.read_text(encoding="utf-8"), by_name, model_server.failures, keys)


def test_there_are_twenty_tasks_each_with_a_right_and_a_wrong_script() -> None:
    assert len(TASKS) == len({task.name for task in TASKS}) == 20
    for wrong in (True, False):
        assert {one.task for one in SCRIPTS.values() if bool(one.problem) is wrong} == {task.name for task in TASKS}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_right_result_passes_and_a_wrong_one_fails_with_its_reason(evaluated: Evaluated, name: str) -> None:
    result, script = evaluated.results[name], SCRIPTS[name]
    assert result.steps == len(script.turns), result
    if script.problem:
        assert not result.passed
        assert script.problem in result.reason
    else:
        assert (result.passed, result.reason) == (True, "")


def test_each_expectation_of_a_script_is_met(evaluated: Evaluated) -> None:
    assert evaluated.script_failures == []


def test_the_log_of_inspect_has_what_was_said_and_used_and_no_key(evaluated: Evaluated) -> None:
    assert evaluated.log.status == "success"
    [sample] = [one for one in evaluated.log.samples or () if one.id == "long-output-right"]
    assert [message.role for message in sample.messages] == ["user", *["assistant", "tool"] * 3, "assistant"]
    assert "bytes left out here" in sample.messages[2].text
    assert sample.output.completion == "It is account 02417."
    assert evaluated.results["long-output-right"].amount("output_tokens") > 0
    assert [key for key in evaluated.keys.values() if key in evaluated.log_text] == []
