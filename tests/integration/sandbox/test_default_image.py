"""What the default image offers: the programs that agents expect, a home that stays, and pip for wheels at hand."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from examples.package_index import greeting_wheel
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.sandbox import Sandbox
from tests.integration.sandbox.live_engine import run, spec, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

# What each program is asked, where that is not --version.
VERSION_OPTIONS = {"ssh": "-V", "unzip": "-v", "zip": "-v"}
SLIM_PROGRAMS = (
    *("bash", "curl", "file", "git", "jq", "less", "make", "patch", "pip", "ps", "python", "python3", "rg", "sh"),
    *("sqlite3", "tar", "unzip", "zip"),
)
ADDITIONS = ("cc", "gcc", "ssh", "ssh-keygen", "uv", "uvx", "wget")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(engine: DockerEngine) -> AsyncIterator[Sandbox]:
    made = await engine.create(spec("default-image"))
    yield made
    await engine.remove(made.id)


async def test_the_programs_that_agents_expect_are_there_and_the_slim_image_has_no_more_than_its_own(
    sandbox: Sandbox,
) -> None:
    said = await run(
        sandbox.shell,
        "".join(
            f"{program} {VERSION_OPTIONS.get(program, '--version')} >/dev/null 2>&1 </dev/null || echo no {program}\n"
            for program in (*SLIM_PROGRAMS, *ADDITIONS)
            if program not in {"sh", "ssh-keygen"}  # these have no such option; the second is used below
        ),
    )
    assert text(said) == ""
    slim = subprocess.check_output(
        [
            *("docker", "run", "--rm", "--network", "none", "airlock-sandbox-slim", "sh", "-c"),
            'for program; do command -v "$program" >/dev/null && echo "$program"; done; python3 --version',
            *("sh", *SLIM_PROGRAMS, *ADDITIONS),
        ],
        text=True,
    )
    assert slim.split() == [*SLIM_PROGRAMS, *text(await run(sandbox.shell, "python --version")).split()]


async def test_the_compiler_has_headers_and_virtual_environments_need_no_network(sandbox: Sandbox) -> None:
    said = await run(
        sandbox.shell,
        "printf '#include <stdio.h>\nint main(void) { return puts(\"compiled\") < 0; }' > a.c && gcc -o a a.c && ./a"
        " && python -m venv one && one/bin/pip --version >/dev/null && uv venv -q two && two/bin/python -c 'print(2)'"
        "; echo $? $SHELL",
        timeout_s=120,
    )
    assert text(said) == "compiled\n2\n0 /bin/bash\n"


async def test_the_tool_user_has_a_name_without_which_ssh_does_not_start(sandbox: Sandbox) -> None:
    said = await run(
        sandbox.shell,
        "whoami; ssh-keygen -q -t ed25519 -N '' -f key && ssh-keygen -y -P '' -f key | cut -d ' ' -f 1"
        "; ssh -T -p 9 127.0.0.1; python3 -c 'import pwd; print(pwd.getpwnam(\"sandbox\").pw_dir)'",
    )
    assert text(said).splitlines() == [
        *("sandbox", "ssh-ed25519"),
        "ssh: connect to host 127.0.0.1 port 9: Connection refused",
        "/workspace",
    ]


async def test_home_is_in_the_workspace_and_git_has_an_identity(sandbox: Sandbox) -> None:
    said = await run(
        sandbox.shell,
        "cd && pwd && git config --global core.editor true && mkdir repo && cd repo && git init -q && touch a"
        " && git add a && git commit -qm first && git log --format=%an%ae",
    )
    assert (said.exit_code, text(said)) == (0, "/workspace\nAirlock sandboxsandbox@airlock.invalid\n")


async def test_pip_installs_a_wheel_that_is_at_hand(sandbox: Sandbox) -> None:
    wheel = greeting_wheel()
    await sandbox.files.write(f"/workspace/{wheel.file_name}", wheel.data)
    said = await run(sandbox.shell, f"pip install -q ./{wheel.file_name} && greet")
    assert (said.exit_code, text(said)) == (0, "well met\n")


async def test_a_program_in_the_workspace_does_not_take_the_name_of_one_of_the_image(sandbox: Sandbox) -> None:
    said = await run(
        sandbox.shell,
        "mkdir -p ~/.local/bin && printf '#!/bin/sh\\necho mine\\n' > ~/.local/bin/git && chmod +x ~/.local/bin/git"
        " && command -v git; rm ~/.local/bin/git",
    )
    assert text(said) == "/usr/bin/git\n"
