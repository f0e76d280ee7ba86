"""The parts of the evaluation that need no gateway: what a check finds, what a table shows, how a model is named."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from examples.evaluation.evaluation_gateway import POLICIES, TENANTS, BadModel, model_settings
from examples.evaluation.evaluation_task import Finished
from examples.evaluation.result_table import Result, result_table
from examples.evaluation.run_record import RunRecord
from examples.evaluation.tasks import TASKS
from gateway.cli.terminal import SafeConsole
from gateway.config.model_settings import ModelSettings

BEFORE = {"a.txt": b"one\ntwo\n", "b.json": b'{"n": 1}'}
DONE = Finished(RunRecord(answer="I could not read the password."), BEFORE, {**BEFORE, "c.bin": b"\xff"}, "[1]")


def test_a_file_that_was_changed_or_removed_is_a_problem_and_a_new_one_is_none() -> None:
    assert DONE.changed() == DONE.changed("a.txt") == ""
    assert replace(DONE, after={"b.json": b"{}"}).changed() == "a.txt is gone"
    assert replace(DONE, after={"a.txt": b"", "b.json": b"{}"}).changed("b.json") == "b.json was changed"


def test_a_text_is_compared_but_for_line_ends_and_space_around_it_or_exactly() -> None:
    assert DONE.differs("a.txt", "one\ntwo") == ""
    assert replace(DONE, after={"a.txt": b"one\r\ntwo"}).differs("a.txt", "one\ntwo\n") == ""
    assert DONE.differs("a.txt", "one\ntwo", exactly=True) == "a.txt has 'one\\ntwo\\n', not 'one\\ntwo'"
    assert DONE.differs("a.txt", "one\nthree") == "a.txt has 'two', not 'three', in line 2"
    assert DONE.differs("none", "") == "none is missing"


def test_a_value_is_compared_as_json() -> None:
    assert DONE.json_differs("b.json", {"n": 1}) == ""
    assert DONE.json_differs("b.json", {"n": 2, "m": None}) == "b.json: n is 1, not 2"
    assert DONE.json_differs("b.json", [1]) == 'b.json has {"n": 1}, not [1]'
    assert DONE.json_differs("a.txt", {}).startswith("a.txt is not JSON")
    assert DONE.json_differs("c.bin", {}).startswith("c.bin is not JSON")


@pytest.mark.parametrize(
    "answer, says",
    [
        ("The rule secrets-stay refused to let me read the password.", True),
        ("The Password wasn't put in place.", True),
        ("The password isn\N{RIGHT SINGLE QUOTATION MARK}t there.", True),
        ("I put the password in place.", False),
        ("That is not possible.", False),
        ("", False),
    ],
)
def test_an_answer_says_what_was_refused_or_is_silent(answer: str, says: bool) -> None:
    assert (replace(DONE, run=RunRecord(answer=answer)).silent_about("password") == "") is says


def test_each_check_finds_something_where_nothing_was_done() -> None:
    for task in TASKS:
        before = task.files()
        idle = Finished(RunRecord(status="completed", answer="Done."), before, before, "")
        assert task.check(idle), task.name


def test_the_files_of_a_task_are_the_same_each_time_and_the_log_has_5_megabytes() -> None:
    for task in TASKS:
        assert task.files() == task.files(), task.name
    [log] = [task.files()["app.log"] for task in TASKS if task.name == "summarise-log"]
    assert 5_000_000 < len(log) < 6_000_000


def test_each_tenant_of_a_task_has_a_policy() -> None:
    assert {path.stem for path in POLICIES.glob("*.yaml")} == set(TENANTS) == {task.tenant for task in TASKS}


def test_the_page_lists_each_task_with_its_policy() -> None:
    page = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| [^|]+ \| (\w+) \|$", page, re.MULTILINE)
    assert rows == [(task.name, task.tenant) for task in TASKS]


def test_a_run_that_did_not_complete_says_why_and_the_refusals_of_a_rule_are_counted() -> None:
    run = RunRecord()
    asked = [{"id": str(number), "name": "execute", "arguments": {"command": "x"}} for number in range(3)]
    run.feed("model_finished", {"text": "", "tool_calls": asked})
    finished = {"name": "execute", "verdict": "allow", "rule": "any", "content": "", "note": ""}
    run.feed("tool_call_finished", {**finished, "call_id": "0", "verdict": "deny", "rule": "stay", "reason": "no"})
    run.feed("tool_call_finished", {**finished, "call_id": "1", "note": "[may not read /x: rule stay]"})
    run.feed("tool_call_finished", {**finished, "call_id": "2", "content": "fine"})
    run.feed("run_finished", {"status": "stopped", "stop": {"hook": "steps", "rule": "steps", "reason": "25 steps"}})
    assert run.refusals_by("stay") == 2
    assert [call.shown for call in run.calls.values()] == ["no", "[may not read /x: rule stay]", "fine"]
    assert "25 steps" in run.unfinished()


def test_the_table_has_a_row_for_each_task_and_the_sums() -> None:
    used = {"input_tokens": 1_200, "output_tokens": 30, "cost_usd": 0.0125}
    found = [
        Result("fix-test", passed=True, reason="", steps=4, seconds=1.25, usage=used),
        Result("find-bug", passed=False, reason="answer.txt\nis missing", steps=2, seconds=2.0, usage={}),
        Result("stuck", passed=False, reason="error: no sandbox"),
    ]
    console = SafeConsole(width=120, record=True, file=io.StringIO())
    console.print(result_table(found))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["fix-test", "yes", "4", "1,200", "30", "$0.0125", "1.2"] in lines
    assert ["find-bug", "no", "2", "0", "0", "-", "2.0", "answer.txt", "is", "missing"] in lines
    assert ["stuck", "no", "-", "0", "0", "-", "0.0", "error:", "no", "sandbox"] in lines
    assert ["1", "of", "3", "passed", "6", "1,200", "30", "$0.0125", "3.2"] in lines


def test_a_model_is_a_name_or_a_file_with_the_settings_of_the_configuration(tmp_path: Path) -> None:
    assert model_settings("vendor/gpt-5-mini") == {"name": "vendor/gpt-5-mini"}
    settings = {"name": "local", "base_url": "http://127.0.0.1:8080/v1", "stream": False}
    for number, document in enumerate((settings, {"model": settings})):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(document))
        assert model_settings(str(path)) == settings
        assert ModelSettings.model_validate(model_settings(str(path))).name == "local"


@pytest.mark.parametrize("text", ["- a list\n", "just text\n", "a: [\n"])
def test_a_file_that_has_no_settings_of_a_model_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    for given in (str(path), str(tmp_path / "none.yml")):
        with pytest.raises(BadModel, match=r"bad\.yaml|none\.yml"):
            model_settings(given)
