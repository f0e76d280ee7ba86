"""`when`: a condition in CEL, the Common Expression Language, checked before it may run and bounded in what it costs.

An expression sees the variables of VARIABLES and the functions of _FUNCTIONS, nothing else. It has no loops but `all`,
`exists`, `exists_one` and `filter` over what the call holds: never one in another, at most four of them, and never
`map`, which can double a text again and again. `matches` runs on RE2 like every other pattern of a policy. What is too
long, too deep or too large to be seen (see `visible`) is absent; using what is absent is an error, and an error denies.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

from gateway.policy.regexes import compile_regex

VARIABLES = {
    "tool": "read_file",
    "args": {"path": "/workspace/a"},
    "path": "/workspace/a",
    "argv": ["ls", "-l"],
    "command": "ls -l",
    "host": "pypi.org",
    "port": 443,
    "size_bytes": 10,
    "tenant": "default",
    "thread": "t1",
    "run": "run_1",
    "agent": "coder",
    "now": datetime(2026, 11, 21, 12, tzinfo=UTC),
}
"""What an expression may name, each with a sample. What a call does not have (a path, a host) is absent."""

LIMIT_TEXT_BYTES = 64 * 1024
LIMIT_ITEMS = 256
LIMIT_DEPTH = 6
_LIMIT_LOOPS = 4
_LIMIT_INTEGER = 2**53

_LOOPS = frozenset({"all", "exists", "exists_one", "filter"})
_CONVERSIONS = frozenset({"int", "uint", "double", "string", "timestamp", "duration", "type"})
_CLOCK = frozenset(
    f"get{part}"
    for part in ("Date", "DayOfMonth", "DayOfWeek", "DayOfYear", "FullYear", "Hours", "Minutes", "Month", "Seconds")
)
_FUNCTIONS = _LOOPS | _CONVERSIONS | _CLOCK | {"size", "has", "contains", "startsWith", "endsWith", "matches"}
_OWN_MATCHES = "airlock_matches"

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<text>[rR](?:"[^"\n]*"|'[^'\n]*')|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>\.?[0-9][0-9A-Za-z.]*(?:(?<=[eE])[+-][0-9]+)?)
    |(?P<mark>==|!=|<=|>=|&&|\|\||[-+*/%!=<>&|?:.,()\[\]{}])""",
    re.VERBOSE,
)


@cache
def _evaluator() -> ModuleType:
    """Return the library. It brings its command line with it, which a gateway without a `when` need not wait for."""
    import cel  # noqa: PLC0415

    return cel


class ExpressionError(Exception):
    """An expression that has no answer for a call; str() says why."""


@dataclass(frozen=True)
class Expression:
    """A compiled expression; `variables` are those that it sees."""

    variables: frozenset[str]
    program: Any

    def holds(self, variables: Callable[[], Any]) -> bool:
        """Return its answer over what `variables` returns, a context of `context`. Raises ExpressionError."""
        try:
            answer = self.program.execute(variables())
        except Exception as error:  # whatever the evaluator raises has one meaning: no answer
            raise ExpressionError(_sentence(error)) from error
        if not isinstance(answer, bool):
            raise ExpressionError("its result is not true or false")
        return answer


def context(variables: Mapping[str, object], own: Callable[[str], object] | None = None) -> Any:
    """Return what expressions are evaluated over, of variables from `all_visible`, which are converted only once.

    `own` is asked for a name first, each time that an expression uses it, and returns a small visible value or None.
    """
    made = _evaluator().Context(variables=dict(variables))
    made.add_function(_OWN_MATCHES, lambda text, pattern: compile_regex(pattern).search(text.encode()) is not None)
    if own is not None:
        made.set_variable_resolver(own)
    return made


def all_visible(variables: Mapping[str, object]) -> dict[str, object]:
    """Return the variables as expressions see them; what is not visible is absent."""
    seen = {name: visible(value) for name, value in variables.items()}
    return {name: value for name, value in seen.items() if value is not _ABSENT}


_ABSENT = object()
_SURROGATE = re.compile("[\ud800-\udfff]")


def visible(value: object, depth: int = 0) -> object:
    """Return a value as expressions see it, without what is too long, too deep or cannot be said in CEL."""
    if value is None or isinstance(value, bool | float | datetime):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _LIMIT_INTEGER else _ABSENT
    if isinstance(value, str):
        fits = len(value.encode("utf-8", "surrogatepass")) <= LIMIT_TEXT_BYTES
        return value if fits and not _SURROGATE.search(value) else _ABSENT
    if depth >= LIMIT_DEPTH or not isinstance(value, Mapping | list | tuple) or len(value) > LIMIT_ITEMS:
        return _ABSENT
    if isinstance(value, Mapping):
        items = {name: visible(item, depth + 1) for name, item in value.items() if visible(name) is not _ABSENT}
        return {name: item for name, item in items.items() if item is not _ABSENT}
    entries = [visible(item, depth + 1) for item in value]
    # A list with a hole in it would be another list.
    return _ABSENT if any(entry is _ABSENT for entry in entries) else entries


@lru_cache(maxsize=4096)
def compile_expression(text: str) -> Expression:
    """Compile an expression. Raises ValueError that says what is wrong and what is allowed."""
    tokens = _tokens(text)
    _check_calls(tokens)
    try:
        named = frozenset(_evaluator().compile(text).variables())
        program = _evaluator().compile(_with_own_matches(tokens))
    except ValueError as error:
        raise ValueError(f"not an expression of CEL: {_sentence(error)}") from error
    except Exception as error:  # a crash of the parser is a bad expression too
        raise ValueError("not an expression of CEL") from error
    unknown = named - set(VARIABLES) - _loop_variables(tokens)
    if unknown:
        raise ValueError(f"unknown name {min(unknown)!r}; the names are: {', '.join(VARIABLES)}")
    expression = Expression(named & set(VARIABLES), program)
    try:
        answer = program.execute(context(VARIABLES))
    except Exception:  # without values it may fail in any way, and says nothing of its type then
        return expression
    if isinstance(answer, bool):
        return expression
    raise ValueError(f"its result must be true or false, not {str(answer)[:50]!r}; compare it with something")


def _tokens(text: str) -> list[tuple[str, str]]:
    if '"""' in text or "'''" in text:
        raise ValueError("texts of several lines (three quotes) are not allowed in when")
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None or text.startswith("//", position):
            shown = text[position : position + 20]
            raise ValueError(f"{shown!r} is not understood; when is an expression of CEL without comments")
        position = found.end()
        kind = str(found.lastgroup)
        if kind == "text" and tokens and tokens[-1][0] == "name" and not text[found.start() - 1].isspace():
            raise ValueError("a text with a prefix other than r is not allowed in when")
        if kind != "space":
            tokens.append((kind, found[0]))
    return tokens


def _check_calls(tokens: list[tuple[str, str]]) -> None:
    """Raise ValueError for what an expression may not call, or not there."""
    open_loops: list[bool] = []
    loops = 0
    for place, (kind, word) in enumerate(tokens):
        if kind == "mark" and word in "([{":
            kind_before, called = tokens[place - 1] if place else ("", "")
            is_call = word == "(" and kind_before == "name" and called != "in"
            if is_call and called not in _FUNCTIONS:
                raise ValueError(f"{called}() is not allowed in when; allowed: {', '.join(sorted(_FUNCTIONS))}")
            is_loop = is_call and called in _LOOPS
            if is_loop and any(open_loops):
                raise ValueError(f"{called}() inside another loop is not allowed in when; write two rules")
            loops += is_loop
            if loops > _LIMIT_LOOPS:
                raise ValueError(f"when has at most {_LIMIT_LOOPS} of all, exists, exists_one and filter")
            if is_call and called == "matches":
                _check_pattern(tokens[place + 1 : place + 3])
            open_loops.append(is_loop)
        elif kind == "mark" and word in ")]}" and open_loops:
            open_loops.pop()


def _check_pattern(argument: list[tuple[str, str]]) -> None:
    if len(argument) < 2 or argument[0][0] != "text" or argument[1] != ("mark", ")"):
        raise ValueError("matches() takes one pattern, a literal string")
    pattern = _evaluator().compile(argument[0][1]).execute({})
    compile_regex(pattern)


def _with_own_matches(tokens: list[tuple[str, str]]) -> str:
    """Return the source with `matches` called by the name under which RE2 is known to it."""
    words = [token for _, token in tokens]
    for place, word in enumerate(words):
        if word == "matches" and words[place + 1 : place + 2] == ["("]:
            words[place] = _OWN_MATCHES
    return " ".join(words)


def _loop_variables(tokens: list[tuple[str, str]]) -> set[str]:
    """Return the names that loops give to what they look at."""
    words = [token for _, token in tokens]
    return {
        words[place + 2]
        for place, word in enumerate(words[:-3])
        if word in _LOOPS and words[place + 1] == "(" and words[place + 3] == ","
    }


def _sentence(error: Exception) -> str:
    """Return what an error of the evaluator says, in one short line."""
    if isinstance(error, KeyError):
        return f"there is no {error.args[0] if error.args else ''!r} in this call"
    lines = str(error).splitlines() or [type(error).__name__]
    said = lines[0]
    if "Syntax error" in said or "ERROR:" in said:
        said = said.partition("ERROR: ")[2].removeprefix("<input>:") or said
    return said.partition(". Check")[0][:200]
