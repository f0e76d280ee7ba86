"""What an expression may be, and that it cannot run long."""

from __future__ import annotations

import pytest

from gateway.policy.expressions import ExpressionError, all_visible, compile_expression, context


@pytest.mark.parametrize(
    "text,message",
    [
        ("1 +", "not an expression of CEL"),
        ("argz == 1", "unknown name 'argz'; the names are: tool, args"),
        ("path", "must be true or false"),
        ("path + 'x'", "must be true or false"),
        ("argv.map(w, w) == []", "map() is not allowed"),
        ("argv.all(a, argv.exists(b, a == b))", "inside another loop"),
        (" && ".join(["argv.all(a, a == '')"] * 5), "at most 4"),
        ("path.matches(command)", "a literal string"),
        ("path.matches('(?=a)')", "not an RE2 pattern"),
        ("path.matches('(a')", "not an RE2 pattern"),
        ("path.matches('a' + command)", "a literal string"),
        ("open('/etc/passwd')", "open() is not allowed"),
        ("airlock_matches(path, 'x')", "is not allowed"),
        ("path == 'a' // b", "without comments"),
        ("path == '''a'''", "three quotes"),
        ("path == b'a'", "prefix"),
        ("(" * 400 + "true" + ")" * 400, "not an expression"),
        ("path == `a`", "not understood"),
    ],
)
def test_what_is_not_allowed_is_refused_with_what_is(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is what is tested
        compile_expression(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text,holds",
    [
        ("path == 'map(('", False),
        (r"path.matches(r'^/w\w+$')", True),
        ("argv.exists(w, w.matches('^-[a-z]+$')) && !(tool in ['execute'])", True),
        ("argv.filter(w, w.startsWith('-')).size() == 1", True),
        ("size(argv) >= 2 && port == 1e0", False),
        ("1.5 > .5 && 1e-3 < 1.0", True),
    ],
)
def test_expressions_hold_or_not(text: str, holds: bool) -> None:
    variables = {"path": "/words", "argv": ["ls", "-x"], "tool": "ls", "port": 5}
    assert compile_expression(text).holds(lambda: context(variables)) is holds


@pytest.mark.parametrize(
    "value", ["x" * 100_000, "\ud800", ["x"] * 1000, 2**70, object(), [["\ud800"]], {"a": {"a": {"a": {"a": {}}}}}]
)
def test_what_is_too_much_to_look_at_is_absent_and_using_it_is_an_error(value: object) -> None:
    expression = compile_expression("args.x != 1 || args.x.a.a.a.a.a == 1")
    assert context({"args": {"y": 1}}) is not None
    seen = all_visible({"args": {"x": value}})
    with pytest.raises(ExpressionError):
        compile_expression("string(args.x.a.a.a.a.a.a.a) == ''").holds(lambda: context(seen))
    assert expression.variables == {"args"}
