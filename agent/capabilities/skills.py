"""Skills: instructions for one kind of task, in SKILL.md files that the model reads when it needs them.

The system prompt has one line per skill. Reading the file makes the skill active: until another skill is read or
finish_skill ends it, only its allowed tools run. Anything that can write to the files can write a skill, so skills
guide a model and are no security boundary: policy is. Invalid ones are listed in the metadata, skills.broken.
"""

import re
from collections.abc import Sequence
from typing import Any

import yaml
from pydantic import JsonValue

from agent.filesystem import FileSystem
from agent.hooks.hook import Hook
from agent.messages import ToolResult, Value
from agent.state import AgentState
from agent.tools.paths import resolved
from agent.tools.tool import Capability, Tool, ToolArguments, ToolContext

LIMIT_BYTES = 4096
"""How much of a file is read, including the --- lines."""

_FENCE = "---"
_NESTING_LIMIT = 8
_NODES_LIMIT = 500


class _PlainLoader(yaml.SafeLoader):
    """Refuses YAML that is expensive to read and that frontmatter does not need.

    A few hundred bytes of aliases can expand to gigabytes, nested brackets take quadratic time, and a value takes some
    50 microseconds.
    """

    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.nodes += 1
        if self.nodes > _NODES_LIMIT:
            raise self._refused(f"more than {_NODES_LIMIT} keys and values are not taken here")
        if self.check_event(yaml.AliasEvent):
            raise self._refused("aliases are not taken here, write the value out")
        return super().compose_node(parent, index)

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 - as PyYAML has it
        if self.flow_level == _NESTING_LIMIT:
            raise self._refused(f"more than {_NESTING_LIMIT} open brackets are not taken here")
        super().fetch_flow_collection_start(TokenClass)

    def _refused(self, problem: str) -> yaml.MarkedYAMLError:
        return yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark())


def frontmatter(head: str) -> dict[str, object]:
    """Return the mapping at the top of a file of which `head` is the first LIMIT_BYTES.

    Raises only ValueError; its message says what is wrong and may quote the text.
    """
    lines = [line.rstrip() for line in head.removeprefix("\ufeff").split("\n")]
    if lines[0] != _FENCE:
        raise ValueError("it has no frontmatter: the first line must be ---")
    if _FENCE not in lines[1:]:
        raise ValueError(f"no --- line ends its frontmatter within the first {LIMIT_BYTES} bytes")
    text = "\n".join(lines[1 : lines.index(_FENCE, 1)])
    try:
        mapping: object = yaml.load(text, Loader=_PlainLoader)  # noqa: S506 - a restricted SafeLoader
    except yaml.MarkedYAMLError as error:
        # Lines count from 1, and the first one is the fence.
        line = error.problem_mark.line + 2 if error.problem_mark is not None else 1
        hint = "; a value with a colon in it needs quotes" if "mapping values" in str(error.problem) else ""
        raise ValueError(f"its frontmatter is not YAML (line {line}: {error.problem}){hint}") from error
    except Exception as error:  # PyYAML also raises ValueError, KeyError, RecursionError ...
        raise ValueError(f"its frontmatter is not YAML ({type(error).__name__}: {error})") from error
    if not isinstance(mapping, dict):
        raise ValueError("its frontmatter is not a mapping, such as `name: tidy-up`")  # noqa: TRY004 - the text is at fault
    return {key: value for key, value in mapping.items() if isinstance(key, str)}


CATALOG = "skills.catalog"
BROKEN = "skills.broken"
ACTIVE = "skills.active"
FINISH = "finish_skill"

# Shallow ones first. The patterns bound the depth, so that a large tree costs nothing.
_PATTERNS = ("SKILL.md", "*/SKILL.md", "*/*/SKILL.md", "*/*/*/SKILL.md")
_SKILLS_LIMIT = 100
_FILES_LIMIT = 200
_PATH_CHARS = 300
_TOOLS_LIMIT = 32
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

_HEADING = (
    "# Skills\n"
    "Each line names a skill, where its instructions are, and what it is for. When a task fits one, read its file with "
    "read_file before you begin and follow it; the line alone is not enough. While a skill that names its tools is "
    f"active, no other tool runs; {FINISH} ends it."
)


class Skill(Value):
    """One line of the catalog. `allowed_tools` is None when the skill restricts nothing."""

    name: str
    description: str
    path: str
    allowed_tools: tuple[str, ...] | None = None


class SkillCatalog(Hook):
    """Finds the skills when a run starts, and adds one line for each to the system prompt."""

    name = "skills"
    timeout_s = 30.0
    on_failure = "open"

    def __init__(self, files: FileSystem, paths: Sequence[str]) -> None:
        self._files = files
        self._paths = resolved(paths)

    async def execution_start(self, state: AgentState) -> AgentState:
        search = _Search(self._files)
        for path in self._paths:
            await search.below(path)
        catalog: list[JsonValue] = [skill.model_dump(mode="json") for skill in search.skills.values()]
        state = state.with_note(CATALOG, catalog)
        return state.with_metadata(BROKEN, search.broken) if search.broken else state.without_metadata(BROKEN)

    async def before_inference(self, state: AgentState) -> AgentState:
        skills = _catalog(state)
        if not skills:
            return state
        shown = "- {0.name} (read {0.path} for the full instructions): {0.description}"
        lines = [shown.format(skill) for skill in skills]
        active = _active(state)
        if active is not None and active.allowed_tools is not None:
            lines.append(f"The skill {active.name} is active. {_only(active)}")
        return state.with_section("\n".join((_HEADING, *lines)))


class ActiveSkill(Hook):
    """Tracks the active skill, and blocks tools that it does not allow."""

    name = "active_skill"

    async def before_tool_use(self, state: AgentState) -> AgentState:
        active = _active(state)
        call = state.current.tool.call
        if active is None or active.allowed_tools is None or call.name in (*active.allowed_tools, FINISH):
            return state
        # Reading its own file stays allowed: long instructions take several calls.
        if _skill_read(state) is not None:
            return state
        reason = f"the skill {active.name} is active; {_only(active)}".rstrip(".")
        return state.block(self.name, "allowed_tools", reason)

    async def after_tool_use(self, state: AgentState) -> AgentState:
        tool = state.current.tool
        if not tool.succeeded:
            return state
        if tool.call.name == FINISH:
            active = _active(state)
            if active is None:
                return state
            # The tool cannot know: an earlier call of this step may have activated the skill.
            said = ToolResult(f"The skill {active.name} has ended; every tool may be used again.".encode())
            return state.with_note(ACTIVE, None).with_result(said)
        read = _skill_read(state)
        return state.with_note(ACTIVE, read.name) if read is not None else state


def skills(files: FileSystem, paths: Sequence[str]) -> Capability:
    """Return the catalog of the SKILL.md files below `paths`, which may be relative to the workspace, and finish_skill.

    Raises InvalidPath, and TypeError for a string instead of a list.
    """
    description = "End the active skill, so that every tool may be used again."
    tool = Tool(FINISH, description, ToolArguments, _finish, own_state=True)
    return Capability("skills", hooks=(SkillCatalog(files, paths), ActiveSkill()), tools=(tool,))


async def _finish(_asked: ToolArguments, _context: ToolContext) -> ToolResult:
    return ToolResult(b"No skill is active, so there is nothing to end.")  # else ActiveSkill replaces it


def _catalog(state: AgentState) -> list[Skill]:
    noted = state.notes.get(CATALOG)
    return [Skill.model_validate(skill) for skill in noted] if isinstance(noted, list) else []


def _active(state: AgentState) -> Skill | None:
    return next((skill for skill in _catalog(state) if skill.name == state.notes.get(ACTIVE)), None)


def _skill_read(state: AgentState) -> Skill | None:
    call = state.current.tool.call
    path = (call.arguments or {}).get("path") if call.name == "read_file" else None
    return next((skill for skill in _catalog(state) if skill.path == path), None)


def _only(skill: Skill) -> str:
    allowed = ", ".join(skill.allowed_tools or ()) or "none"
    return f"The tools it allows: {allowed}. Call {FINISH} to end it, or read another skill's SKILL.md to change over."


class _Search:
    def __init__(self, files: FileSystem) -> None:
        self.skills: dict[str, Skill] = {}
        self.broken: list[JsonValue] = []
        self._files = files
        self._seen: set[str] = set()

    async def below(self, root: str) -> None:
        for pattern in _PATTERNS:
            try:
                page = await self._files.glob(root, pattern, limit=_FILES_LIMIT + 1)
            except FileNotFoundError:
                return
            except Exception as error:  # a failing sandbox costs these skills, not the run
                self._leave_out(root, str(error))
                return
            for path in {entry.name: None for entry in page.entries if entry.name not in self._seen}:
                if len(self.skills) == _SKILLS_LIMIT or len(self._seen) == _FILES_LIMIT:
                    limits = f"{_SKILLS_LIMIT} are listed and {_FILES_LIMIT} files read"
                    self._leave_out(root, f"it has more skills than fit: {limits}")
                    return
                self._seen.add(path)
                await self._take(path)

    async def _take(self, path: str) -> None:
        try:
            skill = await self._read(path)
        except Exception as error:  # the file is untrusted: any failure costs one skill
            self._leave_out(path, str(error) or type(error).__name__)
            return
        taken = self.skills.setdefault(skill.name, skill)
        if taken is not skill:
            self._leave_out(path, f"the name {skill.name} is taken by {taken.path}")

    async def _read(self, path: str) -> Skill:
        if not path.isprintable() or len(path) > _PATH_CHARS:
            raise ValueError(f"its path has control characters or more than {_PATH_CHARS} characters; rename it")
        page = await self._files.read_lines(path, limit=LIMIT_BYTES, limit_bytes=LIMIT_BYTES)
        if page.binary:
            raise ValueError("it is not UTF-8 text")
        fields = frontmatter(page.data.decode())
        return Skill(
            name=_text(fields, "name", 64),
            description=_text(fields, "description", 500),
            path=path,
            allowed_tools=_allowed_tools(fields.get("allowed-tools")),
        )

    def _leave_out(self, path: str, problem: str) -> None:
        if len(self.broken) < 50:
            self.broken.append({"path": _one_line(path, _PATH_CHARS), "problem": _one_line(problem, 300)})


def _text(fields: dict[str, object], key: str, limit_chars: int) -> str:
    value = fields.get(key)
    text = _one_line(value, limit_chars) if isinstance(value, str) else ""
    if not text:
        raise ValueError(f"its frontmatter has no text as `{key}`; a number or a date needs quotes")
    return text


def _one_line(text: str, limit_chars: int) -> str:
    printable = "".join(character if character.isprintable() else " " for character in text)
    line = " ".join(printable.split())
    return line if len(line) <= limit_chars else f"{line[: limit_chars - 3]}..."


def _allowed_tools(value: object) -> tuple[str, ...] | None:
    """Return exact tool names; anything else, such as a pattern, would look like a restriction without being one."""
    if value is None:
        return None
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    exact = isinstance(names, list) and all(isinstance(name, str) and _TOOL_NAME.fullmatch(name) for name in names)
    if not isinstance(names, list) or len(names) > _TOOLS_LIMIT or not exact:
        raise ValueError(f"`allowed-tools` must be exact tool names, {_TOOLS_LIMIT} at most, without patterns: {value}")
    return tuple(dict.fromkeys(names))
