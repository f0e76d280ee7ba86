"""`airlock` as a sandbox of inspect-ai: each sample of an evaluation gets its own thread, and so its own sandbox.

A thin adapter over the public client. AIRLOCK_ADDRESS (default 127.0.0.1:7443) and AIRLOCK_API_KEY name the gateway and
the key; `sandbox=("airlock", AirlockConfig(...))` names other variables. See docs/inspect.md.

Failures of the gateway or a sandbox are raised, never returned: a result is what the program itself did.
"""

import errno
import os
import posixpath
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, overload

import yaml
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from agent.tools.paths import WORKSPACE
from gateway import errors
from gateway.client import Client, ProgramResult

_SIGNALLED = 128
_ERRNOS: Mapping[type[errors.AirlockError], int] = {
    errors.NotFound: errno.ENOENT,
    errors.NotADirectory: errno.ENOTDIR,
    errors.IsADirectory: errno.EISDIR,
    errors.PermissionDenied: errno.EACCES,
    errors.InvalidPath: errno.EINVAL,
}


class AirlockConfig(BaseModel):
    """The gateway, and the variable with the key. The key is never here, since inspect logs configurations."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str = ""
    api_key_variable: str = "AIRLOCK_API_KEY"


@sandboxenv(name="airlock")
class AirlockSandboxEnvironment(SandboxEnvironment):
    """The sandbox of one sample. Relative paths start at /workspace."""

    def __init__(self, client: Client, thread: str) -> None:
        super().__init__()
        self._client = client
        self.thread = thread
        self._users: frozenset[str] | None = None

    @override
    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Connect; the first call creates the sandbox."""
        settings = _settings(config)
        key = os.environ.get(settings.api_key_variable, "")
        if not key:
            raise SandboxUnavailableError(f"{settings.api_key_variable} is not set; `airlock key create` makes a key")
        client = Client(settings.address or os.environ.get("AIRLOCK_ADDRESS", "127.0.0.1:7443"), key)
        name = "".join(character if character.isprintable() else "?" for character in task_name)
        return {"default": cls(client, f"inspect/{name[:80]}/{uuid.uuid4().hex}")}

    @override
    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Close the connection; the gateway removes the sandbox after its idle timeout."""
        for environment in environments.values():
            await environment.as_type(AirlockSandboxEnvironment).close()

    @override
    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Return a logged configuration."""
        return AirlockConfig.model_validate(config)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.__aexit__(None, None, None)

    @override
    async def exec(  # eight parameters, as inspect-ai declares it
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a program; without `timeout`, the policy's limits.timeout_s applies.

        It runs once, as a program that timed out may have had effects. The gateway, not this process, limits
        concurrency.
        """
        await self._check_user(user)
        limit_bytes = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            result = await self._client.run_program(
                cmd,
                thread=self.thread,
                stdin=input.encode() if isinstance(input, str) else input,
                cwd=_resolved(cwd or "."),
                env=env,
                timeout_s=timeout,
                # inspect's limit is for each stream, the gateway's for both.
                output_limit_bytes=2 * limit_bytes,
            )
        except errors.DeadlineExceeded as error:
            raise TimeoutError(str(error)) from error
        except errors.PermissionDenied as error:
            raise PermissionError(errno.EACCES, str(error), cmd[0]) from error
        except (errors.Unavailable, errors.Overloaded) as error:
            raise SandboxUnavailableError(str(error)) from error
        return _exec_result(result, cmd, limit_bytes)

    @override
    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Replace a file atomically; creates its parent directories."""
        data = contents.encode() if isinstance(contents, str) else contents
        with _os_errors(file):
            await self._client.write_file(self.thread, _resolved(file), data)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    @override
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Return a file's text or bytes; what is past inspect's limit is not even fetched."""
        limit_bytes = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        data = bytearray()
        with _os_errors(file):
            async for chunk in self._client.stream_file(self.thread, _resolved(file)):
                data += chunk
                if len(data) > limit_bytes:
                    raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else bytes(data)

    async def _check_user(self, user: str | None) -> None:
        """Raise SandboxUserUnsupportedError for any user but the one of tool code."""
        if user is None:
            return
        if self._users is None:
            results = [await self.exec(["id", option]) for option in ("-u", "-un")]
            self._users = frozenset(result.stdout.strip() for result in results if result.success)
        if user not in self._users:
            raise SandboxUserUnsupportedError(
                f"airlock runs nothing as {user!r}: tool code has one user, without privileges"
            )


def _settings(config: SandboxEnvironmentConfigType | None) -> AirlockConfig:
    """Return the configuration: a model, a YAML file with one, or none."""
    if isinstance(config, str):
        return AirlockConfig.model_validate(yaml.safe_load(Path(config).read_text(encoding="utf-8")) or {})
    return AirlockConfig() if config is None else AirlockConfig.model_validate(config.model_dump())


def _resolved(path: str) -> str:
    """Return the path below the workspace; the gateway normalizes it before it judges it."""
    return posixpath.join(WORKSPACE, path)


def _exec_result(result: ProgramResult, cmd: list[str], limit_bytes: int) -> ExecResult[str]:
    """Return a program's result as inspect has it. Raises what the program did not do."""
    if result.outcome == "output_limit" or max(len(result.stdout_bytes), len(result.stderr_bytes)) > limit_bytes:
        shown = (result.stdout_bytes or result.stderr_bytes)[:limit_bytes].decode("utf-8", "replace")
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, shown)
    match result.outcome:
        case "exited" if result.exit_code is not None:
            return _with_code(result, result.exit_code)
        case "signalled" if result.signal is not None:
            return _with_code(result, _SIGNALLED + result.signal)
        case "timed_out":
            raise TimeoutError(f"{cmd[0]}: {result.message or 'its time limit ended it'}")
        case "out_of_memory":
            return _with_code(result, _SIGNALLED + 9, "Killed\n")
        case "failed_to_start" if result.errno == errno.EACCES:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), cmd[0])
        case "failed_to_start" if result.errno in (errno.ENOENT, errno.ENOTDIR):
            return _with_code(result, 127, f"{cmd[0]}: not found, or its directory or interpreter is not\n")
        case other:
            raise SandboxUnavailableError(f"{cmd[0]}: {other}: {result.message or 'no more is known'}")


def _with_code(result: ProgramResult, code: int, said: str = "") -> ExecResult[str]:
    return ExecResult(success=code == 0, returncode=code, stdout=result.stdout, stderr=result.stderr + said)


@contextmanager
def _os_errors(file: str) -> Iterator[None]:
    """Raise what open() would raise, with the file's name as the caller wrote it."""
    try:
        yield
    except errors.DeadlineExceeded as error:
        raise TimeoutError(f"{file}: {error}") from error
    except tuple(_ERRNOS) as error:
        number = next(number for kind, number in _ERRNOS.items() if isinstance(error, kind))
        said = str(error) if isinstance(error, (errors.PermissionDenied, errors.InvalidPath)) else os.strerror(number)
        raise OSError(number, said, file) from error
