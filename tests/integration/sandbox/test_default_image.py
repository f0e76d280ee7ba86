"""What the default image offers: the programs that agents expect, a home that stays, and pip for wheels at hand."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.sandbox import Sandbox
from tests.integration.sandbox.live_engine import run, spec, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROGRAMS = (
    *("bash", "curl", "file", "git", "jq", "less", "make", "patch", "pip", "ps", "python", "python3", "rg", "sqlite3"),
    *("unzip", "zip"),
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(engine: DockerEngine) -> AsyncIterator[Sandbox]:
    made = await engine.create(spec("default-image"))
    yield made
    await engine.remove(made.id)


def wheel() -> bytes:
    """Return a wheel with a module and a program."""
    files = {
        "greeting.py": "def main():\n    print('well met')\n",
        "greeting-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        "greeting-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "greeting-1.0.dist-info/entry_points.txt": "[console_scripts]\ngreet = greeting:main\n",
    }
    files["greeting-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


async def test_the_programs_that_agents_expect_are_there(sandbox: Sandbox) -> None:
    wanted = " ".join(PROGRAMS)
    assert text(await run(sandbox.shell, f"for p in {wanted}; do command -v $p >/dev/null || echo no $p; done")) == ""
    assert text(await run(sandbox.shell, "python --version; echo $SHELL")) == text(
        await run(sandbox.shell, "python3 --version; echo /bin/bash")
    )


async def test_home_is_in_the_workspace_and_git_has_an_identity(sandbox: Sandbox) -> None:
    said = await run(
        sandbox.shell,
        "cd && pwd && git config --global core.editor true && mkdir repo && cd repo && git init -q && touch a"
        " && git add a && git commit -qm first && git log --format=%an%ae",
    )
    assert (said.exit_code, text(said)) == (0, "/workspace\nAirlock sandboxsandbox@airlock.invalid\n")


async def test_pip_installs_a_wheel_that_is_at_hand(sandbox: Sandbox) -> None:
    await sandbox.files.write("/workspace/greeting-1.0-py3-none-any.whl", wheel())
    said = await run(sandbox.shell, "pip install -q ./greeting-1.0-py3-none-any.whl && greet && python -m greeting")
    assert (said.exit_code, text(said)) == (0, "well met\n")


async def test_a_program_in_the_workspace_does_not_take_the_name_of_one_of_the_image(sandbox: Sandbox) -> None:
    said = await run(
        sandbox.shell,
        "mkdir -p ~/.local/bin && printf '#!/bin/sh\\necho mine\\n' > ~/.local/bin/git && chmod +x ~/.local/bin/git"
        " && command -v git; rm ~/.local/bin/git",
    )
    assert text(said) == "/usr/bin/git\n"
