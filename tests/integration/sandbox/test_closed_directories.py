"""Directories that tool code closed, to others or to itself: its own programs get in as they would anywhere."""

from __future__ import annotations

import errno

import pytest

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.protocols import ProgramSpec
from tests.integration.sandbox.live_engine import run, spec, text

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_tool_code_that_locks_itself_out_of_its_workspace_is_let_in_again(engine: DockerEngine) -> None:
    asked = spec("locked-out")
    sandbox = await engine.create(asked)
    await sandbox.files.write("/workspace/kept", b"kept")
    for mode, found in (("000", "700"), ("700", "700"), ("500", "700"), ("2070", "2770")):
        await run(sandbox.shell, f"chmod {mode} /workspace")
        inside = await run(sandbox.shell, "cat kept; stat -c ' %a' .")
        assert (inside.outcome, text(inside)) == ("exited", f"kept {found}\n")
        await run(sandbox.shell, f"chmod {mode} /workspace")
        assert (await sandbox.files.stat("/workspace/kept")).size_bytes == 4
    await run(sandbox.shell, "chmod 000 /workspace /tmp")
    await engine.remove(sandbox.id)
    again = await engine.create(asked)
    assert text(await run(again.shell, "cat kept")) == "kept"
    await engine.remove(again.id)


async def test_a_program_starts_in_a_directory_that_is_the_tool_user_s_alone_and_in_no_other_s(
    engine: DockerEngine,
) -> None:
    sandbox = await engine.create(spec("closed"))
    await run(sandbox.shell, "mkdir -m 700 private; mkdir -m 000 shut; touch private/file")

    async def started_in(directory: str) -> tuple[str, int | None, bytes]:
        said = bytearray()

        async def take(_: str, data: bytes) -> None:
            said.extend(data)

        result = await sandbox.shell.run_program(
            ProgramSpec([b"/bin/ls"], cwd=directory, timeout_s=20, output_limit_bytes=1000), stdin=None, on_output=take
        )
        return result.outcome, result.errno, bytes(said)

    assert await started_in("/workspace/private") == ("exited", None, b"file\n")
    for directory, refused in (
        ("/workspace/shut", errno.EACCES),
        ("/run/airlock", errno.EACCES),
        ("/workspace/none", errno.ENOENT),
        ("/workspace/private/file", errno.ENOTDIR),
    ):
        assert await started_in(directory) == ("failed_to_start", refused, b"")
    await engine.remove(sandbox.id)
