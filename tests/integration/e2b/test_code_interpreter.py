"""E2B's code interpreter SDK."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2b.exceptions import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import Sandbox

from tests.integration.e2b.conftest import Connection

_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def interpreter(connection: Connection) -> Iterator[Sandbox]:
    made = Sandbox.create(envs={"GREETING": "hello"}, timeout=600, **connection)
    yield made
    made.kill()


def test_code_has_results_output_and_variables_that_stay(interpreter: Sandbox) -> None:
    seen: list[str] = []
    done = interpreter.run_code("x = 20; print('working'); x + 1", on_stdout=lambda message: seen.append(message.line))
    assert (done.text, done.logs.stdout, done.error) == ("21", ["working\n"], None)
    assert seen == ["working\n"]
    assert interpreter.run_code("f'{x}'").text == "20"


def test_an_exception_is_an_error_with_its_traceback(interpreter: Sandbox) -> None:
    error = interpreter.run_code("1 / 0").error
    assert error is not None
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
    assert "1 / 0" in error.traceback


def test_variables_of_the_environment_are_for_one_execution_or_for_the_sandbox(interpreter: Sandbox) -> None:
    code = "import os; os.environ.get('GREETING'), os.environ.get('NAME')"
    assert interpreter.run_code(code, envs={"NAME": "you"}).text == "('hello', 'you')"
    assert interpreter.run_code(code).text == "('hello', None)"


def test_a_figure_is_a_png(interpreter: Sandbox) -> None:
    code = (
        f"import base64\nclass Figure:\n    def _repr_png_(self):\n        return base64.b64decode('{_PNG}')\nFigure()"
    )
    (result,) = interpreter.run_code(code).results
    assert result.png is not None
    assert result.png.startswith("iVBORw0KGgo")


def test_what_code_puts_in_place_of_a_figure_is_not_read_whole(interpreter: Sandbox) -> None:
    code = f"""
import base64, glob, os, threading

def replace():
    while not os.path.exists('over'):
        for path in glob.glob('/workspace/.airlock/output/*.png'):
            os.truncate(path, 16 * 2**20)

threading.Thread(target=replace, daemon=True).start()

class Figure:
    def _repr_png_(self):
        return base64.b64decode('{_PNG}')
"""
    interpreter.run_code(code)
    results = [interpreter.run_code("Figure()").results[0] for _ in range(3)]
    interpreter.run_code("open('over', 'w').close()")
    assert max(len(one.png or "") for one in results) <= 4 * 2**20 * 4 // 3 + 4


def test_contexts_are_apart(interpreter: Sandbox) -> None:
    interpreter.files.make_dir("elsewhere")
    context = interpreter.create_code_context(cwd="elsewhere")
    assert interpreter.run_code("import os; y = 1; os.getcwd()", context=context).text == "/workspace/elsewhere"
    assert interpreter.run_code("y").error is not None
    assert context.id in [one.id for one in interpreter.list_code_contexts()]
    interpreter.restart_code_context(context)
    assert interpreter.run_code("y", context=context).error is not None
    interpreter.remove_code_context(context)
    with pytest.raises(NotFoundException, match="Context"):
        interpreter.run_code("y", context=context)


def test_code_that_takes_too_long_is_interrupted(interpreter: Sandbox) -> None:
    interpreter.run_code("kept = 7")
    with pytest.raises(TimeoutException):
        interpreter.run_code("import time; time.sleep(600)", timeout=1)
    assert interpreter.run_code("kept").text == "7"


def test_another_language_is_refused(interpreter: Sandbox) -> None:
    with pytest.raises(SandboxException, match="code is run in Python"):
        interpreter.run_code("1", language="r")
