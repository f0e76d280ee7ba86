"""An outside judge: the checks that inspect-ai ships for providers of sandboxes, on a real gateway."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.util import SandboxEnvironment, SandboxUnavailableError, SandboxUserUnsupportedError
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - how the checks are meant to be collected

from gateway.client import Client
from gateway.errors import Unauthenticated
from gateway.integrations.inspect_sandbox import AirlockConfig, AirlockSandboxEnvironment
from tests.docker_state import containers_of
from tests.gateway_process import make_home, served

# What docs/inspect.md tells an operator to allow.
PAGE = (Path(__file__).parents[2] / "docs" / "inspect.md").read_text()
POLICY = PAGE.partition("```yaml\n")[2].partition("```")[0]
NEEDS_ROOT = {
    "test_exec_as_user": "adds a user to the image and becomes it; tool code has one user and cannot become root",
}


@dataclass(frozen=True)
class Place:
    """Where the gateway is, and a key of it."""

    address: str
    key: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = make_home(tmp_path_factory.mktemp("inspect"))
    key = home.add_tenant("evals", POLICY)
    with served(home) as gateway:
        yield Place(gateway.address, key)
    assert containers_of(home.instance) == []


@pytest.fixture
async def sandbox_env(request: pytest.FixtureRequest, place: Place) -> AsyncIterator[SandboxEnvironment]:
    """One sandbox for all checks, as inspect's own runner has it."""
    if reason := NEEDS_ROOT.get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(reason=reason, raises=SandboxUserUnsupportedError))
    async with Client(place.address, place.key) as client:
        yield AirlockSandboxEnvironment(client, "inspect-self-check")


@pytest.fixture
def named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRLOCK_ADDRESS", place.address)
    monkeypatch.setenv("AIRLOCK_API_KEY", place.key)


def test_all_checks_of_inspect_are_collected() -> None:
    from inspect_ai.util._sandbox import self_check

    checks = {name for name in vars(self_check) if name.startswith("test_")}
    assert len(checks) == 44
    assert checks <= globals().keys()
    assert NEEDS_ROOT.keys() <= checks


def test_the_python_of_the_page_runs() -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        exec(block, names)
    assert names["task"].sandbox.type == "airlock"
    assert names["sandbox"][1].api_key_variable == "EVALS_KEY"


def test_inspect_finds_the_provider_by_its_name(tmp_path: Path) -> None:
    code = "from inspect_ai.util._sandbox.registry import registry_find_sandboxenv as find; print(find('airlock'))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "AirlockSandboxEnvironment" in found.stdout


async def test_each_sample_has_files_of_its_own(named: None) -> None:
    first, second = [await AirlockSandboxEnvironment.sample_init("a task", None, {}) for _ in range(2)]
    try:
        await first["default"].write_file("mine", "1")
        with pytest.raises(FileNotFoundError):
            await second["default"].read_file("mine")
        assert (await first["default"].exec(["cat", "mine"])).stdout == "1"
    finally:
        for environments in (first, second):
            await AirlockSandboxEnvironment.sample_cleanup("a task", None, environments, interrupted=False)


async def test_a_configuration_names_variables_and_never_holds_the_key(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AIRLOCK_API_KEY", raising=False)
    monkeypatch.setenv("OTHER_KEY", place.key)
    config = AirlockConfig(address=place.address, api_key_variable="OTHER_KEY")
    assert place.key not in config.model_dump_json()
    assert AirlockSandboxEnvironment.config_deserialize(config.model_dump()) == config
    written = tmp_path / "airlock.yaml"
    written.write_text(f"address: {place.address}\napi_key_variable: OTHER_KEY\n")
    for given in (config, str(written)):
        environments = await AirlockSandboxEnvironment.sample_init("task", given, {})
        assert (await environments["default"].exec(["echo", "hi"])).stdout == "hi\n"
        await AirlockSandboxEnvironment.sample_cleanup("task", given, environments, interrupted=True)
    with pytest.raises(SandboxUnavailableError, match="AIRLOCK_API_KEY"):
        await AirlockSandboxEnvironment.sample_init("task", None, {})


async def test_a_gateway_that_is_not_there_is_raised_and_no_output(place: Place) -> None:
    async with Client("127.0.0.1:1", place.key) as client:
        with pytest.raises(SandboxUnavailableError):
            await AirlockSandboxEnvironment(client, "x").exec(["true"])
    async with Client(place.address, "alk_wrong") as client:
        with pytest.raises(Unauthenticated):
            await AirlockSandboxEnvironment(client, "x").exec(["true"])


async def test_the_tool_user_may_be_named(sandbox_env: SandboxEnvironment) -> None:
    own = (await sandbox_env.exec(["id", "-u"])).stdout.strip()
    assert own != "0"
    assert (await sandbox_env.exec(["id", "-u"], user=own)).stdout.strip() == own
    with pytest.raises(SandboxUserUnsupportedError):
        await sandbox_env.exec(["true"], user="root")


async def test_a_program_that_is_not_there_is_a_result_as_a_shell_has_it(sandbox_env: SandboxEnvironment) -> None:
    result = await sandbox_env.exec(["no-such-program"])
    assert (result.success, result.returncode) == (False, 127)
    assert "no-such-program" in result.stderr


async def test_output_past_the_limit_of_a_stream_is_raised(sandbox_env: SandboxEnvironment) -> None:
    from inspect_ai.util import OutputLimitExceededError
    from inspect_ai.util._sandbox.limits import override_max_exec_output_size

    with override_max_exec_output_size(1024):
        kept = await sandbox_env.exec(["sh", "-c", "head -c 1024 /dev/zero; head -c 1024 /dev/zero >&2"])
        assert (len(kept.stdout), len(kept.stderr)) == (1024, 1024)
        for count in ("1025", "10000"):
            with pytest.raises(OutputLimitExceededError, match="1 KiB"):
                await sandbox_env.exec(["head", "-c", count, "/dev/zero"])


async def test_a_whole_evaluation_runs_in_the_sandbox(named: None, tmp_path: Path) -> None:
    code = """
import sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def count():
    async def solve(state, generate):
        ran = await sandbox().exec(["sh", "-c", "wc -c < data.txt; pwd"])
        state.metadata["said"] = ran.stdout
        return state
    return solve

@scorer(metrics=[accuracy()])
def counted():
    async def score(state, target):
        return Score(value="C" if state.metadata["said"].split() == [target.text, "/workspace"] else "I")
    return score

samples = [Sample(input="x", target=str(n), files={"data.txt": "a" * n}) for n in (1, 2, 3)]
task = Task(dataset=samples, solver=count(), scorer=counted(), sandbox="airlock")
[log] = eval(task, model="mockllm/model", display="none", log_dir=sys.argv[1])
assert log.status == "success", log.error
print("accuracy", log.results.scores[0].metrics["accuracy"].value)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "accuracy 1.0" in ran.stdout
