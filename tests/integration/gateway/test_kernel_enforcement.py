"""A policy with `enforcement: kernel`: whatever a command line says, the kernel refuses the files it may not use."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.client import Client
from tests.gateway_process import airlock as airlock_cli
from tests.gateway_process import make_home, served

POLICY = """\
version: 1
description: Commands write under src only, and read nothing of secrets.
enforcement: kernel
sandbox: {memory_mib: 256}
rules:
  - {id: look, tools: [read], paths: [/workspace/**, /tmp/**], effect: allow, reason: The project.}
  - {id: change, tools: [write], paths: [/workspace/src/**, /tmp/**], effect: allow, reason: The sources.}
  - {id: secrets, tools: [read], paths: [/workspace/secrets/**], effect: deny, reason: The owner's.}
  - {id: owner, tools: [write], effect: allow, enforcement: gateway, reason: A service puts the files there.}
  - {id: commands, tools: [execute], effect: allow, reason: The kernel enforces the rules on files.}
"""
OPEN = """\
version: 1
description: The control, in which nothing is forbidden.
sandbox: {memory_mib: 256}
rules:
  - {id: files, tools: [read, write], effect: allow, reason: The control.}
  - {id: commands, tools: [execute], effect: allow, reason: The control.}
"""
# Each prints the key, or makes /workspace/top.
LINES = (
    "cat /workspace/secrets/key",
    "echo x > /workspace/top",
    "find src -exec cat {}/../secrets/key \\;",
    "cat /proc/self/cwd/secrets/key",
    "cat /proc/self/root/workspace/secrets/key",
    "python3 -c \"print(open('secrets/key').read())\"",
    "d=sec; cd ${d}rets && cat key",
    "mv src/file top",
    "cp src/file top",
    "ln secrets/key src/key; cat src/key",
    "echo 'echo x > /workspace/top' | sh",
    "(echo x > top &) ; sleep 0.2",
)


async def _harms(airlock: Client, thread: str, output: str) -> bool:
    """Return whether a line has printed the key or made the file, and remove the file."""
    made = await airlock.call_tool("glob", {"path": "/workspace", "pattern": "top"}, thread=thread)
    if "top" in made.content:
        await airlock.call_tool("execute", {"command": "mv top src/file"}, thread=thread)
    return "the key" in output or "top" in made.content


async def _prepare(airlock: Client, thread: str) -> None:
    """Have the files in a thread, as the service that owns them."""
    for name, content in (("src/file", b"content\n"), ("secrets/key", b"the key\n")):
        await airlock.write_file(thread, f"/workspace/{name}", content)


async def test_no_line_reads_or_writes_what_the_kernel_forbids(tmp_path: Path) -> None:
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    enforced, control = [
        await asyncio.to_thread(home.add_tenant, name, policy) for name, policy in (("a", POLICY), ("b", OPEN))
    ]
    harm: dict[str, list[bool]] = {enforced: [], control: []}
    with served(home) as gateway:
        for key, found in harm.items():
            async with Client(gateway.address, key) as airlock:
                await _prepare(airlock, "t")
                for line in LINES:
                    done = await airlock.call_tool("execute", {"command": line}, thread="t")
                    assert done.outcome == "exited", done
                    found.append(await _harms(airlock, "t", done.content))
                allowed = (
                    "echo y > src/new && cat src/file src/new && python3 -c 'print(1)' && touch /tmp/x && ls /usr/bin"
                )
                done = await airlock.call_tool("execute", {"command": allowed}, thread="t")
                assert (done.outcome, done.is_error) == ("exited", False), done
        async with Client(gateway.address, enforced) as airlock:
            done = await airlock.call_tool("execute", {"command": "cat secrets/key"}, thread="t")
            assert "the policy lets commands read nothing below /workspace/secrets: rule secrets" in done.note
            done = await airlock.call_tool("execute", {"command": "touch top"}, thread="t")
            assert "the policy lets commands write only below /tmp, /workspace/src" in done.note
    assert harm[enforced] == [False] * len(LINES)
    assert harm[control] == [True] * len(LINES)


async def test_programs_processes_and_terminals_are_restricted_after_a_stop_and_in_a_fork_too(tmp_path: Path) -> None:
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    key = await asyncio.to_thread(home.add_tenant, "a", POLICY)
    line = ["sh", "-c", "cat secrets/key; echo x > top"]
    with served(home) as gateway:
        async with Client(gateway.address, key) as airlock:
            await _prepare(airlock, "t")
            program = await airlock.run_program(line, thread="t")
            assert (program.exit_code, "the key" in str(program.stdout)) == (2, False), program
            for name, terminal in (("pipe", False), ("terminal", True)):
                await airlock.start_process(line, thread="t", process_id=name, terminal=terminal)
                ended = await airlock.wait_process("t", name, timeout_s=20)
                said = b"".join([piece.data async for piece in airlock.process_output("t", name)])
                assert (ended.exit_code, b"the key" in said) == (2, False), (ended, said)
            await airlock.stop_sandbox("t")
            await airlock.fork_thread("t", "forked")
            for thread in ("t", "forked"):
                done = await airlock.call_tool("execute", {"command": " ".join(line[2:])}, thread=thread)
                assert "Permission denied" in done.content
                assert not await _harms(airlock, thread, done.content)


# Each is allowed by its words, and starts rm or id by itself.
STARTS = (
    "awk 'BEGIN { system(\"rm src/file\") }'",
    "find src -name file -exec sh -c 'r=rm; $r \"$1\"' - {} \\;",
    "tar -cf /tmp/t --checkpoint=1 --checkpoint-action=exec='rm src/file' src",
    'cp /bin/rm /tmp/other && python3 -c \'import os; os.execv("/tmp/other", ["rm", "src/file"])\'',
    'python3 -c \'import os; os.execv("/bin/rm", ["rm", "src/file"])\'',
)
NAMED = """\
  - id: commands
    tools: [execute]
    argv: [[[awk, cp, cat, find, python3, tar, ./src/run]]]
    effect: allow
    reason: These.
opaque: allow
"""


async def test_an_allowed_program_starts_none_that_no_rule_names(tmp_path: Path) -> None:
    named = POLICY[: POLICY.index("  - {id: commands")] + NAMED
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    keys = [await asyncio.to_thread(home.add_tenant, name, policy) for name, policy in (("a", named), ("b", OPEN))]
    gone: dict[str, list[bool]] = {key: [] for key in keys}
    with served(home) as gateway:
        for key in keys:
            async with Client(gateway.address, key) as airlock:
                for line in STARTS:
                    await _prepare(airlock, "t")
                    done = await airlock.call_tool("execute", {"command": line}, thread="t")
                    assert done.outcome == "exited", (line, done)
                    found = await airlock.call_tool("glob", {"path": "/workspace/src", "pattern": "file"}, thread="t")
                    gone[key].append("file" not in found.content)
                await airlock.write_file("t", "/workspace/src/run", b"#!/usr/bin/env python3\nprint('it runs')\n")
                line = "python3 -c 'import os; os.chmod(\"src/run\", 0o755)' && ./src/run"
                done = await airlock.call_tool("execute", {"command": line}, thread="t")
                assert "it runs" in done.content, done
        async with Client(gateway.address, keys[0]) as airlock:
            done = await airlock.call_tool("execute", {"command": STARTS[-1]}, thread="t")
            assert "execute" in done.note, done
    assert gone[keys[0]] == [False] * len(STARTS)
    assert gone[keys[1]] == [True] * len(STARTS)


async def test_a_policy_that_changes_holds_from_the_next_call(tmp_path: Path) -> None:
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    key = await asyncio.to_thread(home.add_tenant, "a", POLICY)
    with served(home) as gateway:
        async with Client(gateway.address, key) as airlock:
            await _prepare(airlock, "t")
            command = {"command": "cat secrets/key"}
            assert "the key" not in (await airlock.call_tool("execute", command, thread="t")).content
            wider = tmp_path / "wider.yaml"
            wider.write_text(OPEN, encoding="utf-8")
            await asyncio.to_thread(
                airlock_cli, "policy", "apply", str(wider), "--tenant", "a", "--config", str(home.config)
            )
            async with asyncio.timeout(20):
                while "the key" not in (await airlock.call_tool("execute", command, thread="t")).content:
                    await asyncio.sleep(0.2)
