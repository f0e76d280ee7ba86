"""What the fields of a policy file are made of: tools by name, texts that compile, and what conditions compare with.

Every model is frozen and refuses unknown fields. Types are strict: `no` is not text and "5" is not a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticKnownError

from gateway.policy.expressions import compile_expression
from gateway.policy.globs import compile_glob
from gateway.policy.hosts import compile_host
from gateway.policy.regexes import compile_regex
from gateway.policy.url_paths import compile_url_glob
from sandbox.image_names import compile_image_glob, read_image

_TOOL_SETS = {"read": ("ls", "read_file", "glob", "grep"), "write": ("write_file", "edit_file")}
WRITING_TOOLS = frozenset(_TOOL_SETS["write"])
FILE_TOOLS = WRITING_TOOLS | frozenset(_TOOL_SETS["read"])
JUDGED_AS = MappingProxyType({"view_file": "read_file"})
"""Tools that no rule names, each with the one whose rules are about it: to show a file is to read it."""
CONNECT = "connect"
"""No tool that a model sees: a connection that a command makes, to a host and a port."""
TOOLS = FILE_TOOLS | {"execute", CONNECT}

EXECUTE_PYTHON = "execute_python"
"""Its code is not read: what it may do to files is what the sandbox's kernel lets a command do."""

AGENT_TOOLS = tuple(
    """execute_python write_todos metadata_read metadata_write metadata_list find_tools finish_skill spawn_subagent
    check_subagent wait_subagent cancel_subagent list_subagents""".split()  # noqa: SIM905 - one name a line
)
"""What capabilities bring along. All but execute_python touch nothing but the run's own state."""

_OWN_TOOLS = (*_TOOL_SETS["read"], *_TOOL_SETS["write"], "execute", CONNECT, *AGENT_TOOLS)
_SERVER_TOOL = r"^[a-z0-9]+(?:[_-][a-z0-9]+)*/(?:\*|[A-Za-z0-9_./-]+)$"
_SERVER_TOOL_FORM = re.compile(_SERVER_TOOL)
_LIMIT_TOOL_CHARS = 128


def _named_tool(name: str) -> str:
    if name in _OWN_TOOLS or (len(name) <= _LIMIT_TOOL_CHARS and _SERVER_TOOL_FORM.fullmatch(name)):
        return name
    expected = ", ".join(map(repr, (*_OWN_TOOLS, "SERVER/TOOL"))) + " or 'SERVER/*'"
    raise PydanticKnownError("literal_error", {"expected": expected})


_TOOL_SCHEMA = {"anyOf": [{"type": "string", "enum": [*_OWN_TOOLS]}, {"type": "string", "pattern": _SERVER_TOOL}]}
_TOOLS_SCHEMA = {"type": "array", "minItems": 1, "items": {"anyOf": [{"enum": [*_TOOL_SETS]}, _TOOL_SCHEMA]}}
ToolName = Annotated[str, AfterValidator(_named_tool), WithJsonSchema(_TOOL_SCHEMA)]
"""A tool; one of an agent's MCP server is `server/tool`, and `server/*` is all of that server's."""


def rules_of(tool: str) -> tuple[str, ...]:
    """Return the names by which rules are about a tool."""
    tool = JUDGED_AS.get(tool, tool)
    server, slash, name = tool.partition("/")
    return (tool, f"{server}/*") if slash and name != "*" else (tool,)


_METHOD = re.compile(r"[A-Z][A-Z0-9_-]*")

Text = Annotated[str, Field(min_length=1, max_length=2000)]
WORDS_FORM = 'write lists of words, as in [[git, [status, diff]], [ls]]; words like "no" and "1" need quotes'
"""What argv is, for who wrote something else."""


def check_program_name(name: str) -> None:
    """Raise ValueError for a name of a program that is not one word."""
    if len(name.split()) != 1:
        raise ValueError(f"{name!r} is not one word; write the words apart: [git, status]")


def check_method(name: str) -> None:
    """Raise ValueError for a name that is not an HTTP method in capital letters."""
    if not _METHOD.fullmatch(name):
        raise ValueError(f"{name!r} is not an HTTP method; write it in capital letters, such as GET or POST")
    if name == "CONNECT":
        raise ValueError("CONNECT opens a tunnel, whose requests are not seen: leave methods out")


def moment(text: str | None) -> datetime | None:
    """Return a moment from ISO 8601, in UTC unless it names a zone. Raises ValueError that says how to write it."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time; write it as 2026-11-21T03:00:00+00:00") from error
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _compiles(compile_text: Callable[[str], object]) -> AfterValidator:
    """Return a validator that takes the texts that `compile_text` takes, as they are."""

    def check(text: str) -> str:
        compile_text(text)
        return text

    return AfterValidator(check)


def _checked_zone(zone: str) -> str:
    try:
        ZoneInfo(zone)
    except (OSError, ValueError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise ValueError(f"{zone!r} is not a time zone; write one such as UTC or Europe/Berlin") from error
    return zone


def _whole_tool_sets(tools: Any) -> Any:
    """Write out `read` and `write`, because grep reads too and is easily forgotten."""
    if not isinstance(tools, list | tuple) or not all(isinstance(name, str) for name in tools):
        return tuple(tools) if isinstance(tools, list) else tools
    return tuple(dict.fromkeys(tool for name in tools for tool in _TOOL_SETS.get(name, (name,))))


Glob = Annotated[str, Field(max_length=1024), _compiles(compile_glob)]
Moment = Annotated[str, Field(max_length=64), _compiles(moment)]
Host = Annotated[str, Field(max_length=300), _compiles(compile_host)]
UrlGlob = Annotated[str, Field(max_length=1024), _compiles(compile_url_glob)]
Method = Annotated[str, Field(max_length=32), _compiles(check_method)]
Regex = Annotated[str, _compiles(compile_regex)]
Image = Annotated[str, Field(min_length=1), _compiles(read_image)]
ImageGlob = Annotated[str, _compiles(compile_image_glob)]
ImageGlobs = Annotated[tuple[ImageGlob, ...], Field(min_length=1, max_length=1000)]
Expression = Annotated[str, Field(min_length=1, max_length=2000), _compiles(compile_expression)]
RuleId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Literals = Annotated[tuple[Text, ...], Field(min_length=1, max_length=100)]
_Some = Field(min_length=1, max_length=1000)
Globs = Annotated[tuple[Glob, ...], _Some]
Hosts = Annotated[tuple[Host, ...], _Some]
Methods = Annotated[tuple[Method, ...], Field(min_length=1, max_length=100)]
UrlGlobs = Annotated[tuple[UrlGlob, ...], _Some]
Tools = Annotated[
    tuple[ToolName, ...], BeforeValidator(_whole_tool_sets), Field(min_length=1), WithJsonSchema(_TOOLS_SCHEMA)
]


class Section(BaseModel):
    """A mapping of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Between(Section):
    """A range of whole numbers, both ends included."""

    least: int = Field(ge=-(2**53), le=2**53)
    most: int = Field(ge=-(2**53), le=2**53)


class Placeholder(Section):
    """One word of a command, by what it must be: exactly one of these.

    path: a path that matches one of the globs, relative ones seen from /workspace. number: digits in that range.
    matches: text that the pattern matches as a whole. end: no word at all, the command ends here.
    """

    path: tuple[Glob, ...] | None = Field(None, min_length=1, max_length=100)
    number: Between | None = None
    matches: Regex | None = None
    end: Literal[True] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Placeholder:
        if sum(value is not None for value in (self.path, self.number, self.matches, self.end)) != 1:
            raise ValueError("a placeholder needs exactly one of path, number, matches and end")
        return self


ArgvWord = Text | Literals | Placeholder
"""A literal word, a list of alternatives, "*" for exactly one word of any text, or a placeholder."""


def _words_apart(prefix: tuple[ArgvWord, ...]) -> tuple[ArgvWord, ...]:
    name = prefix[0]
    if isinstance(name, Placeholder):
        raise ValueError('the name of a program is a word, a list of words or "*"')  # noqa: TRY004 - pydantic takes ValueError only
    for program in (name,) if isinstance(name, str) else name:
        check_program_name(program)
    if any(isinstance(word, Placeholder) and word.end for word in prefix[:-1]):
        raise ValueError("{end: true} must be the last word")
    return prefix


ArgvPrefix = Annotated[tuple[ArgvWord, ...], Field(min_length=1, max_length=32), AfterValidator(_words_apart)]
ArgvPrefixes = Annotated[tuple[ArgvPrefix, ...], _Some]


class SizeRange(Section):
    """How many bytes of UTF-8 a call would write: more than `over`, at most `up_to`."""

    over: int | None = Field(None, ge=0, le=2**40)
    up_to: int | None = Field(None, ge=0, le=2**40)

    @model_validator(mode="after")
    def _is_a_range(self) -> SizeRange:
        if self.over is None and self.up_to is None:
            raise ValueError("size_bytes needs over, up_to or both")
        if self.over is not None and self.up_to is not None and self.over >= self.up_to:
            raise ValueError("no size satisfies both over and up_to")
        return self

    def holds(self, written: int) -> bool:
        return (self.over is None or written > self.over) and (self.up_to is None or written <= self.up_to)


Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
ClockTime = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]


class TimeWindow(Section):
    """Days of the week and hours of the day. Where `until` is before `since` the window goes over midnight."""

    days: tuple[Weekday, ...] | None = Field(None, min_length=1)
    since: ClockTime | None = None
    until: ClockTime | None = None
    zone: Annotated[str, AfterValidator(_checked_zone)] = "UTC"

    @model_validator(mode="after")
    def _is_a_window(self) -> TimeWindow:
        if (self.since is None) != (self.until is None):
            raise ValueError("set both since and until")
        if self.since is None and self.days is None:
            raise ValueError("time needs days, or since and until, or all three")
        if self.since is not None and self.since == self.until:
            raise ValueError("since and until are the same; leave both out for the whole day")
        return self
