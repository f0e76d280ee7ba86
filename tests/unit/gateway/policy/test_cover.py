"""Whether one condition holds wherever another does: examples, and commands at random to prove a yes wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.argv import compile_argv
from gateway.policy.cover import atoms, covers
from gateway.policy.document import Condition, Rule
from gateway.policy.fields import Placeholder
from gateway.policy.words import Word
from tests.examples import examples

_WORDS = st.one_of(
    st.sampled_from(["a", "b", "5", "*", "/w/x"]),
    st.sampled_from([("a", "b"), ("5", "a"), ("/w/x",)]),
    st.sampled_from(
        [
            Placeholder(matches="[a-c]"),
            Placeholder(matches=".*"),
            Placeholder(number={"least": 1, "most": 9}),  # type: ignore[arg-type]
            Placeholder(number={"least": 5, "most": 5}),  # type: ignore[arg-type]
            Placeholder(path=("/w/*",)),
            Placeholder(path=("/w/**",)),
        ]
    ),
)
_NAMES = st.sampled_from(["a", "b", "*", ("a", "b")])
_PREFIXES = st.tuples(_NAMES, st.lists(_WORDS, max_size=3), st.booleans()).map(
    lambda drawn: (drawn[0], *drawn[1], *((Placeholder(end=True),) if drawn[2] else ()))
)
_COMMANDS = st.lists(st.sampled_from(["a", "b", "5", "7", "/w/x", "/w/x/y", "05"]), min_size=1, max_size=5)


@examples(500)
@given(_PREFIXES, _PREFIXES, st.lists(_COMMANDS, min_size=5, max_size=30))
def test_a_prefix_that_covers_matches_whatever_the_other_matches(a: Any, b: Any, commands: list[list[str]]) -> None:
    if covers(Condition(argv=(a,)), Condition(argv=(b,))):
        (wide,), (narrow,) = compile_argv([a]), compile_argv([b])
        for command in commands:
            words = [Word(word) for word in command]
            assert wide.surely(words) or not narrow.surely(words), (a, b, command)


@given(_PREFIXES)
def test_a_prefix_covers_itself(prefix: Any) -> None:
    assert covers(Condition(argv=(prefix,)), Condition(argv=(prefix,)))


@pytest.mark.parametrize(
    "wide, narrow",
    [
        ({}, {"paths": ("/a",)}),
        ({"paths": ("/**",)}, {}),
        ({"paths": ("/a/**", "/b/**")}, {"paths": ("/b/c", "/a")}),
        ({"hosts": ("*.example.com",)}, {"hosts": ("a.example.com:443",)}),
        ({"hosts": ("pypi.org",)}, {"hosts": ("pypi.org:443",)}),
        ({"hosts": ("10.0.0.0/8",)}, {"hosts": ("10.1.0.0/16", "10.0.0.1:80")}),
        ({"methods": ("GET", "HEAD")}, {"methods": ("GET",)}),
        ({"url_paths": ("/a/**",)}, {"url_paths": ("/a/b", "/a/*/c")}),
        ({"hosts": ("a.b",)}, {"hosts": ("a.b",), "methods": ("GET",)}),
        ({"size_bytes": {"over": 10}}, {"size_bytes": {"over": 20, "up_to": 30}}),
        ({}, {"when": "true"}),
        ({"time": {"days": ("mon",)}}, {"time": {"days": ("mon",)}}),
    ],
)
def test_a_condition_covers_a_narrower_one_and_not_the_other_way_round(
    wide: dict[str, Any], narrow: dict[str, Any]
) -> None:
    first, second = Condition.model_validate(wide), Condition.model_validate(narrow)
    assert covers(first, second)
    if first != second and wide != {"paths": ("/**",)}:
        assert not covers(second, first)


@pytest.mark.parametrize(
    "a, b",
    [
        ({"hosts": ("*.example.com",)}, {"hosts": ("example.com",)}),
        ({"hosts": ("pypi.org:443",)}, {"hosts": ("pypi.org",)}),
        ({"hosts": ("10.0.0.0/8",)}, {"hosts": ("a.b",)}),
        ({"hosts": ("*.b",)}, {"hosts": ("10.0.0.1",)}),
        ({"methods": ("GET",)}, {}),
        ({"url_paths": ("/**",)}, {}),
        ({"size_bytes": {"up_to": 5}}, {}),
        ({"when": "true"}, {"when": "1 == 1"}),
        ({"argv": (("git",),)}, {}),
    ],
)
def test_what_is_not_sure_is_not_covered(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert not covers(Condition.model_validate(a), Condition.model_validate(b))


def test_a_rule_is_taken_apart_by_tool_glob_and_choice_of_words() -> None:
    files = Rule(id="r", tools=("ls", "grep"), effect="allow", reason="r", paths=("/a", "/b"))
    commands = Rule(id="r", tools=("execute",), effect="allow", reason="r", argv=(("git", ("push", "pull")), ("ls",)))
    requests = Rule.model_validate(
        {"id": "r", "tools": ("connect",), "effect": "allow", "reason": "r", "hosts": ("a.b", "10.0.0.0/8")}
        | {"methods": ("GET", "PUT"), "url_paths": ("/a",)}
    )
    assert [atom.shown for atom in atoms(requests)] == ["connect GET|PUT a.b /a", "connect GET|PUT 10.0.0.0/8 /a"]
    assert [atom.shown for atom in atoms(files)] == ["ls /a", "ls /b", "grep /a", "grep /b"]
    assert [atom.shown for atom in atoms(commands)] == ["execute git push", "execute git pull", "execute ls"]


def test_very_many_choices_stay_together() -> None:
    words = tuple(str(number) for number in range(20))
    rule = Rule(id="r", tools=("execute",), effect="allow", reason="r", argv=((words, words, words),))
    assert len(list(atoms(rule))) == 1
