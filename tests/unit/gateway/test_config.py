"""The configuration file: paths, what comes from the environment, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import Config
from gateway.errors import Misconfigured

GOOD = "tenants:\n  default:\n    policy: policies/default.yaml\n"


def _agent(capabilities: str) -> str:
    """Return a configuration of one agent with these capabilities."""
    named = capabilities if capabilities.startswith("{") else f"{{{capabilities}}}"
    return f"{GOOD}agents: {{a: {{capabilities: {named}}}}}\n"


def _write(directory: Path, text: str) -> Path:
    path = directory / "airlock.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = Config.load(_write(tmp_path, GOOD))
    assert config.path(config.tenants["default"].policy) == tmp_path / "policies" / "default.yaml"
    assert config.resolved_database_url() == f"sqlite:///{tmp_path}/state/airlock.db"


@pytest.mark.parametrize(
    "text, named",
    [
        ("", "mapping"),
        ("tenants: {}\n", "tenants"),
        (GOOD + "sandboxes: {}\n", "sandboxes"),
        ("tenants:\n  Not/AName:\n    policy: x\n", "tenants"),
        (GOOD + "sandbox: {max_live: 0}\n", "max_live"),
        ("a: [", "not YAML"),
        (GOOD + "agents: {a: {promt: x}}\n", r"agents\.a\.promt: not known.*system_prompt, model, capabilities"),
        (_agent("toodos:"), r"agents\.a\.capabilities\.toodos: not known.*todos, metadata"),
        (_agent("todos: {max: 3}"), r"agents\.a\.capabilities\.todos\.max: not known.*no settings"),
        (_agent("limits: {steps: 99}"), r"agents\.a\.capabilities: limits: .* the tenant's policy"),
        (_agent("flow: {on_tool_error: ignore}"), r"flow\.on_tool_error: .*'stop' or 'continue'"),
        (_agent("memory: {paths: [notes.md]}"), r"memory\.paths\.0: .*absolute.*'/notes.md'"),
        (_agent("memory: {paths: [/workspace/../etc/x]}"), r"memory\.paths\.0: .*'/etc/x'"),
        (_agent("{filesystem: , skills: {paths: []}}"), r"skills\.paths"),
        (_agent("skills:"), r"capabilities: skills: .*name filesystem"),
        (_agent("structured_output:"), r"structured_output\.schema: field required"),
        (_agent("structured_output: {schema: {type: objekt}}"), r"structured_output\.schema: .*JSON Schema is wrong"),
        (_agent("subagents: {definitions: {}}"), r"subagents\.definitions"),
        (_agent("subagents: {definitions: {r: {description: d}}}"), r"definitions\.r\.system_prompt: field required"),
        (
            _agent("subagents: {definitions: {r: {description: d, system_prompt: s, model: {nam: x}}}}"),
            r"definitions\.r\.model\.nam: not known.*name, base_url",
        ),
        (_agent("bash: {deny: [[git push]]}"), r"bash\.deny: .*words apart"),
        (_agent("bash: {denied: [[git, push]]}"), r"bash\.denied: not known.*allow, deny, timeout_s"),
        (GOOD + "    agents: {Bad Name: {}}\n", r"tenants\.default\.agents\.Bad Name.*small letters"),
        (GOOD + "model: {input_usd_per_mtok: 1}\n", "set both prices or none"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(Misconfigured, match=named):
        Config.load(_write(tmp_path, text))


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="airlock init"):
        Config.load(tmp_path / "nothing.yaml")


def test_a_missing_model_key_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = Config.load(_write(tmp_path, GOOD))
    with pytest.raises(Misconfigured, match="OPENAI_API_KEY"):
        config.model_of("default").resolved_api_key()


def test_a_tenant_may_have_a_model_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRLOCK_MODEL", "from-environment")
    text = GOOD + "  rich:\n    policy: p.yaml\n    model: {name: better, base_url: http://x}\n"
    config = Config.load(_write(tmp_path, text))
    assert config.model_of("rich").resolved_name() == "better"
    assert config.model_of("default").resolved_name() == "from-environment"


def test_a_capability_without_a_value_has_its_defaults(tmp_path: Path) -> None:
    text = GOOD + "agents:\n  a:\n    capabilities:\n      filesystem:\n      memory:\n      self_critique:\n"
    asked = Config.load(_write(tmp_path, text)).agents["a"].capabilities
    assert asked.memory is not None
    assert asked.memory.paths == ("/workspace/AGENTS.md",)
    assert asked.self_critique is not None
    assert asked.self_critique.rounds == 2
    assert asked.bash is None
    assert asked.todos is None


@pytest.mark.parametrize("agents", ["", "agents: {default: {}}\n", "agents: {default: {capabilities: }}\n"])
def test_an_agent_that_names_no_capabilities_has_files_and_a_shell(tmp_path: Path, agents: str) -> None:
    asked = Config.load(_write(tmp_path, GOOD + agents)).agents["default"].capabilities
    assert {name for name in type(asked).model_fields if getattr(asked, name) is not None} == {
        "filesystem",
        "bash",
        "flow",
    }


def test_an_agent_that_names_none_at_all_has_none(tmp_path: Path) -> None:
    asked = Config.load(_write(tmp_path, _agent("{}"))).agents["a"].capabilities
    assert asked.filesystem is None
    assert asked.bash is None


def test_a_tenants_own_agent_wins_and_no_other_tenant_has_it(tmp_path: Path) -> None:
    text = (
        "agents: {default: {system_prompt: shared}, helper: {}}\n"
        "tenants:\n"
        "  default: {policy: p.yaml}\n"
        "  rich: {policy: p.yaml, agents: {default: {system_prompt: own}, secret-project: {}}}\n"
    )
    config = Config.load(_write(tmp_path, text))
    assert set(config.agents_of("default")) == {"default", "helper"}
    assert set(config.agents_of("rich")) == {"default", "helper", "secret-project"}
    assert config.agents_of("default")["default"].system_prompt == "shared"
    assert config.agents_of("rich")["default"].system_prompt == "own"


def test_what_may_stand_in_a_section_is_that_sections_also_under_a_name_that_is_a_field(tmp_path: Path) -> None:
    text = GOOD + "agents: {model: {capabilities: {todo: }}}\n"
    with pytest.raises(Misconfigured, match=r"agents\.model\.capabilities\.todo: not known here.*todos"):
        Config.load(_write(tmp_path, text))
