"""The policy file as data: what an operator may write, and nothing else. What its fields are made of is in fields.py.

What types cannot say (line numbers, duplicate ids, examples that are untrue) is checked in loading.py.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from gateway.policy.fields import (
    CONNECT,
    FILE_TOOLS,
    TOOLS,
    WRITING_TOOLS,
    ArgvPrefixes,
    Expression,
    Globs,
    Hosts,
    Image,
    ImageGlobs,
    Methods,
    Moment,
    Regex,
    RuleId,
    Section,
    SizeRange,
    Text,
    TimeWindow,
    ToolName,
    Tools,
    UrlGlobs,
)
from sandbox.image_names import ImageRule

RESERVED_RULES = frozenset(
    {"default-deny", "opaque", "too-complex", "invalid-arguments", "quota", "approval", "redaction"}
)


class SandboxSection(Section):
    """What the tenant's sandboxes are made of. `mib` is 1,048,576 bytes; memory includes swap."""

    image: Image = Field("airlock-sandbox", description="A name, a name with a digest (NAME@sha256:...), or an id.")
    images: ImageGlobs | None = Field(
        None, description="The images that may be used, as python:3.12* or registry.example.com/**; unset means any."
    )
    require_digest: bool = Field(default=False, description="Refuse an image that is named without its digest.")
    runtime: Literal["runc", "runsc", "kata"] = Field("runc", description="runsc is gVisor; kata is for Kubernetes.")
    memory_mib: int = Field(1024, ge=64, le=1_048_576)
    cpus: float = Field(1.0, gt=0, le=1024)
    pids: int = Field(512, ge=16, le=65_536)
    workspace_mib: int = Field(2048, ge=1, le=1_048_576)
    workspace_files: int = Field(500_000, ge=100, le=100_000_000, description="Files and directories in a workspace.")
    tmp_mib: int = Field(256, ge=1, le=1_048_576)
    home: Literal["workspace", "read_only"] = Field(
        "workspace",
        description="HOME of commands: /workspace, or /, where they cannot write and so cannot leave configuration for "
        "later commands; caches are then below /tmp.",
    )
    seccomp_filters: bool = Field(
        default=False, description="Programs may install seccomp filters of their own, as a browser's sandbox does."
    )
    idle_timeout_s: float | None = Field(
        None,
        ge=1,
        le=604_800,
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

    timeout_s: float = Field(300.0, gt=0, le=86_400)
    steps: int = Field(25, ge=1, le=10_000)
    output_tokens: int = Field(32_768, ge=1, le=100_000_000)
    tool_calls: int = Field(200, ge=1, le=1_000_000)
    cost_usd: float | None = Field(None, gt=0, le=1_000_000)
    run_s: float = Field(300.0, gt=0, le=604_800)
    approval_s: float = Field(86_400.0, gt=0, le=2_592_000)


# What the daemon shows of output that it evicts; it refuses more (sandbox/daemon/programs/exec_request.py).
_EXCERPT_LIMIT_CHARS = 100_000
_AGENT_TOOL_NAME = re.compile(r"[A-Za-z0-9._/-]{1,128}")


class EvictionSizes(Section):
    """Above `limit_chars` characters a result stays in the sandbox; its head and tail come back.

    A command's output over 1 MiB always stays there, even if `limit_chars` is higher.
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
    if not _AGENT_TOOL_NAME.fullmatch(tool):
        raise ValueError(f"{tool[:128]!r} is not the name of a tool: 1 to 128 letters, digits, '.', '_', '-' or '/'")
    return tool


class EvictionSection(EvictionSizes):
    """Sizes for all tools, and others for the ones named in `tools`. The six file tools page and never evict."""

    tools: dict[Annotated[str, AfterValidator(_evicting_tool)], EvictionSizes] = Field({}, max_length=1000)

    def sizes(self, tool: str) -> EvictionSizes:
        return self.tools.get(tool, self)


_STORED_BYTES = 10 * 1024 * 1024 * 1024


class QuotasSection(Section):
    """What all runs and calls of the tenant may use together, on all gateways; unset means that it is not counted.

    Minutes and days are those of the clock, in UTC. Bytes are those of results, of files that services
    move, of the input and output of programs and background processes, and of connections through the proxy and to
    forwarded ports. What is stored (messages, events and journal; snapshots, wherever they are kept) always has a
    limit: no tenant may fill what it shares with others.
    """

    runs_at_once: int | None = Field(None, ge=1, le=100_000)
    tool_calls_per_minute: int | None = Field(None, ge=1, le=10_000_000)
    sandboxes_per_minute: int | None = Field(
        None, ge=1, le=1_000_000, description="Sandboxes created; using or resuming one does not count."
    )
    tokens_per_day: int | None = Field(None, ge=1, le=2**53)
    cost_usd_per_day: float | None = Field(None, gt=0, le=10_000_000)
    bytes_per_day: int | None = Field(None, ge=1, le=2**53)
    threads: int = Field(100_000, ge=1, le=2**53)
    stored_bytes: int = Field(_STORED_BYTES, ge=1, le=2**53)
    snapshots: int = Field(100, ge=1, le=100_000)
    snapshot_bytes: int = Field(_STORED_BYTES, ge=1, le=2**53)


class NetworkSection(Section):
    """What the connections of one sandbox may use. Seconds are wall time; bytes that are unset are not limited.

    A connection waits for an approval for `wait_s`, has `connect_s` until its host is found and dialled, and is closed
    after `idle_s` without a byte, `total_s` in all, or more bytes than it may send (up) or receive (down).
    """

    connections: int = Field(100, ge=1, le=10_000, description="Connections at once.")
    tenant_connections: int = Field(
        1000, ge=1, le=100_000, description="Connections at once of all the tenant's sandboxes on one gateway process."
    )
    connections_per_minute: int = Field(600, ge=1, le=1_000_000, description="New ones, those that are refused too.")
    waiting: int = Field(8, ge=0, le=1000, description="Connections that may wait for an approval at once.")
    wait_s: float = Field(300.0, gt=0, le=86_400)
    connect_s: float = Field(10.0, gt=0, le=300)
    idle_s: float = Field(300.0, gt=0, le=86_400)
    total_s: float = Field(3600.0, gt=0, le=604_800)
    bytes_up: int | None = Field(None, ge=1, le=2**53)
    bytes_down: int | None = Field(None, ge=1, le=2**53)


class RedactedPattern(Section):
    """A secret of the tenant's own. What matches is replaced; `longest_chars` is the length of the longest secret."""

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
            raise ValueError("a result rule needs exactly one of over_bytes and contains")
        return self


Example = Text | dict[str, Any]
"""A command line (argv rules), a path (path rules), HOST:PORT (host rules), or the arguments as a mapping."""


class Examples(Section):
    """Calls that the rule must match, and ones that it must not. Its time of day is taken to be now."""

    match: tuple[Example, ...] = Field((), max_length=100)
    not_match: tuple[Example, ...] = Field((), max_length=100)


class Condition(Section):
    """What a rule is about. All that is given must hold."""

    paths: Globs | None = Field(None, description="For file tools: absolute globs, as /workspace/**.")
    argv: ArgvPrefixes | None = Field(
        None, description="For execute: the first words of a command, as [git, [status, diff]]."
    )
    hosts: Hosts | None = Field(
        None, description="For connect: pypi.org, pypi.org:443, *.example.com, 10.0.0.0/8, [fd00::/8]:443."
    )
    methods: Methods | None = Field(None, description="For connect, where the gateway sees the requests: [GET, HEAD].")
    url_paths: UrlGlobs | None = Field(
        None, description="For connect, where the gateway sees the requests: globs of the URL's path, as /simple/**."
    )
    size_bytes: SizeRange | None = Field(None, description="For write tools: how much would be written.")
    time: TimeWindow | None = Field(None, description="Days of the week and hours of the day.")
    when: Expression | None = Field(
        None,
        description="An expression of CEL over tool, args, path, argv, command, host, port, size_bytes, tenant, "
        "thread, run, agent and now. An error denies.",
    )

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
    **dict.fromkeys(("hosts", "methods", "url_paths"), (frozenset({CONNECT}), "connect")),
    "size_bytes": (WRITING_TOOLS, "write_file and edit_file"),
}


class Rule(Condition):
    """One rule. Without `paths` it is about every path, without `argv` about every command line, opaque ones too."""

    id: RuleId = Field(description="The rule's name in decisions; unique in the file.")
    tools: Tools = Field(description="The tools it is about: of files, execute, connect, an agent's own, SERVER/TOOL.")
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

    @property
    def all_given(self) -> frozenset[str]:
        """The names of the conditions that are given, those of its exception too."""
        return self.given() | (self.unless.given() if self.unless is not None else frozenset())

    @property
    def is_limited(self) -> bool:
        return self.rate is not None or self.at_once is not None

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
                raise ValueError("a rule cannot mix an agent's own tools, such as write_todos, with others; write two")
            if self.all_given - {"time", "when"} or self.examples != Examples():
                raise ValueError(
                    "the agent's own tools, and those of MCP servers, have time and when only: leave out the rest, and "
                    "examples"
                )
        for alone in ("execute", CONNECT):
            if alone in self.tools and len(set(self.tools)) > 1:
                raise ValueError("execute, connect and file tools cannot share a rule; write one for each kind")
        for name in self.all_given & _ONLY_FOR.keys():
            tools, what = _ONLY_FOR[name]
            if not tools.issuperset(self.tools):
                raise ValueError(f"{name} is for {what}")
        accepted = {"gateway": bool(FILE_TOOLS.intersection(self.tools)), "reading": "execute" in self.tools}
        if self.enforcement is not None and not accepted[self.enforcement]:
            raise ValueError("enforcement is gateway for a rule about file tools, and reading for one about execute")
        if self.effect == "deny" and self.is_limited:
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
    at: Moment | None = None


class PolicyDocument(Section):
    """The whole file. Nothing matched means deny; the order of rules never changes a verdict.

    `rules` and the rules of the groups in `use` apply. `opaque` is for command lines that cannot be read reliably.
    """

    version: Literal[1] = Field(description="The version of this language.")
    description: Annotated[str, Field(max_length=2000)] = Field("", description="What the policy is for, for people.")
    sandbox: SandboxSection = SandboxSection()
    limits: LimitsSection = LimitsSection()
    eviction: EvictionSection = EvictionSection()
    quotas: QuotasSection = QuotasSection()
    network: NetworkSection = NetworkSection()
    redaction: RedactionSection = RedactionSection()
    results: tuple[ResultRule, ...] = Field((), max_length=1000)
    enforcement: Literal["reading", "kernel"] = Field(
        "reading",
        description="What holds rules on files for commands: reading the command line, or the sandbox's kernel.",
    )
    opaque: Literal["deny", "ask", "allow"] = Field(
        "deny",
        description="What happens to command lines that cannot be read reliably, where argv would have to judge.",
    )
    groups: dict[RuleId, Group] = Field(
        default_factory=dict, max_length=1000, description="Named sets of rules; `use` lists those that apply."
    )
    use: tuple[RuleId, ...] = Field((), max_length=100, description="The groups whose rules apply.")
    rules: tuple[Rule, ...] = Field((), max_length=10_000, description="The rules that apply, in any order.")
    tests: tuple[PolicyTest, ...] = Field(
        (), max_length=1000, description="Calls, and what the whole policy must say of them."
    )
