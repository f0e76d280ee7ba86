"""The configuration file: paths, what comes from the environment, and what is wrong with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.agent_settings import AgentSettings
from gateway.config.config import Config
from gateway.config.model_settings import ModelSettings
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
        (GOOD + "sandbox: {on_stop: leave}\n", "on_stop"),
        (GOOD + "sandbox: {pool_min: 5, pool_limit: 2}\n", "pool_min: 5 is more than pool_limit: 2"),
        (GOOD + "sandbox: {on_stop: keep, keep_workspaces: false}\n", "keep_workspaces: true"),
        (GOOD + "sandbox: {engine: kubernetes, keep_workspaces: false}\n", "other gateways may use the workspaces"),
        (GOOD + "sandbox: {kubernetes: {namespace: Not A Name}}\n", "sandbox.kubernetes.namespace"),
        (GOOD + "sandbox: {kubernetes: {name_space: a}}\n", "known fields: mode, namespace, namespace_per_tenant"),
        (
            GOOD + "sandbox: {kubernetes: {namespace_per_tenant: true, image_pull_secrets: [registry]}}\n",
            "image_pull_secrets: no Secrets are copied",
        ),
        ("a: [", "not YAML"),
        (GOOD + "agents: {a: {promt: x}}\n", r"agents\.a\.promt: unknown field.*system_prompt, model, capabilities"),
        (_agent("toodos:"), r"agents\.a\.capabilities\.toodos: unknown field.*todos, metadata"),
        (_agent("todos: {max: 3}"), r"agents\.a\.capabilities\.todos\.max: unknown field.*no settings"),
        (_agent("limits: {steps: 99}"), r"agents\.a\.capabilities: limits: .* the tenant's policy"),
        (_agent("flow: {on_tool_error: ignore}"), r"flow\.on_tool_error: .*'stop' or 'continue'"),
        (_agent("memory: {paths: [notes.md]}"), r"memory\.paths\.0: [^;]*absolute[^;]*'/workspace/notes.md'$"),
        (_agent("memory: {paths: [/workspace/../etc/x]}"), r"memory\.paths\.0: .*'/etc/x'"),
        (_agent("{filesystem: , skills: {paths: []}}"), r"skills\.paths: at least 1$"),
        (_agent("skills:"), r"capabilities: skills: .*add filesystem"),
        (_agent("structured_output:"), r"structured_output\.schema: field required"),
        (_agent("structured_output: {schema: {type: objekt}}"), r"structured_output\.schema: .*JSON Schema is wrong"),
        (_agent("subagents: {definitions: {}}"), r"subagents\.definitions"),
        (_agent("subagents: {definitions: {r: {description: d}}}"), r"definitions\.r\.system_prompt: field required"),
        (
            _agent("subagents: {definitions: {r: {description: d, system_prompt: s, model: {nam: x}}}}"),
            r"definitions\.r\.model\.nam: unknown field.*name, base_url",
        ),
        (_agent("bash: {deny: [[git push]]}"), r"bash\.deny: .*words apart"),
        (_agent("bash: {denied: [[git, push]]}"), r"bash\.denied: unknown field.*allow, deny, timeout_s"),
        (GOOD + "    agents: {Bad Name: {}}\n", r"tenants\.default\.agents\.Bad Name.*lowercase letters"),
        (GOOD + "model: {input_usd_per_mtok: 1}\n", "set both prices or neither"),
        (
            GOOD + "database_url: sqlite+aiosqlite:////srv/a.db\n",
            r"database_url: .*no longer used: write sqlite:////srv/a\.db$",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(Misconfigured, match=named):
        Config.load(_write(tmp_path, text))


@pytest.mark.parametrize(
    "text, said",
    [
        (
            GOOD + "agents: {a: {capabilities: [filesystem, todos]}}\n",
            "agents.a.capabilities: a mapping is expected, as in `capabilities: {filesystem: , bash: {timeout_s: 60}}`",
        ),
        (
            _agent("todos: true"),
            "agents.a.capabilities.todos: no value is allowed, it has no settings; write `todos:` to enable it",
        ),
        (_agent("filesystem: false"), "write `filesystem:` to enable it, or leave it out"),
        (_agent("attachments: {file_mib: 8, shown_mib: 4}"), "shown_mib must be at least file_mib"),
        (_agent("bash: 60"), "capabilities.bash: a mapping is expected, as in `bash: {timeout_s: 60}`; known fields"),
        (_agent("flow: stop"), "capabilities.flow: a mapping is expected; known fields: retries, "),
        (_agent("memory: {paths: AGENTS.md}"), "memory.paths: a list is expected, as in [/workspace/AGENTS.md]"),
        (_agent("tool_registry: {always: ls}"), "tool_registry.always: a list is expected, as in [ls, read_file]"),
        (
            _agent("structured_output: {schema: a.json}"),
            "schema: a mapping is expected, as in `schema: {type: object}`",
        ),
        (GOOD + "model: gpt-5-mini\n", "model: a mapping is expected, as in `model: {name: gpt-5-mini}`; known"),
        (GOOD + "agents: [a]\n", "agents: a mapping is expected, as in `agents: {default: {"),
        (GOOD + "agents: {a: b}\n", "agents.a: a mapping is expected; known fields: system_prompt, "),
        ("tenants: [a]\n", "tenants: a mapping is expected, as in `tenants: {default: {policy: "),
    ],
)
def test_what_is_expected_is_said_in_the_words_of_the_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Misconfigured, match=re.escape(said)) as raised:
        Config.load(_write(tmp_path, text))
    assert not re.search("Settings|tuple|dictionary|instance", str(raised.value))


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "state_dir: a\n" + GOOD + "state_dir: b\n",
            "airlock.yaml:5: state_dir: written twice; the first is in line 1.",
        ),
        (GOOD + "agents:\n  m: {}\n  m: {}\n", "airlock.yaml:6: m: written twice; the first is in line 5. Keep one"),
    ],
)
def test_a_field_that_is_written_twice_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Misconfigured, match=re.escape(said)):
        Config.load(_write(tmp_path, text))


def test_a_field_that_a_merge_brings_may_be_written_again(tmp_path: Path) -> None:
    agents = "agents:\n  a: &a {system_prompt: one, model: {name: m}}\n  b: {<<: *a, system_prompt: two}\n"
    other = Config.load(_write(tmp_path, GOOD + agents)).agents["b"]
    assert other.system_prompt == "two"
    assert other.model is not None


@pytest.mark.parametrize(
    "agents, names",
    [
        ("", {"default"}),
        ("agents:\n", {"default"}),
        ("agents: {m: }\n", {"default", "m"}),
        ("agents: {default: }\n", {"default"}),
    ],
)
def test_an_agent_without_a_value_has_its_defaults_and_the_usual_one_stays(
    tmp_path: Path, agents: str, names: set[str]
) -> None:
    loaded = Config.load(_write(tmp_path, GOOD + agents)).agents
    assert set(loaded) == names
    assert all(agent == AgentSettings() for agent in loaded.values())


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
    text = GOOD + "  rich:\n    policy: p.yaml\n    model: {name: better}\n"
    config = Config.load(_write(tmp_path, text))
    assert config.model_of("rich").resolved_name() == "better"
    assert config.model_of("default").resolved_name() == "from-environment"


HOUSE = {
    "name": "house",
    "base_url": "http://house/v1",
    "api_key_env": "HOUSE_KEY",
    "stream": False,
    "api": "chat_completions",
    "connect_timeout_s": 3.0,
    "idle_timeout_s": 9.0,
    "timeout_s": 90.0,
    "proxy": "http://proxy:3128",
    "max_output_tokens": 900,
    "context_window_tokens": 5000,
    "input_usd_per_mtok": 1.0,
    "output_usd_per_mtok": 2.0,
    "cached_input_usd_per_mtok": 0.5,
    "reasoning_usd_per_mtok": 2.5,
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 4,
    "stop": ("END",),
    "reasoning_effort": "low",
    "max_tokens_name": "max_completion_tokens",
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "extra": {"top_k": 5},
    "response_format": "json_schema",
    "prompt_cache": "prompt_cache_key",
    "send_reasoning": False,
    "store_reasoning": True,
    "concurrent_requests": 2,
    "headers": {"x-title": "house"},
    "query": {"api-version": "1"},
    "ca_file": "/etc/house.pem",
    "client_cert_file": "/etc/client.pem",
    "client_key_file": "/etc/key.pem",
    "fallbacks": (),
}
PRICES = ("input_usd_per_mtok", "output_usd_per_mtok", "cached_input_usd_per_mtok", "reasoning_usd_per_mtok")
_UNSET = ModelSettings().model_dump()
# What another model than the one around it does not take over, and what a model at another endpoint does not either.
OF_ANOTHER_MODEL = {
    name: _UNSET[name]
    for name in (
        *("context_window_tokens", *PRICES, "temperature", "top_p", "seed", "stop", "reasoning_effort"),
        *("max_tokens_name", "tool_choice", "parallel_tool_calls", "extra"),
    )
}
OF_ANOTHER = OF_ANOTHER_MODEL | {
    name: _UNSET[name]
    for name in (
        *("response_format", "prompt_cache", "concurrent_requests", "headers", "query", "ca_file"),
        *("client_cert_file", "client_key_file", "send_reasoning"),
    )
}


@pytest.mark.parametrize(
    "inner, expected",
    [
        ({}, {}),
        ({"stream": True, "timeout_s": 3}, {}),
        ({"name": "house", "max_output_tokens": None}, {}),
        ({"base_url": "http://house/v1"}, {}),
        ({"api_key_env": "OTHER_KEY"}, {}),
        ({"name": "small"}, OF_ANOTHER_MODEL),
        ({"name": "small", "input_usd_per_mtok": 0, "output_usd_per_mtok": 3}, OF_ANOTHER_MODEL),
        ({"input_usd_per_mtok": None}, dict.fromkeys(PRICES)),
        ({"base_url": "http://b/v1", "api_key_env": "OTHER_KEY"}, OF_ANOTHER),
        ({"base_url": "http://b/v1", "api_key_env": "HOUSE_KEY"}, OF_ANOTHER),
    ],
)
def test_what_a_model_leaves_unset_comes_from_the_level_around_it(
    inner: dict[str, Any], expected: dict[str, Any]
) -> None:
    whole = ModelSettings.model_validate(inner).within(ModelSettings.model_validate(HOUSE))
    assert whole.model_dump() == {**HOUSE, **expected, **inner}


@pytest.mark.parametrize("endpoint", ["http://b/v1", None])
def test_a_key_is_not_sent_to_an_endpoint_that_it_was_not_named_for(endpoint: str | None) -> None:
    with pytest.raises(Misconfigured, match=r"^where\.base_url: set api_key_env beside it.*; HOUSE_KEY belongs "):
        ModelSettings(base_url=endpoint).within(ModelSettings.model_validate(HOUSE), "where")


def test_fallbacks_inherit_from_the_model_before_them_and_belong_to_it() -> None:
    spare = {"name": "spare", "temperature": 0.1}
    away = {"base_url": "http://b/v1", "api_key_env": None}
    model = ModelSettings.model_validate({**HOUSE, "fallbacks": [spare, away]})
    first, second, third = model.in_order()
    assert first is model
    assert (second.resolved_name(), second.resolved_base_url(), second.temperature) == ("spare", "http://house/v1", 0.1)
    assert (second.headers, second.seed, second.timeout_s) == ({"x-title": "house"}, None, 90.0)
    assert (third.resolved_name(), third.resolved_api_key(), third.headers) == ("house", "", {})
    assert ModelSettings(name="small").within(model).fallbacks == ()
    assert ModelSettings(timeout_s=3).within(model).fallbacks == model.fallbacks
    keyless = ModelSettings.model_validate({**HOUSE, "fallbacks": [{"base_url": "http://b/v1"}]})
    with pytest.raises(Misconfigured, match=r"^where\.fallbacks\.0\.base_url: set api_key_env"):
        keyless.in_order("where")


def test_an_endpoint_without_keys_needs_no_variable() -> None:
    keyless = ModelSettings.model_validate({"base_url": "http://b/v1", "api_key_env": None})
    assert keyless.within(ModelSettings.model_validate(HOUSE)).resolved_api_key() == ""


@pytest.mark.parametrize(
    "fields, problem",
    [
        ({"temperature": 3}, "temperature: "),
        ({"temperature": float("nan")}, "temperature: "),
        ({"top_p": 0}, "top_p: "),
        ({"stop": "END"}, r"stop: a list is expected, as in \[END\]"),
        ({"max_tokens_name": "max_length"}, "max_tokens_name: .*max_completion_tokens"),
        ({"tool_choice": "any thing"}, "tool_choice: "),
        ({"prompt_cache": True}, "prompt_cache: .*cache_control"),
        ({"headers": {"bad name": "x"}}, "headers.*cannot be the name of a header"),
        ({"headers": {"x": "line\nbreak"}}, r"headers.*put a secret in \$\{VARIABLE\}"),
        ({"query": ["a"]}, "query: a mapping is expected"),
        ({"proxy": "proxy:3128"}, "proxy: "),
        ({"client_key_file": "/k"}, "client_key_file: set client_cert_file too"),
        ({"extra": {"messages": []}}, "extra: messages: the gateway sends this itself"),
        ({"api": "responses", "seed": 1}, "api: the Responses API has no seed"),
        ({"reasoning_usd_per_mtok": 1}, "cached_input_usd_per_mtok and reasoning_usd_per_mtok: set the two other"),
    ],
)
def test_a_setting_that_no_endpoint_could_use_is_refused_by_its_name(
    fields: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    text = yaml.safe_dump({"model": fields, "tenants": {"default": {"policy": "p.yaml"}}})
    with pytest.raises(Misconfigured, match=problem):
        Config.load(_write(tmp_path, text))


@pytest.mark.parametrize("inner, problem", [({"seed": 1}, "seed"), ({"name": "small", "stop": ["END"]}, "stop")])
def test_settings_that_do_not_fit_what_they_inherit_are_refused(inner: dict[str, Any], problem: str) -> None:
    outer = ModelSettings(api="responses", name="house")
    with pytest.raises(Misconfigured, match=rf"^where\.api: .*{problem}"):
        ModelSettings.model_validate(inner).within(outer, "where")
    assert ModelSettings.model_validate({**inner, "api": "chat_completions"}).within(outer).api == "chat_completions"


def test_headers_and_query_take_secrets_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"headers": {"authorization": "Basic ${USER_PART}"}, "query": {"key": "${KEY_PART}"}}
    model = ModelSettings.model_validate(fields)
    with pytest.raises(
        Misconfigured, match="the model of agent a: headers: set USER_PART in the gateway's environment"
    ):
        model.connection("the model of agent a")
    monkeypatch.setenv("USER_PART", "u1")
    monkeypatch.setenv("KEY_PART", "k1")
    connection = model.connection()
    assert (connection.headers, connection.query) == ({"authorization": "Basic u1"}, {"key": "k1"})


def test_a_certificate_that_cannot_be_used_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    model = ModelSettings(ca_file=str(tmp_path / "absent.pem"))
    with pytest.raises(Misconfigured, match=r"the model: ca_file: .*absent\.pem has no certificates that can be read"):
        model.connection()


def test_a_tenants_model_is_the_gateways_in_what_it_leaves_unset(tmp_path: Path) -> None:
    text = (
        "model: {name: house, base_url: http://house/v1, api_key_env: HOUSE_KEY}\n"
        "tenants:\n"
        "  a: {policy: p.yaml, model: {name: small}}\n"
        "  b: {policy: p.yaml, model: {base_url: http://b/v1}}\n"
    )
    config = Config.load(_write(tmp_path, text))
    ours = config.model_of("a")
    assert (ours.name, ours.base_url, ours.api_key_env) == ("small", "http://house/v1", "HOUSE_KEY")
    with pytest.raises(Misconfigured, match=r"^tenants\.b\.model\.base_url: "):
        config.model_of("b")


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
    with pytest.raises(Misconfigured, match=r"agents\.model\.capabilities\.todo: unknown field.*todos"):
        Config.load(_write(tmp_path, text))
