"""`airlock model check` against an endpoint that answers on loopback, and the doctor's short form of it."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.doctor_config import model_findings
from gateway.config.config import Config
from tests.gateway_process import airlock
from tests.unit.agent.models.capable_endpoint import capable


async def check(*arguments: str) -> tuple[int, str]:
    ended = await asyncio.to_thread(partial(airlock, "model", "check", *arguments, check=False))
    return ended.returncode, ended.stdout + ended.stderr


def configured(tmp_path: Path, base_url: str, **settings: Any) -> Path:
    (tmp_path / "p.yaml").write_text("rules: [{tools: ['*'], effect: allow}]\n")
    model = {"name": "m", "base_url": base_url, "api_key_env": None, **settings}
    path = tmp_path / "airlock.yaml"
    path.write_text(json.dumps({"model": model, "tenants": {"default": {"policy": "p.yaml"}}}))
    return path


async def test_a_check_prints_a_table_and_the_settings_to_paste() -> None:
    async with capable(streams_tools=False, bound_name="max_completion_tokens") as endpoint:
        code, printed = await check("m", "--base-url", endpoint.base_url)
    assert code == 0
    assert "tools in a stream" in printed
    pasted = printed.partition("model:\n")[2]
    assert "  stream: false\n" in pasted
    assert "  max_tokens_name: max_completion_tokens\n" in pasted
    assert "  context_window_tokens: 32000\n" in pasted


async def test_a_model_of_a_file_that_has_all_it_needs_gets_no_settings(tmp_path: Path) -> None:
    async with capable() as endpoint:
        known = {"response_format": "json_schema", "context_window_tokens": 32_000}
        path = configured(tmp_path, endpoint.base_url, **known)
        code, printed = await check("--config", str(path))
        assert (code, "no setting needs to change" in printed) == (0, True)
        code, printed = await check("--config", str(path), "--short", "--json")
    (document,) = json.loads(printed)
    assert code == 0
    assert (document["model"], document["problem"]) == ("m", "")
    assert [finding["question"] for finding in document["findings"]] == ["answers", "streams", "tools in a stream"]


async def test_a_model_that_does_not_answer_is_bad_news() -> None:
    code, printed = await check("m", "--base-url", "http://127.0.0.1:1/v1")
    assert code == 1
    assert "it does not answer: http://127.0.0.1:1/v1 cannot be reached" in " ".join(printed.split())


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (("--base-url", "http://127.0.0.1:1/v1"), "--base-url needs the NAME of a model there"),
        (("other", "--config", "FILE"), "has no model 'other'"),
    ],
)
async def test_a_model_that_is_not_named_is_asked_for(arguments: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    path = configured(tmp_path, "http://127.0.0.1:1/v1")
    code, printed = await check(*(argument.replace("FILE", str(path)) for argument in arguments))
    assert (code, problem in " ".join(printed.split())) == (2, True)


@pytest.mark.parametrize(
    "abilities, state, said",
    [
        ({}, "ok", "answers; tools in a stream: yes"),
        ({"streams_tools": False}, "warning", "it needs other settings"),
        ({"tools": False}, "warning", "answers; tools in a stream: no"),
        ({"status": 500}, "warning", "it does not answer"),
    ],
)
async def test_the_doctor_asks_each_model_of_a_configuration(
    abilities: dict[str, Any], state: str, said: str, tmp_path: Path
) -> None:
    async with capable(**abilities) as endpoint:
        config = Config.load(configured(tmp_path, endpoint.base_url))
        (finding,) = await model_findings(config)
    assert (finding.what, finding.state, finding.detail) == ("model m", state, said)
    assert bool(finding.fix) == (state != "ok")


async def test_the_doctor_says_that_a_models_key_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    config = Config.load(configured(tmp_path, "http://127.0.0.1:1/v1", api_key_env="NO_SUCH_KEY"))
    (finding,) = await model_findings(config)
    assert (finding.state, "NO_SUCH_KEY" in finding.fix) == ("warning", True)
