"""Airlock for pydantic-ai: a workspace whose commands and files are a thread's, and toolsets under the tenant's policy.

    agent = Agent(
        model, capabilities=[AirlockWorkspace()], toolsets=[AirlockTools(), JudgedTools(FunctionToolset([refund]))]
    )

`AirlockWorkspace` is what tools reach as `ctx.workspace`, `AirlockTools` are the tools that the gateway runs in the
sandbox, `JudgedTools` are tools of your own: they run in your process if the policy allows it.

AIRLOCK_ADDRESS and AIRLOCK_API_KEY name the gateway and the key, unless a client is given. See docs/integrations.md.

Failures of the gateway or a sandbox are raised, never returned: a result is what the program itself did.
"""

import asyncio
import errno
import os
import posixpath
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, TypeVar

from pydantic_ai import ApprovalRequired, RunContext, ToolDefinition, ToolFailed
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    Workspace,
    WorkspaceBackend,
    WorkspaceCommand,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)
from pydantic_core import SchemaValidator, core_schema, to_json, to_jsonable_python

from airlock import Client, ProgramResult, Tool, ToolResult, errors
from airlock import FileEntry as AirlockEntry
from gateway.integrations.adapter import WORKSPACE, connect
from gateway.integrations.os_errors import os_errors
from gateway.integrations.programs import exit_code, explained, run_program

_T = TypeVar("_T")
_PROVIDER = "airlock"
_OUTPUT_LIMIT_BYTES = 10 * 1024 * 1024
# The gateway validates the arguments of its tools.
_ANY_ARGUMENTS = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))


class ApprovalWaits(ApprovalRequired, errors.ApprovalPending):
    """A call waits for an approval in Airlock; its id is in `metadata` and `details`.

    A run of pydantic-ai ends with it as a deferred call. Continue the run once the approval is given: the call is made
    again, and no answer given to pydantic-ai alone lets it pass.
    """

    def __init__(self, message: str, **details: str) -> None:
        errors.ApprovalPending.__init__(self, message, **details)
        self.metadata = {"message": message, **details}


class AirlockWorkspaceBackend:
    """A thread as a workspace. Without a `thread` or `ref`, the first operation makes a thread of its own.

    A `ref` names a thread that is there: WorkspaceUnavailableError if it was deleted. The key needs the scopes run,
    tool and files.
    """

    def __init__(self, airlock: Client | None = None, *, thread: str = "", ref: WorkspaceRef | None = None) -> None:
        if ref is not None and ref.provider != _PROVIDER:
            raise ValueError(f"a workspace of {ref.provider!r} is none of Airlock")
        self._airlock = airlock or connect("", "")
        self._thread = thread or f"pydantic-ai/{uuid.uuid4().hex}"
        self._ref = ref
        self._opened = False
        self._opening = asyncio.Lock()

    @property
    def ref(self) -> WorkspaceRef | None:
        """The thread: None until it is there."""
        return self._ref

    async def working_dir(self) -> str:
        """Return /workspace; the thread is there by then."""
        await self._name()
        return WORKSPACE

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a program; without `timeout`, the policy's limits.timeout_s applies."""
        if isinstance(command, str) != shell:
            raise TypeError("a line needs shell=True, and a list of words shell=False")
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        thread = await self._name()
        try:
            result = await run_program(
                self._airlock, argv, timeout, thread=thread, env=env, output_limit_bytes=_OUTPUT_LIMIT_BYTES
            )
        except errors.ApprovalPending as error:
            raise ApprovalWaits(str(error), **error.details) from error
        except errors.PermissionDenied as error:
            raise PermissionError(errno.EACCES, str(error), argv[0]) from error
        except errors.TooLarge as error:
            raise OSError(errno.E2BIG, str(error), argv[0]) from error
        except errors.InvalidArgument as error:
            raise ValueError(str(error)) from error
        except errors.DeadlineExceeded as error:
            raise WorkspaceTimeoutError(str(error)) from error
        return _command_result(result, argv[0])

    async def read_bytes(self, path: str) -> bytes:
        """Return a file's bytes."""
        return await self._at(path, self._airlock.read_file)

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Replace a file, also one behind a symbolic link; its parents are made."""
        await self._at(path, lambda thread, found: self._airlock.write_file(thread, found, data))

    async def stat(self, path: str) -> FileEntry:
        """Describe a path; a symbolic link is what it leads to."""

        async def look(thread: str, found: str) -> AirlockEntry:
            entry = await self._airlock.stat_file(thread, found)
            if entry.kind == "symlink":
                raise errors.InvalidPath(f"{found} is a symbolic link")
            return entry

        return _file_entry(path, await self._at(path, look))

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """Return the entries of a directory; a symbolic link is what it leads to, a file of no size if to nothing."""

        async def listed(thread: str, found: str) -> list[AirlockEntry]:
            return [entry async for entry in self._airlock.list_files(thread, found)]

        return [
            await self._followed(posixpath.join(path, entry.name))
            if entry.kind == "symlink"
            else _file_entry(posixpath.join(path, entry.name), entry)
            for entry in await self._at(path, listed)
        ]

    async def make_dir(self, path: str) -> None:
        """Make a directory and its parents."""
        try:
            await self._at(path, self._airlock.make_directory)
        except NotADirectoryError:
            if await self.exists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            raise

    async def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with its contents; ValueError for /workspace and what holds it."""

        async def gone(thread: str, found: str) -> None:
            if f"{WORKSPACE}/".startswith(f"{found.rstrip('/')}/"):
                raise ValueError(f"{path} holds the workspace itself, which is not removed")
            await self._airlock.remove_file(thread, found, recursive=True)

        parent, name = posixpath.split(posixpath.normpath(path))
        await self._at(parent, lambda thread, found: gone(thread, posixpath.join(found, name)))

    async def exists(self, path: str) -> bool:
        """Return whether there is a file or directory."""
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def realpath(self, path: str) -> str:
        """Return where a path leads, as os.path.realpath does; only one with a link on its way costs a program."""
        thread = await self._name()
        if ".." not in path.split("/"):
            with os_errors(path):
                try:
                    entry = await self._airlock.stat_file(thread, path)
                except (errors.NotFound, errors.NotADirectory):
                    return posixpath.normpath(path)  # up to there, the gateway has met no link
                except errors.InvalidPath:
                    pass  # there is a link
                else:
                    if entry.kind != "symlink":
                        return posixpath.normpath(path)
        return await Workspace(_Commands(self)).realpath(path)

    async def _name(self) -> str:
        """Return the thread, which is there."""
        async with self._opening:
            if self._opened:
                return self._thread
            if self._ref is None:
                await self._airlock.set_thread_metadata(self._thread, {"framework": "pydantic-ai"})
                self._ref = WorkspaceRef(provider=_PROVIDER, id=self._thread)
            else:
                self._thread = self._ref.id
                try:
                    await self._airlock.get_thread(self._thread)
                except errors.NotFound as error:
                    raise WorkspaceUnavailableError(f"the thread {self._thread} was deleted") from error
            self._opened = True
            return self._thread

    async def _at(self, path: str, operation: Callable[[str, str], Awaitable[_T]]) -> _T:
        """Run an operation on a path; where links are on its way, on what they lead to.

        The gateway follows no link, and it judges the path that it is given: the real one.
        """
        thread = await self._name()
        with os_errors(path):
            try:
                return await operation(thread, path)
            except errors.InvalidPath:
                real = await self.realpath(path)
                if real == path:
                    raise
                return await operation(thread, real)
            except errors.ApprovalPending as error:
                raise ApprovalWaits(str(error), **error.details) from error

    async def _followed(self, path: str) -> FileEntry:
        try:
            return await self.stat(path)
        except OSError:  # a link to nothing, to itself, or to what may not be seen
            return FileEntry(name=posixpath.basename(path), path=path, is_dir=False, size=None)


class _Commands:
    """The commands of a backend alone: with them pydantic-ai follows links by itself."""

    def __init__(self, backend: AirlockWorkspaceBackend) -> None:
        self.ref = backend.ref
        self.working_dir = backend.working_dir
        self.run = backend.run


@dataclass
class AirlockWorkspace(AbstractCapability[Any]):
    """Gives runs a workspace: a thread of their own, that of the message history, or the `thread` named here."""

    airlock: Client = field(default_factory=partial(connect, "", ""))
    _: KW_ONLY
    thread: str = ""
    id: str | None = "airlock_workspace"

    def get_workspace(self, ctx: RunContext[Any], *, ref: WorkspaceRef | None) -> WorkspaceBackend | None:
        """Return the workspace of a run; None for a `ref` to another."""
        del ctx
        if ref is not None and (ref.provider != _PROVIDER or self.thread not in ("", ref.id)):
            return None
        return AirlockWorkspaceBackend(self.airlock, thread=self.thread, ref=ref)


def _file_entry(path: str, entry: AirlockEntry) -> FileEntry:
    is_dir = entry.kind == "directory"
    return FileEntry(
        name=posixpath.basename(path), path=path, is_dir=is_dir, size=entry.size_bytes if entry.kind == "file" else None
    )


def _command_result(result: ProgramResult, program: str) -> CommandResult:
    """Return a program's result. Raises what the program did not do."""
    written = {"stdout": result.stdout, "stderr": result.stderr}
    if result.outcome == "timed_out":
        raise WorkspaceTimeoutError(f"{program}: {result.message or 'its time limit ended it'}", **written)
    if result.outcome == "output_limit":
        said = f"{program} wrote more than {_OUTPUT_LIMIT_BYTES:,} bytes: have it write to a file"
        raise WorkspaceOutputLimitError(said, limit=_OUTPUT_LIMIT_BYTES, **written)
    try:
        code = exit_code(result, program)
    except errors.Unavailable as error:
        raise WorkspaceUnavailableError(str(error)) from error
    return CommandResult(exit_code=code, stdout=result.stdout, stderr=explained(result.stderr, result, program))


@dataclass
class AirlockTools(AbstractToolset[Any]):
    """The tools that the gateway runs in a thread's sandbox: `thread`, or that of the run's workspace."""

    airlock: Client = field(default_factory=partial(connect, "", ""))
    _: KW_ONLY
    thread: str = ""

    @property
    def id(self) -> str:
        """The name of the toolset."""
        return f"airlock {self.thread}".strip()

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools of the tenant."""
        del ctx
        return {tool.name: self._tool(tool) for tool in await self.airlock.list_tools()}

    def _tool(self, tool: Tool) -> ToolsetTool[Any]:
        schema = dict(tool.parameters)
        definition = ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=schema)
        return ToolsetTool(toolset=self, tool_def=definition, max_retries=1, args_validator=_ANY_ARGUMENTS)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> str:
        """Return the result as a model reads it. Raises ToolFailed, and ApprovalWaits."""
        del tool
        thread = await _thread(self.thread, ctx)
        result = await _with_edits(lambda given: self.airlock.call_tool(name, given, thread=thread), tool_args)
        return _text_of(result)


@dataclass
class JudgedTools(WrapperToolset[Any]):
    """Tools of your own under the tenant's policy, which judges a call as `caller/NAME` before it runs in this process.

    What a tool returns is recorded, and redacted or withheld by the policy's rules; if they leave it as it is, the
    model gets the tool's own value, else the text that is left.
    """

    airlock: Client = field(default_factory=partial(connect, "", ""))
    _: KW_ONLY
    thread: str = ""

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Run a tool once the policy lets it. Raises what the tool raises, ToolFailed, and ApprovalWaits."""
        asked = to_jsonable_python(tool_args)
        given: list[tuple[bytes, Any]] = []
        raised: list[tuple[bytes, Exception]] = []

        async def run(judged: Mapping[str, Any]) -> bytes:
            arguments = tool_args
            if judged != asked:  # by an approver
                arguments = tool.args_validator.validate_python(dict(judged), context=ctx.validation_context)
            try:
                value = await self.wrapped.call_tool(name, arguments, ctx, tool)
            except Exception as error:
                raised.append((f"{type(error).__name__}: {error}".encode(), error))
                raise
            content = value.encode() if isinstance(value, str) else to_json(value)
            given.append((content, value))
            return content

        thread = await _thread(self.thread, ctx)
        result = await _with_edits(
            lambda arguments: self.airlock.run_caller_tool(name, arguments, run, thread=thread), asked
        )
        shown = (result.content_bytes, not result.note)
        for content, error in raised:
            if shown == (content, True):
                raise error
        for content, value in given:
            if shown == (content, True) and not result.is_error:
                return value
        return _text_of(result)


async def _thread(name: str, ctx: RunContext[Any]) -> str:
    """Return the thread of a call: the one that is named, or the workspace's."""
    backend = ctx.workspace.backend
    if name or not isinstance(backend, AirlockWorkspaceBackend):
        return name or "default"
    await backend.working_dir()  # it is there by then
    return backend.ref.id if backend.ref is not None else name


async def _with_edits(
    call: Callable[[Mapping[str, Any]], Awaitable[ToolResult]], arguments: Mapping[str, Any]
) -> ToolResult:
    """Make a call; if an approver has changed its arguments, make it with these."""
    result = await call(arguments)
    return result if result.edited_arguments is None else await call(result.edited_arguments)


def _text_of(result: ToolResult) -> str:
    """Return the text of a result. Raises ToolFailed for a failed or denied call, and ApprovalWaits."""
    text = "\n".join(part for part in (result.content, result.note) if part)
    if result.outcome == "waiting":
        raise ApprovalWaits(text, approval_id=result.approval_id, rule=result.rule, reason=result.reason)
    if result.is_error:
        raise ToolFailed(text)
    return text
