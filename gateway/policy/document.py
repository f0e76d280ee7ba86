"""The policy file as data: what an operator may write, and nothing else.

Every model is frozen and refuses unknown fields. Types are strict: `no` is not text and "5" is not a number. What these
types cannot say (line numbers, duplicate ids, examples that are untrue) is checked in loading.py.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from gateway.policy.globs import compile_glob

READING_TOOLS = frozenset({"ls", "read_file", "glob", "grep"})
WRITING_TOOLS = frozenset({"write_file", "edit_file"})
FILE_TOOLS = READING_TOOLS | WRITING_TOOLS
TOOLS = FILE_TOOLS | {"execute"}

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

ToolName = Literal["ls", "read_file", "write_file", "edit_file", "glob", "grep", "execute", AgentTool]
ReservedRule = Literal["default-deny", "opaque", "invalid-arguments"]
RESERVED_RULES: frozenset[str] = frozenset({"default-deny", "opaque", "invalid-arguments"})

_TOOL_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

Text = Annotated[str, Field(min_length=1, max_length=2000)]


def _checked_glob(glob: str) -> str:
    compile_glob(glob)
    return glob


Glob = Annotated[str, Field(max_length=1024), AfterValidator(_checked_glob)]
Literals = Annotated[tuple[Text, ...], Field(min_length=1, max_length=100)]
ArgvWord = Text | Literals
"""A literal word, a list of alternatives, or "*" for exactly one word of any text."""

ArgvPrefix = Annotated[tuple[ArgvWord, ...], Field(min_length=1, max_length=32)]


class Section(BaseModel):
    """A mapping of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SandboxSection(Section):
    """What the tenant's sandboxes are made of. `mib` is 1,048,576 bytes; memory includes swap."""

    image: Text = "airlock-sandbox"
    runtime: Literal["runc", "runsc"] = "runc"
    memory_mib: int = Field(default=1024, ge=64, le=1_048_576)
    cpus: float = Field(default=1.0, gt=0, le=1024, allow_inf_nan=False)
    pids: int = Field(default=512, ge=16, le=65_536)
    workspace_mib: int = Field(default=2048, ge=1, le=1_048_576)
    tmp_mib: int = Field(default=256, ge=1, le=1_048_576)


class LimitsSection(Section):
    """What a run and its subagents may use together. `timeout_s` is the longest one execute may take.

    Seconds are wall time. `cost_usd` is by the model's prices, and unset means that money is not limited.
    """

    timeout_s: float = Field(default=300.0, gt=0, le=86_400, allow_inf_nan=False)
    steps: int = Field(default=25, ge=1, le=10_000)
    output_tokens: int = Field(default=32_768, ge=1, le=100_000_000)
    tool_calls: int = Field(default=200, ge=1, le=1_000_000)
    cost_usd: float | None = Field(default=None, gt=0, le=1_000_000, allow_inf_nan=False)
    run_s: float = Field(default=300.0, gt=0, le=604_800, allow_inf_nan=False)


class EvictionSizes(Section):
    """Above `limit_chars` characters a result stays in the sandbox; its head and tail come back."""

    limit_chars: int = Field(default=80_000, ge=100, le=10_000_000)
    head_chars: int = Field(default=2000, ge=0, le=10_000_000)
    tail_chars: int = Field(default=2000, ge=0, le=10_000_000)

    @model_validator(mode="after")
    def _fits(self) -> EvictionSizes:
        if self.head_chars + self.tail_chars > self.limit_chars:
            raise ValueError("head_chars and tail_chars together must not be more than limit_chars")
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
        """Return the sizes that hold for a tool."""
        return self.tools.get(tool, self)


class Examples(Section):
    """Command lines (argv rules) or paths (path rules) that the rule must match, and ones that it must not."""

    match: tuple[Text, ...] = Field(default=(), max_length=100)
    not_match: tuple[Text, ...] = Field(default=(), max_length=100)


class Rule(Section):
    """One rule. Without `paths` it is about every path, without `argv` about every command line, opaque ones too."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    tools: tuple[ToolName, ...] = Field(min_length=1)
    effect: Literal["allow", "deny"]
    reason: Text
    mode: Literal["enforce"] = "enforce"
    paths: tuple[Glob, ...] | None = Field(default=None, min_length=1, max_length=1000)
    argv: tuple[ArgvPrefix, ...] | None = Field(default=None, min_length=1, max_length=1000)
    examples: Examples = Examples()

    @field_validator("id")
    @classmethod
    def _not_reserved(cls, rule: str) -> str:
        if rule in RESERVED_RULES:
            raise ValueError(f"{rule!r} is a name the gateway itself uses; choose another")
        return rule

    @field_validator("argv")
    @classmethod
    def _words_apart(cls, prefixes: tuple[ArgvPrefix, ...] | None) -> tuple[ArgvPrefix, ...] | None:
        for prefix in prefixes or ():
            for program in (prefix[0],) if isinstance(prefix[0], str) else prefix[0]:
                if len(program.split()) != 1:
                    raise ValueError(f"{program!r} is not one word; write the words apart: [git, status]")
        return prefixes

    @model_validator(mode="after")
    def _fits_its_tools(self) -> Rule:
        if not TOOLS.issuperset(self.tools):
            if not TOOLS.isdisjoint(self.tools):
                raise ValueError(
                    "a rule is about the agent's own tools, as write_todos, or about others; write two rules"
                )
            if self.paths is not None or self.argv is not None or self.examples != Examples():
                raise ValueError("the agent's own tools have no paths and no argv: leave out paths, argv and examples")
        if "execute" in self.tools and len(set(self.tools)) > 1:
            raise ValueError("a rule is about execute or about file tools, not both; write two rules")
        if self.paths is not None and "execute" in self.tools:
            raise ValueError("paths is for file tools; for execute write argv")
        if self.argv is not None and "execute" not in self.tools:
            raise ValueError("argv is for execute; for file tools write paths")
        return self


class PolicyDocument(Section):
    """The whole file. Nothing matched means deny; the order of rules never changes a verdict."""

    version: Literal[1]
    description: Annotated[str, Field(max_length=2000)] = ""
    sandbox: SandboxSection = SandboxSection()
    limits: LimitsSection = LimitsSection()
    eviction: EvictionSection = EvictionSection()
    opaque: Literal["deny", "allow"] = "deny"
    rules: tuple[Rule, ...] = Field(max_length=10_000)
