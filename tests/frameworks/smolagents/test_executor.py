from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from smolagents import CodeAgent, tool
from smolagents.models import ChatMessage, MessageRole, Model
from smolagents.utils import AgentError

from airlock import Client, errors
from airlock.background_loop import shared_loop
from gateway.integrations.smolagents import AirlockExecutor


@pytest.fixture
def airlock(address: str, api_key: str) -> Client:
    return Client(address, api_key)


@pytest.fixture
def executor(airlock: Client, thread: str) -> Iterator[AirlockExecutor]:
    executor = AirlockExecutor(airlock, thread=thread)
    yield executor
    executor.cleanup()


class Scripted(Model):
    """Says these texts, one after the other, and keeps what it was shown before each."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self.texts = list(texts)
        self.shown: list[str] = []

    def generate(self, messages: list[ChatMessage], *args: Any, **options: Any) -> ChatMessage:
        self.shown.append(str(messages[-1].content))
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"<code>\n{self.texts.pop(0)}\n</code>")


@tool
def double(number: int) -> int:
    """Double a number.

    Args:
        number: the number
    """
    return number * 2


def test_the_program_of_the_page_prints_the_sum(run_program: Callable[[str], str]) -> None:
    assert run_program("smolagents").strip().endswith("5050")


def test_an_agent_keeps_tools_and_variables_and_answers_with_an_object(executor: AirlockExecutor) -> None:
    model = Scripted("x = double(given[1])\nprint(x)", "1/0", "final_answer({'x': (x, b'\\xff'), 'of': 'π'})")
    with CodeAgent([double], model, executor=executor, verbosity_level=0) as agent:
        answer = agent.run("go", additional_args={"given": [1, 21]})
    assert answer == {"x": (42, b"\xff"), "of": "π"}
    assert "42" in model.shown[1]
    assert "ZeroDivisionError" in model.shown[2]


def test_output_and_the_last_expression_and_state(executor: AirlockExecutor) -> None:
    import_ = executor("import sys\nnumber = 5\nprint('out')\nprint('err', file=sys.stderr)\nnumber + 1")
    assert (import_.output, import_.is_final_answer) == ("6", False)
    assert "out\n" in import_.logs
    assert "err\n" in import_.logs
    assert executor("number").output == "5"


def test_what_the_sandbox_says_is_never_unpickled(executor: AirlockExecutor) -> None:
    claim = "class FinalAnswerException(BaseException): pass\nraise FinalAnswerException('pickle:gASVAQ==')"
    with pytest.raises(Exception, match=r"[Pp]ickle"):
        executor(claim)


def test_a_block_that_takes_too_long_is_interrupted_and_the_variables_stay(airlock: Client, thread: str) -> None:
    executor = AirlockExecutor(airlock, thread=thread, timeout_s=2)
    executor("kept = 1")
    with pytest.raises(AgentError, match="timed out"):
        executor("import time; time.sleep(600)")
    assert executor("kept").output == "1"


def test_denials_and_approvals_are_what_the_model_reads(address: str, streaming_key: str, thread: str) -> None:
    with pytest.raises(AgentError, match="apr_"):
        AirlockExecutor(Client(address, streaming_key), thread=thread)("1")


def test_packages_that_cannot_be_installed_say_so(airlock: Client, thread: str) -> None:
    with pytest.raises(AgentError, match="no-such-package could not be installed"):
        AirlockExecutor(airlock, thread=thread, additional_imports=["no-such-package"])


def test_a_gateway_that_is_not_there_is_raised(api_key: str) -> None:
    with pytest.raises(errors.Unavailable):
        AirlockExecutor(Client("127.0.0.1:1", api_key, retry=None))("1")


def test_files_of_the_thread_are_those_of_the_code(executor: AirlockExecutor, airlock: Client, thread: str) -> None:
    data = bytes(range(256)) * 4096 * 8
    shared_loop().run(airlock.write_file(thread, "in.bin", data))
    assert executor("data = open('in.bin', 'rb').read(); open('out.bin', 'wb').write(data[::-1]); len(data)").output
    assert shared_loop().run(airlock.read_file(thread, "out.bin")) == data[::-1]


def test_two_threads_have_interpreters_of_their_own_at_once(airlock: Client, thread: str) -> None:
    def work(number: int) -> Any:
        executor = AirlockExecutor(airlock, thread=thread)
        executor(f"number = {number}")
        return executor("number").output

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(4))) == ["0", "1", "2", "3"]
