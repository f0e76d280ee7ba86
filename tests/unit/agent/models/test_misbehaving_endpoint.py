"""Whatever an endpoint, a proxy or a network does, an attempt ends with an answer or with one line that helps."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.agent import Agent
from agent.capabilities.flow import flow
from agent.hooks.hook import InferenceRequest
from agent.messages import Message, ToolSpec
from agent.models.model import no_deltas
from agent.models.openai_model import OpenAIModel
from agent.models.scripted_model_server import ScriptedModelServer, Turn
from agent.models.settings import Connection
from agent.state import ModelResponse
from tests.endpoint_faults import FAULTS
from tests.misbehaving_endpoint import ANSWER, CODE, KEY, TEAM, Fault, authority, misbehaving
from tests.unit.agent.fakes import Events, allowing, state

LIMIT_CHARS = 1500
NOW_S = 1_000_000_000.0  # Sun, 09 Sep 2001 01:46:40 GMT
REQUEST = InferenceRequest(
    "be brief",
    (Message(role="user", content="hello"),),
    (ToolSpec(name="ls", description="lists files", parameters={"type": "object", "properties": {}}),),
)


@pytest.fixture(scope="session")
def ca_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("authority") / "ca.pem"
    authority("trusted").cert_pem.write_to_path(str(path))
    return path


@pytest.fixture
def no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without asking the network's name servers, no name has an address."""
    real: Callable[..., Any] = socket.getaddrinfo

    def of(host: Any, *args: Any, **kwargs: Any) -> Any:
        if str(host).endswith((".invalid", "invalid'")):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", of)


def model_at(base_url: str, ca_file: Path, *, stream: bool = True, **within: Any) -> OpenAIModel:
    connection = Connection(headers={"X-Team": TEAM}, query={"code": CODE}, ca_file=str(ca_file), **within)
    return OpenAIModel("m", base_url=base_url, api_key=KEY, stream=stream, connection=connection, now=lambda: NOW_S)


async def ask(fault: Fault, ca_file: Path) -> tuple[str, ModelResponse]:
    """Return the endpoint's address and its answer."""
    async with ScriptedModelServer([Turn(say=ANSWER)]) as real, misbehaving(fault, real.base_url) as port:
        base_url = f"{fault.scheme}://{fault.host}:{port}/v1"
        proxy = None
        if fault.in_proxy:
            proxy = f"http://user:pass-{TEAM}@127.0.0.1:{port}"
            base_url = f"{fault.scheme}://api.example.invalid/v1"
        async with model_at(base_url, ca_file, stream=fault.stream, proxy=proxy, **fault.within) as model:
            try:
                return base_url, await model.infer(REQUEST, no_deltas)
            except Exception as error:
                error.add_note(base_url)
                raise


@pytest.mark.parametrize("fault", [one for one in FAULTS if one.error], ids=lambda fault: fault.name)
@pytest.mark.usefixtures("no_names")
async def test_a_fault_ends_the_attempt_with_one_line_that_names_the_cause_and_the_setting(
    fault: Fault, ca_file: Path
) -> None:
    assert fault.error is not None
    with pytest.raises(fault.error) as raised:
        await ask(fault, ca_file)
    line = str(raised.value)
    assert type(raised.value) is fault.error
    assert raised.value.__notes__[0] in line
    assert line.isprintable()
    assert len(line) <= LIMIT_CHARS
    for secret in (KEY, TEAM, CODE, CODE.replace("/", "%2F").replace("=", "%3D")):
        for length in range(len(secret) // 2, len(secret) + 1):
            assert secret[:length].lower() not in line.lower()
    assert [said for said in fault.says if said not in line] == [], line
    assert re.search(rf"\b{fault.setting}\b", line), line


@pytest.mark.parametrize("fault", [one for one in FAULTS if not one.error], ids=lambda fault: fault.name)
@pytest.mark.usefixtures("no_names")
async def test_what_can_be_understood_all_the_same_is_an_answer(fault: Fault, ca_file: Path) -> None:
    _, response = await ask(fault, ca_file)
    message = response.message
    assert message.content == fault.answer
    calls = [(call.name, call.arguments, call.raw_arguments) for call in message.tool_calls]
    assert calls == [(call.name, call.arguments, call.raw_arguments) for call in fault.calls]
    ids = [call.id for call in message.tool_calls]
    assert len({*ids, ""}) == len(ids) + 1
    assert 0 <= response.usage.output_tokens < 1000


def named(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


@pytest.mark.parametrize("name, attempts", [("503", 3), ("closed before the head", 3), ("401 without words", 1)])
async def test_a_run_shows_each_attempt_and_what_is_tried_next_and_tries_no_more_than_it_may(
    name: str, attempts: int, ca_file: Path
) -> None:
    slept: list[float] = []
    events = Events()

    async def sleep(wait_s: float) -> None:
        slept.append(wait_s)

    async with misbehaving(named(name), "") as port, model_at(f"http://127.0.0.1:{port}/v1", ca_file) as model:
        await Agent(model=model, capabilities=(flow(sleep=sleep),), hooks=(allowing(),)).run(state(), events)
    failed = [str(event["error"]) for event in events.of("model_failed")]
    assert len(failed) == attempts
    assert len(set(failed)) == 1
    assert [(one["attempt"], one["attempts"]) for one in events.of("model_retrying")] == [(2, 3), (3, 3)][
        : attempts - 1
    ]
    assert [one["wait_s"] for one in events.of("model_retrying")] == slept == [0.5, 2.0][: attempts - 1]
    end: Any = events[-1].payload
    assert end["status"] == "failed"
    assert end["stop"]["reason"].removeprefix(f"{attempts} attempts failed; the last one: ") == failed[0]


def test_the_faults_are_many_and_each_has_a_name_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 60
    assert json.dumps([fault.name for fault in FAULTS if fault.error and not (fault.says or fault.setting)]) == "[]"
