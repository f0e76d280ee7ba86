"""The policy file as data: what an operator may write, and nothing else.

Every model is frozen and refuses unknown fields. Types are strict: `no` is not text and "5" is not a number. What these
types cannot say (line numbers, duplicate ids, examples that are untrue) is checked in loading.py.

Large: the whole schema in one place, which docs/reference is generated from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, get_args
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from gateway.policy.expressions import compile_expression
from gateway.policy.globs import compile_glob
from gateway.policy.hosts import compile_host
from gateway.policy.images import ImageRule, compile_image_glob, read_image
from gateway.policy.regexes import compile_regex

READING_TOOLS = frozenset({"ls", "read_file", "glob", "grep"})
WRITING_TOOLS = frozenset({"write_file", "edit_file"})
FILE_TOOLS = READING_TOOLS | WRITING_TOOLS
CONNECT = "connect"
"""No tool that a model sees: a connection that a command makes, to a host and a port."""
TOOLS = FILE_TOOLS | {"execute", CONNECT}

AgentTool = Literal[
    "write_todos",
    "metadata_read",
    "metadata_write",
    "metadata_list",
    "find_tools",
    "finish_skill",
    "spawn_subagent",
    "check_subagent",
    "wait_subagent",
    "cancel_subagent",
    "list_subagents",
]
"""What an agent's capabilities bring along: these touch nothing but the run's own state."""
AGENT_TOOLS: frozenset[str] = frozenset(get_args(AgentTool))

ToolName = Literal["ls", "read_file", "write_file", "edit_file", "glob", "grep", "execute", "connect", AgentTool]
_TOOL_SETS = {"read": ("ls", "read_file", "glob", "grep"), "write": ("write_file", "edit_file")}
RESERVED_RULES = frozenset({"default-deny", "opaque", "invalid-arguments", "quota", "approval", "redaction"})

_TOOL_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

Text = Annotated[str, Field(min_length=1, max_length=2000)]
WORDS_FORM = 'write lists of words, as in [[git, [status, diff]], [ls]]; words like "no" and "1" need quotes'
"""What argv is, for who wrote something else."""


def check_program_name(name: str) -> None:
    """Raise ValueError for a name of a program that is not one word."""
    if len(name.split()) != 1:
        raise ValueError(f"{name!r} is not one word; write the words apart: [git, status]")


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
    if not isinstance(tools, list | tuple):
        return tools
    named: Iterable[Any] = (
        tool for name in tools for tool in (_TOOL_SETS.get(name, (name,)) if isinstance(name, str) else (name,))
    )
    return tuple(dict.fromkeys(named)) if all(isinstance(name, str) for name in tools) else tuple(tools)


Glob = Annotated[str, Field(max_length=1024), _compiles(compile_glob)]
Host = Annotated[str, Field(max_length=300), _compiles(compile_host)]
Regex = Annotated[str, _compiles(compile_regex)]
Image = Annotated[str, Field(min_length=1), _compiles(read_image)]
ImageGlob = Annotated[str, _compiles(compile_image_glob)]
ImageGlobs = Annotated[tuple[ImageGlob, ...], Field(min_length=1, max_length=1000)]
Expression = Annotated[str, Field(min_length=1, max_length=2000), _compiles(compile_expression)]
RuleId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Literals = Annotated[tuple[Text, ...], Field(min_length=1, max_length=100)]
Tools = Annotated[tuple[ToolName, ...], BeforeValidator(_whole_tool_sets), Field(min_length=1)]


class Section(BaseModel):
    """A mapping of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


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
            raise ValueError("a placeholder is one of path, number, matches and end")
        return self


ArgvWord = Text | Literals | Placeholder
"""A literal word, a list of alternatives, "*" for exactly one word of any text, or a placeholder."""

ArgvPrefix = Annotated[tuple[ArgvWord, ...], Field(min_length=1, max_length=32)]


class SandboxSection(Section):
    """What the tenant's sandboxes are made of. `mib` is 1,048,576 bytes; memory includes swap."""

    image: Image = Field("airlock-sandbox", description="A name, a name with a digest (NAME@sha256:...), or an id.")
    images: ImageGlobs | None = Field(
        None, description="The images that may be used, as python:3.12* or registry.example.com/**; unset means any."
    )
    require_digest: bool = Field(default=False, description="Refuse an image that is named without its digest.")
    runtime: Literal["runc", "runsc"] = "runc"
    memory_mib: int = Field(1024, ge=64, le=1_048_576)
    cpus: float = Field(1.0, gt=0, le=1024, allow_inf_nan=False)
    pids: int = Field(512, ge=16, le=65_536)
    workspace_mib: int = Field(2048, ge=1, le=1_048_576)
    workspace_files: int = Field(500_000, ge=100, le=100_000_000, description="Files and directories in a workspace.")
    tmp_mib: int = Field(256, ge=1, le=1_048_576)
    home: Literal["workspace", "read_only"] = Field(
        "workspace",
        description="HOME of commands: /workspace, or / that they cannot write, so that no file of theirs configures a "
        "later command; caches are then below /tmp.",
    )
    seccomp_filters: bool = Field(
        default=False, description="Programs may install seccomp filters of their own, as a browser's sandbox does."
    )
    idle_timeout_s: float | None = Field(
        None,
        ge=1,
        le=604_800,
        allow_inf_nan=False,
        description="A sandbox that is idle for so long is stopped; unset means as the configuration says.",
    )
    snapshots: Literal["asked", "run", "step"] = Field(
        "asked",
        description="When files are kept: when asked for; also after each run that called tools, or each such step.",
    )
    snapshots_kept: int = Field(32, ge=1, le=1000, description="How many automatic snapshots of a thread are kept.")

    @property
    def image_rule(self) -> ImageRule:
        return ImageRule(self.images, self.require_digest)


class LimitsSection(Section):
    """What a run and its subagents may use together. `timeout_s` is the longest one execute may take.

    Seconds are wall time. `cost_usd` is by the model's prices, and unset means that money is not limited. A call
    that is not approved within `approval_s` is refused; the wait does not count as `run_s`.
    """

    timeout_s: float = Field(300.0, gt=0, le=86_400, allow_inf_nan=False)
    steps: int = Field(25, ge=1, le=10_000)
    output_tokens: int = Field(32_768, ge=1, le=100_000_000)
    tool_calls: int = Field(200, ge=1, le=1_000_000)
    cost_usd: float | None = Field(None, gt=0, le=1_000_000, allow_inf_nan=False)
    run_s: float = Field(300.0, gt=0, le=604_800, allow_inf_nan=False)
    approval_s: float = Field(86_400.0, gt=0, le=2_592_000, allow_inf_nan=False)


# What the daemon shows of output that it evicts; it refuses more (sandbox/daemon/programs/exec_request.py).
_EXCERPT_LIMIT_CHARS = 100_000


class EvictionSizes(Section):
    """Above `limit_chars` characters a result stays in the sandbox; its head and tail come back.

    What a command prints stays there above 1 MiB also where `limit_chars` is more.
    """

    limit_chars: int = Field(80_000, ge=100, le=10_000_000)
    head_chars: int = Field(2000, ge=0, le=_EXCERPT_LIMIT_CHARS)
    tail_chars: int = Field(2000, ge=0, le=_EXCERPT_LIMIT_CHARS)

    @model_validator(mode="after")
    def _fits(self) -> EvictionSizes:
        if self.head_chars + self.tail_chars > self.limit_chars:
            raise ValueError("head_chars and tail_chars together must not be more than limit_chars")
        if self.head_chars + self.tail_chars > _EXCERPT_LIMIT_CHARS:
            raise ValueError(f"head_chars and tail_chars together must not be more than {_EXCERPT_LIMIT_CHARS:,}")
        return self


def _evicting_tool(tool: str) -> str:
    if tool in FILE_TOOLS:
        raise ValueError(f"{tool} is never evicted, its results come in pages; name execute or a tool of the agent's")
    if not _TOOL_NAME.fullmatch(tool):
        raise ValueError(f"{tool[:128]!r} is not the name of a tool: 1 to 128 letters, digits, '.', '_' or '-'")
    return tool


class EvictionSection(EvictionSizes):
    """Sizes for all tools, and others for the ones named in `tools`. The six file tools page and never evict."""

    tools: dict[Annotated[str, AfterValidator(_evicting_tool)], EvictionSizes] = Field(
        default_factory=dict, max_length=1000
    )

    def sizes(self, tool: str) -> EvictionSizes:
        return self.tools.get(tool, self)


# No tenant may fill the database that it shares with others: what holds where nothing is set.
_THREADS = 100_000
_SNAPSHOTS = 100
_STORED_BYTES = 10 * 1024 * 1024 * 1024


class QuotasSection(Section):
    """What all runs and calls of the tenant may use together, on all gateways; unset means that it is not counted.

    Minutes and days are those of the clock, in UTC. Bytes are those of results and of files that services move.
    What is stored has a limit always: unset it is 100,000 threads, 10 GiB of messages, events and journal, and 100
    snapshots with 10 GiB on the gateway's disk.
    """

    runs_at_once: int | None = Field(None, ge=1, le=100_000)
    tool_calls_per_minute: int | None = Field(None, ge=1, le=10_000_000)
    sandboxes_per_minute: int | None = Field(
        None, ge=1, le=1_000_000, description="Sandboxes that are made; one that lives or is resumed is none."
    )
    tokens_per_day: int | None = Field(None, ge=1, le=2**53)
    cost_usd_per_day: float | None = Field(None, gt=0, le=10_000_000, allow_inf_nan=False)
    bytes_per_day: int | None = Field(None, ge=1, le=2**53)
    threads: int | None = Field(None, ge=1, le=2**53)
    stored_bytes: int | None = Field(None, ge=1, le=2**53)
    snapshots: int | None = Field(None, ge=1, le=100_000)
    snapshot_bytes: int | None = Field(None, ge=1, le=2**53)

    @property
    def threads_limit(self) -> int:
        return self.threads or _THREADS

    @property
    def stored_bytes_limit(self) -> int:
        return self.stored_bytes or _STORED_BYTES

    @property
    def snapshots_limit(self) -> int:
        return self.snapshots or _SNAPSHOTS

    @property
    def snapshot_bytes_limit(self) -> int:
        return self.snapshot_bytes or _STORED_BYTES


class RedactedPattern(Section):
    """A secret of the tenant's own. What matches is replaced; `longest_chars` is the longest one there is."""

    id: RuleId
    pattern: Regex
    longest_chars: int = Field(256, ge=1, le=4096)


class RedactionSection(Section):
    """What is taken out of results before anybody sees them: secrets in well-known formats, and the tenant's own."""

    well_known: bool = True
    patterns: tuple[RedactedPattern, ...] = Field((), max_length=100)


class ResultRule(Section):
    """A rule on what a tool gave back: the result is withheld when it is larger, or when the pattern is in it."""

    id: RuleId
    tools: Tools | None = None
    reason: Text
    over_bytes: int | None = Field(None, ge=0, le=2**40)
    contains: Regex | None = None
    mode: Literal["enforce", "shadow"] = "enforce"

    @model_validator(mode="after")
    def _says_when(self) -> ResultRule:
        if (self.over_bytes is None) == (self.contains is None):
            raise ValueError("a result rule has over_bytes or contains, one of them")
        return self


Example = Text | dict[str, Any]
"""A command line (argv rules), a path (path rules), HOST:PORT (host rules), or the arguments as a mapping."""


class Examples(Section):
    """Calls that the rule must match, and ones that it must not. Its time of day is taken to be now."""

    match: tuple[Example, ...] = Field((), max_length=100)
    not_match: tuple[Example, ...] = Field((), max_length=100)


class SizeRange(Section):
    """How many bytes of UTF-8 a call would write: more than `over`, at most `up_to`."""

    over: int | None = Field(None, ge=0, le=2**40)
    up_to: int | None = Field(None, ge=0, le=2**40)

    @model_validator(mode="after")
    def _is_a_range(self) -> SizeRange:
        if self.over is None and self.up_to is None:
            raise ValueError("size_bytes has over, up_to, or both")
        if self.over is not None and self.up_to is not None and self.over >= self.up_to:
            raise ValueError("no size satisfies both over and up_to")
        return self


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
            raise ValueError("since and until belong together")
        if self.since is None and self.days is None:
            raise ValueError("time has days, since and until, or all three")
        if self.since is not None and self.since == self.until:
            raise ValueError("since and until are the same; leave both out for the whole day")
        return self


class Condition(Section):
    """What a rule is about. All that is given must hold."""

    paths: tuple[Glob, ...] | None = Field(
        None, min_length=1, max_length=1000, description="For file tools: absolute globs, as /workspace/**."
    )
    argv: tuple[ArgvPrefix, ...] | None = Field(
        None,
        min_length=1,
        max_length=1000,
        description="For execute: the first words of a command, as [git, [status, diff]].",
    )
    hosts: tuple[Host, ...] | None = Field(
        None, min_length=1, max_length=1000, description="For connect: pypi.org, pypi.org:443, *.example.com."
    )
    size_bytes: SizeRange | None = Field(None, description="For write tools: how much would be written.")
    time: TimeWindow | None = Field(None, description="Days of the week and hours of the day.")
    when: Expression | None = Field(
        None,
        description="An expression of CEL over tool, args, path, argv, command, host, port, size_bytes, tenant, "
        "thread, run, agent and now. An error denies.",
    )

    @field_validator("argv")
    @classmethod
    def _words_apart(cls, prefixes: tuple[ArgvPrefix, ...] | None) -> tuple[ArgvPrefix, ...] | None:
        for prefix in prefixes or ():
            name = prefix[0]
            if isinstance(name, Placeholder):
                raise ValueError('the name of a program is a word, a list of words or "*"')  # noqa: TRY004 - pydantic takes ValueError only
            for program in (name,) if isinstance(name, str) else name:
                check_program_name(program)
            if any(isinstance(word, Placeholder) and word.end for word in prefix[:-1]):
                raise ValueError("end is the last of the words")
        return prefixes

    def given(self) -> frozenset[str]:
        """Return the names of the conditions that are given."""
        return frozenset(name for name in Condition.model_fields if getattr(self, name) is not None)


class Unless(Condition):
    """An exception: the rule does not match what all of this holds for."""

    @model_validator(mode="after")
    def _says_something(self) -> Unless:
        if not self.given():
            raise ValueError("unless is empty; leave it out")
        return self


class Rate(Section):
    """At most so many calls that this rule lets pass, in each minute, hour or day of the clock (UTC)."""

    calls: int = Field(ge=1, le=10_000_000)
    per: Literal["minute", "hour", "day"]


_ONLY_FOR = {
    "paths": (FILE_TOOLS, "file tools; for execute write argv"),
    "argv": (frozenset({"execute"}), "execute; for file tools write paths"),
    "hosts": (frozenset({CONNECT}), "connect"),
    "size_bytes": (WRITING_TOOLS, "write_file and edit_file"),
}


class Rule(Condition):
    """One rule. Without `paths` it is about every path, without `argv` about every command line, opaque ones too."""

    id: RuleId = Field(description="The name that decisions give, once in a file.")
    tools: Tools = Field(description="The tools it is about: of files, or execute, or connect, or an agent's own.")
    effect: Literal["allow", "ask", "deny"] = Field(description="The strictest of the rules that match wins.")
    reason: Text = Field(description="Why, in words for the model and for who is asked.")
    mode: Literal["enforce", "shadow"] = Field(
        "enforce", description="A rule in shadow decides nothing; what it would have decided is noted."
    )
    unless: Unless | None = Field(None, description="Where all of this holds, the rule does not match.")
    rate: Rate | None = Field(None, description="How often the rule lets a call pass.")
    at_once: int | None = Field(None, ge=1, le=100_000, description="How many such calls may be under way.")
    enforcement: Literal["gateway", "reading"] | None = Field(
        None,
        description="Under enforcement: kernel, what enforces this rule instead: the gateway, for file tools only; or "
        "reading of the command line, for execute.",
    )
    examples: Examples = Field(
        Examples(), description="Calls that it must match, and must not; untrue ones do not load."
    )

    @field_validator("id")
    @classmethod
    def _not_reserved(cls, rule: str) -> str:
        if rule in RESERVED_RULES:
            raise ValueError(f"{rule!r} is a name the gateway itself uses; choose another")
        return rule

    @model_validator(mode="after")
    def _fits_its_tools(self) -> Rule:
        if not TOOLS.issuperset(self.tools):
            if not TOOLS.isdisjoint(self.tools):
                raise ValueError(
                    "a rule is about the agent's own tools, as write_todos, or about others; write two rules"
                )
            own = self.given() | (self.unless.given() if self.unless else frozenset())
            if own - {"time", "when"} or self.examples != Examples():
                raise ValueError("the agent's own tools have time and when only: leave out the rest, and examples")
        for alone in ("execute", CONNECT):
            if alone in self.tools and len(set(self.tools)) > 1:
                raise ValueError("a rule is about execute, about connect or about file tools; write two rules")
        for condition in (self, self.unless):
            for name in condition.given() if condition is not None else ():
                tools, what = _ONLY_FOR.get(name, (None, ""))
                if tools is not None and not tools.issuperset(self.tools):
                    raise ValueError(f"{name} is for {what}")
        accepted = {"gateway": bool(FILE_TOOLS.intersection(self.tools)), "reading": "execute" in self.tools}
        if self.enforcement is not None and not accepted[self.enforcement]:
            raise ValueError("enforcement is gateway for a rule about file tools, and reading for one about execute")
        if self.effect == "deny" and (self.rate is not None or self.at_once is not None):
            raise ValueError("rate and at_once limit the calls that a rule lets pass, so a deny rule cannot have them")
        return self


class Group(Section):
    """Rules to be used by name, here or in another group."""

    use: tuple[RuleId, ...] = Field((), max_length=100)
    rules: tuple[Rule, ...] = Field((), max_length=10_000)


class PolicyTest(Section):
    """A call and what the whole policy must say of it. `at` is the time it is made, as 2026-11-21T03:00:00+00:00."""

    tool: ToolName
    args: dict[str, Any] = Field(default_factory=dict)
    verdict: Literal["allow", "ask", "deny"]
    rule: str | None = Field(None, max_length=128)
    at: Annotated[str, Field(max_length=64)] | None = None


class PolicyDocument(Section):
    """The whole file. Nothing matched means deny; the order of rules never changes a verdict.

    `rules` and the rules of the groups in `use` apply. `opaque` is for command lines that cannot be read for sure.
    """

    version: Literal[1] = Field(description="The version of this language.")
    description: Annotated[str, Field(max_length=2000)] = Field("", description="What the policy is for, for people.")
    sandbox: SandboxSection = SandboxSection()
    limits: LimitsSection = LimitsSection()
    eviction: EvictionSection = EvictionSection()
    quotas: QuotasSection = QuotasSection()
    redaction: RedactionSection = RedactionSection()
    results: tuple[ResultRule, ...] = Field((), max_length=1000)
    enforcement: Literal["reading", "kernel"] = Field(
        "reading",
        description="What holds rules on files for commands: reading the command line, or the sandbox's kernel.",
    )
    opaque: Literal["deny", "ask", "allow"] = Field(
        "deny",
        description="What happens to command lines that cannot be read for sure, where argv would have to judge.",
    )
    groups: dict[RuleId, Group] = Field(
        default_factory=dict, max_length=1000, description="Rules by name, which apply where the name stands in use."
    )
    use: tuple[RuleId, ...] = Field((), max_length=100, description="The groups whose rules apply.")
    rules: tuple[Rule, ...] = Field((), max_length=10_000, description="The rules that apply, in any order.")
    tests: tuple[PolicyTest, ...] = Field(
        (), max_length=1000, description="Calls, and what the whole policy must say of them."
    )
