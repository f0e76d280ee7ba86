"""Skills: what the model is shown of them, and what the active one lets it do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from agent.agent import Agent
from agent.capabilities.filesystem import filesystem
from agent.capabilities.skills import ACTIVE, BROKEN, CATALOG, skills
from agent.errors import InvalidPath
from agent.hooks.hook import Hook
from agent.messages import ToolCall
from agent.state import AgentState, ModelResponse
from agent.tools.tool import Capability
from sandbox.engines.local.local_fs import LocalFS
from tests.unit.agent.fakes import Events, FakeFiles, SaysInTurn, call, done, says, state, tool

OTHERS = Capability("others", tools=(tool("execute", done), tool("execute_admin", done)))


def put(root: Path, name: str, text: str | bytes = "", *, head: str | None = None) -> None:
    """Write the SKILL.md of a skill directory; `head` is its frontmatter."""
    path = root / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = f"---\n{head}\n---\n{text!s}" if head is not None else text
    path.write_bytes(whole if isinstance(whole, bytes) else whole.encode())


def good(name: str, more: str = "") -> str:
    return f"name: {name}\ndescription: what {name} is for\n{more}"


def agent(root: Path, model: SaysInTurn, *hooks: Hook, paths: Any = ("skills",)) -> Agent:
    files = LocalFS(root)
    bundles = (filesystem(files), skills(files, paths), OTHERS)
    return Agent(model=model, capabilities=bundles, hooks=hooks, system_prompt="You are the agent.")


async def run(
    root: Path, *responses: ModelResponse | Exception, hooks: Any = (), paths: Any = ("skills",)
) -> tuple[AgentState, SaysInTurn, Events]:
    events = Events()
    model = SaysInTurn(*(responses or (says("done"),)))
    final = await agent(root, model, *hooks, paths=paths).run(state(), events)
    assert events.of("run_finished")[0]["status"] == "completed"
    assert not events.of("hook_failed")
    return final, model, events


async def prompt_of(root: Path, **settings: Any) -> str:
    _, model, _ = await run(root, **settings)
    return model.requests[0].system_prompt


def names(final: AgentState) -> list[Any]:
    catalog: Any = final.notes[CATALOG]
    return [skill["name"] for skill in catalog]


def broken(final: AgentState) -> dict[str, str]:
    noted: Any = final.metadata.get(BROKEN, [])
    return {entry["path"]: entry["problem"] for entry in noted}


def read(path: str, id_: str = "r") -> ToolCall:
    return call("read_file", id_, path=path)


def results(final: AgentState) -> list[str]:
    return [message.content for message in final.messages if message.role == "tool"]


async def test_each_skill_is_one_line_of_the_prompt_and_its_body_is_not_there(tmp_path: Path) -> None:
    put(tmp_path, "skills/pdf", "the long body", head=good("pdf"))
    put(tmp_path, "skills/web", "another body", head=good("web"))
    prompt = await prompt_of(tmp_path)
    assert prompt.startswith("You are the agent.\n\n")
    lines = prompt.splitlines()
    assert [line for line in lines if "/workspace/skills/pdf/SKILL.md" in line and "what pdf is for" in line]
    assert [line for line in lines if "/workspace/skills/web/SKILL.md" in line and "what web is for" in line]
    assert "body" not in prompt


async def test_the_body_is_in_the_context_once_the_model_has_read_it(tmp_path: Path) -> None:
    put(tmp_path, "skills/pdf", "the long body", head=good("pdf"))
    final, model, _ = await run(tmp_path, says("", read("/workspace/skills/pdf/SKILL.md")), says("done"))
    assert "the long body" in model.requests[1].messages[-1].content
    assert model.requests[1].system_prompt == model.requests[0].system_prompt
    assert final.notes[ACTIVE] == "pdf"


async def test_without_skills_the_prompt_is_left_alone(tmp_path: Path) -> None:
    final, model, _ = await run(tmp_path, paths=("skills", "/workspace/nowhere", "/elsewhere"))
    assert model.requests[0].system_prompt == "You are the agent."
    assert final.notes[CATALOG] == []
    assert BROKEN not in final.metadata


async def test_skills_are_found_down_to_a_bounded_depth(tmp_path: Path) -> None:
    for depth in range(6):
        put(tmp_path, "/".join(["skills", *"abcde"[:depth]]), head=good(f"at{depth}"))
    final, _, _ = await run(tmp_path)
    assert names(final) == ["at0", "at1", "at2", "at3"]


async def test_of_two_skills_of_one_name_the_first_path_wins(tmp_path: Path) -> None:
    put(tmp_path, "mine/x", head=good("same", "allowed-tools: [ls]"))
    put(tmp_path, "theirs/x", head=good("same"))
    final, _, _ = await run(tmp_path, paths=("mine", "theirs", "mine"))
    catalog: Any = final.notes[CATALOG]
    assert [skill["path"] for skill in catalog] == ["/workspace/mine/x/SKILL.md"]
    assert "taken by /workspace/mine/x/SKILL.md" in broken(final)["/workspace/theirs/x/SKILL.md"]
    assert len(broken(final)) == 1


async def test_paths_that_overlap_take_a_skill_once(tmp_path: Path) -> None:
    put(tmp_path, "skills/x", head=good("x"))
    final, _, _ = await run(tmp_path, paths=("skills", "/workspace", "skills/x/"))
    assert (names(final), broken(final)) == (["x"], {})


BOMB = "a: &a [x, x]\n" + "\n".join(f"{b}: &{b} [*{a}, *{a}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True))


@pytest.mark.parametrize(
    "whole, problem",
    [
        ("# just text\n", "first line must be ---"),
        ("", "first line must be ---"),
        ("---\nname: x\ndescription: y\n", "no --- line ends"),
        (f"---\n{good('x')}\nfiller: {'x' * 5000}\n---\n", "no --- line ends"),
        ("---\nname: x\ndescription: Use when: always\n---\n", "line 3: mapping values"),
        ("---\n- a\n- b\n---\n", "not a mapping"),
        ("---\n---\n", "not a mapping"),
        (f"---\n{good('x')}{BOMB}\n---\n", "aliases are not taken"),
        (f"---\n{good('x')}y: {'[' * 500}\n---\n", "open brackets"),
        (f"---\n{good('x')}y: [{'~,' * 500}]\n---\n", "line 4: more than 500 keys and values"),
        (f"---\n{good('x')}y: {'- ' * 1500}\n---\n", "not YAML"),
        (f"---\n{good('x')}y: !!python/object/apply:os.getcwd []\n---\n", "constructor"),
        (f"---\n{good('x')}y: 2024-99-99\n---\n", "ValueError"),
        ("---\nname: x\n---\n", "`description`"),
        ("---\nname: 12\ndescription: y\n---\n", "`name`"),
        ('---\nname: "\\u202e\\n"\ndescription: y\n---\n', "`name`"),
        (f"---\n{good('x', 'allowed-tools: {a: b}')}\n---\n", "exact tool names"),
        (f"---\n{good('x', 'allowed-tools: [ls, [read_file]]')}\n---\n", "exact tool names"),
        (f"---\n{good('x', 'allowed-tools: exec*')}\n---\n", "exact tool names"),
        (f"---\n{good('x', 'allowed-tools: 7')}\n---\n", "exact tool names"),
        (f"---\n{good('x', 'allowed-tools: ' + 'a,b,' * 20)}\n---\n", "exact tool names"),
        (b"---\nname: x\ndescription: \xff\n---\n", "UTF-8"),
        (b"---\nname: x\ndescription: \0\n---\n", "UTF-8"),
    ],
)
async def test_a_broken_skill_is_left_out_and_noted_and_the_others_stay(
    tmp_path: Path, whole: str | bytes, problem: str
) -> None:
    put(tmp_path, "skills/bad", whole)
    put(tmp_path, "skills/good", head=good("good"))
    final, model, _ = await run(tmp_path)
    assert names(final) == ["good"]
    assert problem in broken(final)["/workspace/skills/bad/SKILL.md"]
    assert "bad" not in model.requests[0].system_prompt


async def test_a_broken_skill_is_an_event_and_stays_in_the_metadata_until_it_is_fixed(tmp_path: Path) -> None:
    put(tmp_path, "skills/bad", "# just text\n")
    final, _, events = await run(tmp_path)
    reported = [event for event in events.of("state_changed") if BROKEN in cast(dict[str, Any], event["metadata"])]
    assert [(event["hook"], event["point"]) for event in reported] == [("skills", "execution_start")]
    put(tmp_path, "skills/bad", head=good("bad"))
    again = state().with_(metadata=final.metadata)
    fixed = await agent(tmp_path, SaysInTurn(says("done"))).run(again)
    assert names(fixed) == ["bad"]
    assert BROKEN not in fixed.metadata


async def test_what_is_no_readable_file_is_left_out_and_noted(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"---\n{good('secret')}---\n")
    (tmp_path / "skills/link").mkdir(parents=True)
    (tmp_path / "skills/link/SKILL.md").symlink_to(tmp_path / "secret")
    (tmp_path / "skills/dir/SKILL.md").mkdir(parents=True)
    put(tmp_path, "skills/line\n- evil", head=good("evil"))
    final, model, _ = await run(tmp_path, paths=("skills", "secret"))
    assert names(final) == []
    assert set(broken(final)) == {
        "/workspace/skills/link/SKILL.md",
        "/workspace/skills/dir/SKILL.md",
        "/workspace/skills/line - evil/SKILL.md",
        "/workspace/secret",
    }
    assert model.requests[0].system_prompt == "You are the agent."


async def test_nothing_in_name_or_description_makes_a_second_line(tmp_path: Path) -> None:
    name = r"a\n- b\u2028c\x1b[2Jd"
    put(tmp_path, "skills/x", head=f'name: "{name}"\ndescription: "one\\r\\n# two\\u0085\\u202ethree\\0"')
    plain = len((await prompt_of(tmp_path)).splitlines())
    final, model, _ = await run(tmp_path)
    assert names(final) == ["a - b c [2Jd"]
    put(tmp_path, "skills/x", head=good("plain"))
    assert plain == len((await prompt_of(tmp_path)).splitlines())
    assert "one # two three" in model.requests[0].system_prompt


async def test_long_names_and_descriptions_are_cut(tmp_path: Path) -> None:
    put(tmp_path, "skills/x", head=f"name: {'n' * 999}\ndescription: {'d' * 501}")
    put(tmp_path, "skills/y", head=f"name: y\ndescription: {'e' * 500}")
    final, _, _ = await run(tmp_path)
    catalog: Any = final.notes[CATALOG]
    assert [len(skill["name"]) for skill in catalog] == [64, 1]
    assert [skill["description"] for skill in catalog] == ["d" * 497 + "...", "e" * 500]


async def test_at_most_a_hundred_skills_are_listed_and_the_rest_is_counted(tmp_path: Path) -> None:
    for number in range(103):
        put(tmp_path, f"skills/s{number:03}", head=good(f"s{number:03}"))
    final, model, _ = await run(tmp_path)
    assert names(final) == [f"s{number:03}" for number in range(100)]
    assert "s100" not in model.requests[0].system_prompt
    assert "more skills than fit" in broken(final)["/workspace/skills"]


async def test_at_most_two_hundred_files_are_read(tmp_path: Path) -> None:
    for number in range(201):
        put(tmp_path, f"skills/s{number:03}", "no frontmatter")
    put(tmp_path, "skills/t/u", head=good("late"))
    final, _, _ = await run(tmp_path)
    assert names(final) == []
    noted: Any = final.metadata[BROKEN]
    assert len(noted) == 50  # as many as a person wants to see


async def test_frontmatter_of_other_editors_is_read(tmp_path: Path) -> None:
    put(tmp_path, "skills/crlf", b"\xef\xbb\xbf---\r\nname: crlf\r\ndescription: d\r\n---\r\nbody")
    put(tmp_path, "skills/long", "ä" * 100_000, head=good("long", f"metadata: {{deep: [{'1,' * 400}]}}\nlicense: MIT"))
    final, _, _ = await run(tmp_path)
    assert names(final) == ["crlf", "long"]


@pytest.mark.parametrize(
    "written, allowed",
    [
        ("[read_file, execute]", ["read_file", "execute"]),
        ("read_file, execute,execute", ["read_file", "execute"]),
        ("read_file execute", ["read_file", "execute"]),
        ("\n  - read_file\n  - execute", ["read_file", "execute"]),
        ("[]", []),
        ('""', []),
        ("", None),
    ],
)
async def test_allowed_tools_may_be_a_list_or_one_string(tmp_path: Path, written: str, allowed: Any) -> None:
    put(tmp_path, "skills/x", head=good("x", f"allowed-tools: {written}"))
    final, _, _ = await run(tmp_path)
    catalog: Any = final.notes[CATALOG]
    assert catalog[0]["allowed_tools"] == allowed


async def test_an_active_skill_holds_the_run_to_its_tools_until_it_is_finished(tmp_path: Path) -> None:
    put(tmp_path, "skills/x", head=good("x", "allowed-tools: execute, glob"))
    final, model, events = await run(
        tmp_path,
        says("", call("execute_admin")),
        says("", read("skills/../skills/x/SKILL.md")),  # paths are compared in their final form
        says("", call("execute"), call("execute_admin"), call("ls"), call("glob", pattern="**"), call("Execute")),
        says("", call("finish_skill")),
        says("", call("execute_admin"), call("ls")),
        says("done"),
    )
    verdicts = {}
    for started, verdict in zip(events.of("tool_call_started"), events.of("hook_verdict"), strict=True):
        verdicts.setdefault(str(started["name"]), []).append(verdict["verdict"])
    assert verdicts == {
        "execute_admin": ["allow", "deny", "allow"],
        "read_file": ["allow"],
        "execute": ["allow"],
        "ls": ["deny", "allow"],
        "glob": ["allow"],
        "Execute": ["deny"],
        "finish_skill": ["allow"],
    }
    refusal = results(final)[3]
    assert "skill x is active" in refusal
    assert "execute, glob" in refusal
    assert "finish_skill" in refusal
    assert "The skill x is active" not in model.requests[1].system_prompt
    assert "The skill x is active. The tools it allows: execute, glob." in model.requests[2].system_prompt
    assert "The skill x is active" not in model.requests[4].system_prompt
    assert "skill x has ended" in results(final)[7]
    assert final.notes[ACTIVE] is None


async def test_a_skill_without_allowed_tools_restricts_nothing_and_one_with_none_everything(tmp_path: Path) -> None:
    put(tmp_path, "skills/free", head=good("free"))
    put(tmp_path, "skills/none", head=good("none", "allowed-tools: []"))
    final, _, _ = await run(
        tmp_path,
        says("", read("/workspace/skills/free/SKILL.md")),
        says("", call("execute")),
        says("", read("/workspace/skills/none/SKILL.md")),
        says("", call("execute")),
        says("done"),
    )
    assert results(final)[1] == "done"
    assert "Blocked by rule allowed_tools" in results(final)[3]
    assert "allows: none" in results(final)[3]


async def test_reading_changes_over_to_another_skill_even_where_read_file_is_not_allowed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("text")
    put(tmp_path, "skills/a", "body of a", head=good("a", "allowed-tools: ls"))
    put(tmp_path, "skills/b", "body of b", head=good("b", "allowed-tools: execute"))
    final, _, _ = await run(
        tmp_path,
        says("", read("/workspace/skills/a/SKILL.md")),
        says("", read("/workspace/other"), read("/workspace/skills/a/SKILL.md")),  # its own: the rest of a long one
        says("", read("skills/b/SKILL.md")),
        says("", call("ls"), call("execute")),
        says("done"),
    )
    _, other, again, changed, ls, execute = results(final)
    assert "skill a is active" in other
    assert "body of a" in again
    assert "body of b" in changed
    assert "skill b is active" in ls
    assert execute == "done"


async def test_a_read_that_fails_or_is_blocked_makes_no_skill_active(tmp_path: Path) -> None:
    put(tmp_path, "skills/gone", head=good("gone", "allowed-tools: []"))
    put(tmp_path, "skills/held", head=good("held", "allowed-tools: []"))

    class Meddles(Hook):
        async def before_step(self, state: AgentState) -> AgentState:
            (tmp_path / "skills/gone/SKILL.md").unlink(missing_ok=True)
            return state

        async def before_tool_use(self, state: AgentState) -> AgentState:
            arguments = state.current.tool.call.arguments or {}
            return state.block("meddles", "held", "held") if "held" in str(arguments.get("path")) else state

    final, _, _ = await run(
        tmp_path,
        says("", read("skills/gone/SKILL.md"), read("skills/held/SKILL.md"), call("read_file", nonsense=1)),
        says("", call("execute")),
        says("done"),
        hooks=(Meddles(),),
    )
    assert names(final) == ["gone", "held"]
    assert ACTIVE not in final.notes
    assert results(final)[-1] == "done"


async def test_finish_skill_says_when_there_is_nothing_to_finish(tmp_path: Path) -> None:
    final, _, events = await run(tmp_path, says("", call("finish_skill")), says("done"))
    assert "No skill is active" in results(final)[0]
    assert events.of("tool_call_finished")[0]["is_error"] is False


async def test_finish_skill_takes_no_arguments_and_ends_nothing_when_given_some(tmp_path: Path) -> None:
    put(tmp_path, "skills/x", head=good("x", "allowed-tools: []"))
    final, _, events = await run(
        tmp_path, says("", read("skills/x/SKILL.md")), says("", call("finish_skill", skill="x")), says("done")
    )
    assert events.of("tool_call_finished")[1]["is_error"] is True
    assert final.notes[ACTIVE] == "x"


async def test_reads_and_finishes_of_one_step_count_in_call_order(tmp_path: Path) -> None:
    put(tmp_path, "skills/a", head=good("a"))
    put(tmp_path, "skills/b", head=good("b"))
    final, _, _ = await run(
        tmp_path,
        says("", read("skills/a/SKILL.md"), call("finish_skill"), call("finish_skill"), read("skills/b/SKILL.md")),
        says("done"),
    )
    assert "skill a has ended" in results(final)[1]
    assert "No skill is active" in results(final)[2]
    assert final.notes[ACTIVE] == "b"


async def test_a_resumed_run_has_the_same_prompt_and_the_same_restriction(tmp_path: Path) -> None:
    put(tmp_path, "skills/x", head=good("x", "allowed-tools: execute"))
    stored: list[str] = []

    class Stores(Hook):
        async def before_step(self, state: AgentState) -> AgentState:
            stored.append(state.model_dump_json())
            return state

    _, model, _ = await run(
        tmp_path, says("", read("skills/x/SKILL.md")), says("", call("ls")), says("done"), hooks=(Stores(),)
    )
    (tmp_path / "skills/x/SKILL.md").unlink()  # what was found counts until the run ends
    resumed = SaysInTurn(says("", call("ls"), call("execute")), says("done"))
    final = await agent(tmp_path, resumed).run(AgentState.model_validate_json(stored[1]))
    assert resumed.requests[0].system_prompt == model.requests[1].system_prompt
    assert "skill x is active" in results(final)[1]
    assert results(final)[2] == "done"


async def test_a_file_system_in_trouble_costs_the_skills_and_not_the_run() -> None:
    class Lost(FakeFiles):
        async def glob(self, path: str, pattern: str, *, offset: int = 0, limit: int = 1000) -> Any:
            raise RuntimeError("the sandbox\nis lost")

    events = Events()
    model = SaysInTurn(says("done"))
    final = await Agent(model=model, capabilities=(skills(Lost(), ["/workspace/skills"]),)).run(state(), events)
    assert broken(final) == {"/workspace/skills": "the sandbox is lost"}
    assert model.requests[0].system_prompt == ""
    assert events.of("run_finished")[0]["status"] == "completed"
    assert not events.of("hook_failed")


def test_one_string_is_not_taken_for_a_list_of_paths() -> None:
    with pytest.raises(TypeError, match=r"pass a list, as in \['/workspace/skills'\]"):
        skills(FakeFiles(), "/workspace/skills")


def test_a_path_that_can_be_none_is_refused_at_once() -> None:
    with pytest.raises(InvalidPath):
        skills(FakeFiles(), ["a\0b"])
