"""`airlock` as a sandbox of the OpenAI Agents SDK; openai_agents_tools.py has tools for agents without a sandbox.

    run_config = RunConfig(sandbox=SandboxRunConfig(client=AirlockSandboxClient()))

AIRLOCK_ADDRESS (default 127.0.0.1:7443) and AIRLOCK_API_KEY name the gateway and the key, which needs the scopes `tool`
and `files`. See docs/integrations.md.

A session is a thread. Each command and file operation is a tool call under the tenant's policy; one that is denied or
waits for an approval is a result or an error that says so. Failures of the gateway or the sandbox are raised.
"""

import io
import posixpath
import shlex
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NoReturn

from agents.sandbox import ExecResult, Manifest, Permissions, User
from agents.sandbox.errors import (
    ErrorCode,
    WorkspaceIOError,
    WorkspaceReadNotFoundError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.files import EntryKind, FileEntry
from agents.sandbox.session import (
    BaseSandboxClient,
    BaseSandboxClientOptions,
    BaseSandboxSession,
    Dependencies,
    Instrumentation,
    SandboxSession,
    SandboxSessionState,
)
from agents.sandbox.session.pty_types import (
    PtyExecUpdate,
    clamp_pty_yield_time_ms,
    resolve_pty_write_yield_time_ms,
)
from agents.sandbox.session.tar_workspace import shell_tar_exclude_args
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.workspace_paths import sandbox_path_str
from typing_extensions import override

from airlock import Client, errors
from gateway.integrations.adapter import connect
from gateway.integrations.openai_agents_commands import AirlockSandboxSessionState, Commands

_ARCHIVE_IN_MEMORY_BYTES = 16 * 1024 * 1024


class AirlockSandboxClientOptions(BaseSandboxClientOptions):
    """The thread of a session, by default a new one whose files are removed with the session.

    `command_timeout_s` limits commands that have no limit of their own; by default as the tool `execute` does.
    """

    type: Literal["airlock"] = "airlock"
    thread: str = ""
    command_timeout_s: float | None = None


class AirlockSandboxSession(BaseSandboxSession):
    """A thread's sandbox as a session of the SDK."""

    state: AirlockSandboxSessionState

    def __init__(self, state: AirlockSandboxSessionState, client: Client) -> None:
        self.state = state
        self._client = client
        self._commands = Commands(client, state)
        self._is_open = True

    @override
    async def _shutdown_backend(self) -> None:
        self._is_open = False
        await self._client.aclose()

    @override
    async def running(self) -> bool:
        return self._is_open

    # --- commands ---

    @override
    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        _refuse_user(user)
        return super()._prepare_exec_command(*command, shell=shell, user=None)

    @override
    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        return await self._commands.run([str(word) for word in command], timeout)

    @override
    def supports_pty(self) -> bool:
        return True

    @override
    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        words = self._prepare_exec_command(*command, shell=shell, user=user)
        id_ = await self._commands.start(words, timeout, terminal=tty)
        yield_ms = clamp_pty_yield_time_ms(10_000 if yield_time_s is None else int(yield_time_s * 1000))
        return await self._commands.update(id_, yield_ms, max_output_tokens)

    @override
    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        await self._commands.write(session_id, chars)
        yield_ms = 250 if yield_time_s is None else int(yield_time_s * 1000)
        yield_ms = resolve_pty_write_yield_time_ms(yield_time_ms=yield_ms, input_empty=not chars)
        return await self._commands.update(session_id, yield_ms, max_output_tokens)

    @override
    async def pty_terminate_all(self) -> None:
        await self._commands.end_all()

    # --- files ---

    @override
    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        return io.BytesIO(await self._read(path, user, limit_bytes=None))

    @override
    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        return await self._read(path, None, limit_bytes=max_bytes)

    async def _read(self, path: Path, user: str | User | None, *, limit_bytes: int | None) -> bytes:
        target = await self._target(path, user)
        try:
            return await self._client.read_file(self.state.thread, target, limit_bytes=limit_bytes)
        except errors.NotFound as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        except errors.AirlockError as error:
            _raise_io_error(error, "read", path)

    @override
    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        target = await self._target(path, user, for_write=True)
        payload = data.read()
        content = payload.encode() if isinstance(payload, str) else payload
        if not isinstance(content, bytes | bytearray):
            raise WorkspaceWriteTypeError(path=path, actual_type=type(content).__name__)
        try:
            await self._client.write_file(self.state.thread, target, bytes(content))
        except errors.AirlockError as error:
            _raise_io_error(error, "write", path)

    @override
    async def ls(self, path: Path | str, *, user: str | User | None = None) -> list[FileEntry]:
        target = await self._target(path, user)
        try:
            listed = [entry async for entry in self._client.list_files(self.state.thread, target)]
        except errors.AirlockError as error:
            _raise_io_error(error, "read", path)
        return [
            FileEntry(
                path=posixpath.join(target, entry.name),
                permissions=Permissions.from_mode(entry.mode),
                owner="",
                group="",
                size=entry.size_bytes,
                kind=EntryKind(entry.kind),
            )
            for entry in listed
        ]

    @override
    async def rm(self, path: Path | str, *, recursive: bool = False, user: str | User | None = None) -> None:
        target = await self._target(path, user, for_write=True)
        try:
            # As `rm -rf` and `rm`, which the other sessions of the SDK run.
            await self._client.remove_file(self.state.thread, target, recursive=recursive, missing_ok=recursive)
        except errors.AirlockError as error:
            _raise_io_error(error, "write", path)

    @override
    async def mkdir(self, path: Path | str, *, parents: bool = False, user: str | User | None = None) -> None:
        target = await self._target(path, user, for_write=True)
        try:
            await self._client.make_directory(self.state.thread, target)
        except errors.AirlockError as error:
            _raise_io_error(error, "write", path)

    async def _target(self, path: Path | str, user: str | User | None, *, for_write: bool = False) -> str:
        _refuse_user(user)
        return sandbox_path_str(await self._validate_path_access(path, for_write=for_write))

    # --- the SDK's snapshots ---

    @override
    async def persist_workspace(self) -> io.IOBase:
        archive = tempfile.SpooledTemporaryFile(max_size=_ARCHIVE_IN_MEMORY_BYTES)  # noqa: SIM115 - the caller closes it
        excludes = shell_tar_exclude_args(self._persist_workspace_skip_relpaths())
        root = self.state.manifest.root
        line = f"tar {' '.join(excludes)} -C {shlex.quote(root)} -cf - ."

        def take(stream: str, data: bytes) -> None:
            if stream == "stdout":
                archive.write(data)

        await self._archive(line, "read", on_output=take)
        archive.seek(0)
        return archive

    @override
    async def hydrate_workspace(self, data: io.IOBase) -> None:
        await self._archive(f"tar -C {shlex.quote(self.state.manifest.root)} -xf -", "write", stdin=data.read())

    async def _archive(self, line: str, op: Literal["read", "write"], **options: Any) -> None:
        root = Path(self.state.manifest.root)
        try:
            done = await self._client.run_program(["sh", "-c", line], thread=self.state.thread, **options)
        except errors.AirlockError as error:
            _raise_io_error(error, op, root)
        if done.exit_code != 0:
            said = done.stderr or done.message or done.outcome
            raise WorkspaceIOError(f"{root}: {said}", ErrorCode.WORKSPACE_ARCHIVE_WRITE_ERROR, op, {"path": str(root)})


def _refuse_user(user: str | User | None) -> None:
    if user is not None:
        raise NotImplementedError("run_as: tool code of a sandbox has one user and cannot become another")


def _raise_io_error(error: errors.AirlockError, op: Literal["read", "write"], path: Path | str) -> NoReturn:
    """Raise the SDK's error with our sentence, which names the rule of a denial and the id of an approval."""
    code = ErrorCode.WORKSPACE_ARCHIVE_READ_ERROR if op == "read" else ErrorCode.WORKSPACE_ARCHIVE_WRITE_ERROR
    retryable = isinstance(error, errors.Unavailable | errors.Overloaded)
    raise WorkspaceIOError(
        f"{path}: {error}", code, op, {"path": str(path), **error.details}, cause=error, retryable=retryable
    ) from error


class AirlockSandboxClient(BaseSandboxClient[AirlockSandboxClientOptions | None]):
    """Creates and resumes sessions on a gateway; without options, each on a thread of its own."""

    backend_id = "airlock"
    supports_default_options = True

    def __init__(
        self,
        *,
        address: str = "",
        api_key: str = "",
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
    ) -> None:
        self._address = address
        self._api_key = api_key
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies

    @override
    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: AirlockSandboxClientOptions | None = None,
    ) -> SandboxSession:
        options = options or AirlockSandboxClientOptions()
        session_id = uuid.uuid4()
        state = AirlockSandboxSessionState(
            session_id=session_id,
            manifest=self._validate_manifest_for_create(manifest or Manifest()),
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            thread=options.thread or f"openai-agents/{session_id.hex}",
            is_owned=not options.thread,
            command_timeout_s=options.command_timeout_s,
        )
        return await self._session(state)

    @override
    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        if not isinstance(state, AirlockSandboxSessionState):
            raise TypeError(f"state: one of this client is expected, not of {state.type}")
        state.assert_path_grants_rebound()
        return await self._session(state)

    async def _session(self, state: AirlockSandboxSessionState) -> SandboxSession:
        """Connect; a thread that has files already is used as it is."""
        client = connect(self._address, self._api_key)
        try:
            names = [entry.name async for entry in client.list_files(state.thread, state.manifest.root)]
        except errors.NotFound:
            names = []
        except BaseException:
            await client.aclose()
            raise
        session = AirlockSandboxSession(state, client)
        session._set_start_state_preserved(bool(names))  # noqa: SLF001 - for clients
        return self._wrap_session(session, instrumentation=self._instrumentation)

    @override
    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Remove the sandbox and the files of a session that has a thread of its own; a named thread keeps them."""
        state = session.state
        if not isinstance(state, AirlockSandboxSessionState):
            raise TypeError(f"session: one of this client is expected, not of {state.type}")
        if state.is_owned:
            async with connect(self._address, self._api_key) as client:
                with suppress(errors.NotFound):
                    await client.delete_sandbox(state.thread)
        return session

    @override
    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, AirlockSandboxSessionState)
