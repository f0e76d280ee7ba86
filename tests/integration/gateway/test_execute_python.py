"""execute_python on a real engine: what stays between calls, and what ends an interpreter, each with one outcome."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.client import Client, InvalidArgument, ToolResult
from tests.docker_state import containers_of
from tests.gateway_process import make_home, served
from tests.integration.gateway.conftest import Pair
from tests.made_images import png

NEW = "new interpreter"
GONE = "variables are gone"


@pytest.fixture
async def airlock(pair: Pair) -> AsyncIterator[Client]:
    """A client whose tests share a sandbox, and each of which begins without interpreters."""
    async with Client(pair.address, pair.key) as client:
        yield client
        for name in ("default", "other"):
            await run(client, "", context=name, restart=True)


async def run(airlock: Client, code: str, *, thread: str = "python", **arguments: object) -> ToolResult:
    return await airlock.call_tool("execute_python", {"code": code, **arguments}, thread=thread)


async def test_variables_stay_and_a_service_gets_the_parts_of_a_result(airlock: Client, pair: Pair) -> None:
    first = await run(airlock, "import sys\nx = 6\nprint('out')\nprint('err', file=sys.stderr)\nx * 7")
    assert (first.outcome, first.is_error, first.content) == ("completed", False, "out\nerr\n42")
    assert (first.stdout, first.stderr, NEW in first.note) == ("out\n", "err\n", True)
    assert first.structured == {
        "context": "default",
        "execution_count": 1,
        "results": [{"texts": {"text/plain": "42"}, "image": None, "is_main_result": True}],
        "error": None,
    }
    failed = await run(airlock, "x / 0")
    assert (failed.outcome, failed.is_error, failed.note) == ("failed", True, "")
    assert failed.content.startswith("Traceback")
    assert failed.structured["error"]["name"] == "ZeroDivisionError"
    found = pair.home.rows(
        f"select name, verdict, rule, outcome, is_error from tool_calls where id = '{failed.call_id}'"
    )
    assert [tuple(row) for row in found] == [("execute_python", "allow", "python", "failed", 1)]
    audited = pair.home.rows(f"select tool, verdict, outcome from audit_records where call_id = '{failed.call_id}'")
    assert [tuple(row) for row in audited] == [("execute_python", "allow", "failed")]
    other = await run(airlock, "x", context="other")
    assert other.structured["error"]["name"] == "NameError"
    names = {one.id.rpartition("-")[2] for one in (await airlock.processes("python")).processes}
    assert names == {"default", "other"}
    assert {tool.name for tool in await airlock.list_tools()} >= {"execute", "execute_python"}


async def test_images_are_files_of_the_workspace_that_belong_to_the_result(airlock: Client) -> None:
    image = png(3, 2)
    result = await run(airlock, f"class Plot:\n    def _repr_png_(self): return {image!r}\nPlot()")
    (file,) = result.attachments
    assert (file.media_type, file.size_bytes) == ("image/png", len(image))
    assert await airlock.read_file("python", file.path) == image
    assert (result.structured["results"][0]["image"], file.path in result.content) == (file.path, True)
    damaged = await run(airlock, "class Bad:\n    def _repr_png_(self): return b'not a png'\nBad()")
    assert (damaged.attachments, "an image was not kept: it is not a PNG" in damaged.note) == ((), True)


async def test_no_one_writes_to_an_interpreter_or_reads_from_it_past_the_policy(airlock: Client) -> None:
    await run(airlock, "1")
    (process,) = (await airlock.processes("python")).processes
    for attempt in (
        airlock.write_process("python", process.id, b'{"run": "ab", "code": "1"}\n'),
        airlock.start_process(["cat"], thread="python", process_id=f"{process.id[:-7]}more"),
        anext(aiter(airlock.process_output("python", process.id))),
    ):
        with pytest.raises(InvalidArgument, match="run code by that tool"):
            await attempt


async def test_a_policy_without_a_rule_for_it_neither_lists_nor_runs_it(strict: Client) -> None:
    assert "execute_python" not in {tool.name for tool in await strict.list_tools()}
    denied = await run(strict, "1")
    assert denied.verdict == "deny"


async def test_secrets_are_taken_out_of_all_parts(airlock: Client) -> None:
    secret = "ghp_" + "a1B2" * 9
    result = await run(
        airlock, "s = 'ghp_' + 'a1B2' * 9\nprint(s[:9], end='', flush=True)\nprint(s[9:])\nraise KeyError(s)"
    )
    assert "[redacted" in result.content
    for part in (result.content, result.stdout, result.note, str(result.structured)):
        assert secret not in part


@pytest.mark.parametrize(
    "code,outcome,said",
    [
        ("import os; os._exit(3)", "exited", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "signalled", "signal 9"),
        ("x = bytearray(3 * 2**30)", "out_of_memory", "out of memory"),
    ],
)
async def test_code_that_ends_its_interpreter_gets_one_clear_outcome(
    airlock: Client, code: str, outcome: str, said: str
) -> None:
    await run(airlock, "kept = 1")
    ended = await run(airlock, code)
    assert (ended.outcome, ended.is_error, said in ended.note, GONE in ended.note) == (outcome, True, True, True), ended
    again = await run(airlock, "'kept' in globals()")
    assert (again.content, NEW in again.note) == ("False", True)


async def test_an_interpreter_that_another_call_kills_is_replaced_by_the_next_call(airlock: Client) -> None:
    pid = (await run(airlock, "import os\nos.getpid()")).content
    # It is gone once the daemon has seen its end.
    killed = f"kill -9 {pid}; while [ -e /proc/{pid} ]; do sleep 0.05; done"
    await airlock.call_tool("execute", {"command": killed}, thread="python")
    again = await run(airlock, "1")
    assert (again.content, "had ended (killed by signal 9)" in again.note) == ("1", True), again.note


async def test_a_fork_bomb_ends_with_its_time_and_the_sandbox_serves_on(airlock: Client) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    result = await run(airlock, bomb, timeout_s=2)
    assert result.outcome in {"timed_out", "pids_limit"}, result
    again = await run(airlock, "1 + 1")
    assert again.content == "2", again
    (listed,) = (await airlock.processes("python")).processes
    assert listed.tree <= 64
    assert not (await airlock.call_tool("execute", {"command": "true"}, thread="python")).is_error


async def test_a_time_limit_and_a_cancelled_call_interrupt_the_code_and_keep_variables(airlock: Client) -> None:
    late = await run(airlock, "x = 1\nprint('begun')\nimport time; time.sleep(60)", timeout_s=1)
    assert (late.outcome, late.content.startswith("begun\n"), "variables are kept" in late.note) == (
        "timed_out",
        True,
        True,
    )
    begun = asyncio.Event()
    call = asyncio.ensure_future(
        airlock.call_tool(
            "execute_python",
            {"code": "x = 2\nprint('begun')\ntime.sleep(60)"},
            thread="python",
            on_output=lambda *_: begun.set(),
        )
    )
    await begun.wait()
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    assert (await run(airlock, "x")).content == "2"


async def test_calls_of_one_context_take_turns_and_contexts_do_not_wait_for_each_other(airlock: Client) -> None:
    await asyncio.gather(run(airlock, "turns = []"), run(airlock, "1", context="other"))
    code = "import time\nturns.append('in')\ntime.sleep(0.2)\nturns.append('out')"
    slow = asyncio.gather(*(run(airlock, code) for _ in range(3)))
    await run(airlock, "1", context="other", timeout_s=5)
    await slow
    assert (await run(airlock, "turns")).content == str(["in", "out"] * 3)
    waiting = asyncio.ensure_future(run(airlock, "time.sleep(2)"))
    await asyncio.sleep(0.5)
    refused = await run(airlock, "turns.clear()", timeout_s=0.5)
    assert (refused.outcome, "it did not run" in refused.note) == ("failed_to_start", True)
    await waiting


async def test_large_output_is_evicted_and_the_gateway_shows_its_ends(airlock: Client) -> None:
    result = await run(airlock, "piece = 'x' * 2**20\nfor _ in range(128): print(piece, end='')\nprint('the end')")
    assert result.evicted is not None
    assert (result.outcome, result.content.startswith("xxx"), result.content.endswith("the end\n")) == (
        "completed",
        True,
        True,
    )
    assert len(result.content) + len(result.stdout) < 20_000
    kept = await airlock.read_file("python", result.evicted.path)
    assert b"bytes left out" in kept


async def test_a_stopped_sandbox_and_a_fork_have_new_interpreters_and_say_so_once(airlock: Client) -> None:
    await run(airlock, "x = 1")
    await airlock.stop_sandbox("python")
    await airlock.fork_thread("python", "python-fork")
    for thread in ("python", "python-fork"):
        first, second = await run(airlock, "'x' in globals()", thread=thread), await run(airlock, "1", thread=thread)
        assert (first.content, NEW in first.note, second.note) == ("False", True, "")
    await airlock.delete_thread("python-fork")


POLICY = """\
version: 1
enforcement: kernel
sandbox: {{memory_mib: 512}}
rules:
  - {{id: look, tools: [read], paths: [/workspace/**, /tmp/**], effect: allow, reason: The project.}}
  - {{id: change, tools: [write], paths: [/workspace/{writable}/**, /tmp/**], effect: allow, reason: The sources.}}
  - {{id: owner, tools: [write], effect: allow, enforcement: gateway, reason: A service puts the files there.}}
  - {{id: commands, tools: [execute], argv: [[ls], [cat]], effect: allow, reason: Looking.}}
  - {{id: code, tools: [execute_python], effect: allow, reason: The kernel enforces the rules on files.}}
"""


async def test_code_is_confined_by_the_file_rules_in_force_and_never_by_earlier_ones(tmp_path: Path) -> None:
    home = await asyncio.to_thread(make_home, tmp_path / "home")
    home.configure(sandbox={"on_stop": "keep", "keep_workspaces": True})
    key = await asyncio.to_thread(home.add_tenant, "a", POLICY.format(writable="src"))
    operator = await asyncio.to_thread(home.make_key, "", "operate")
    write = "open('/workspace/{0}/x', 'w').write('y')"
    with served(home) as gateway:
        async with Client(gateway.address, key) as airlock, Client(gateway.address, operator) as admin:
            for name in ("src", "docs"):
                await airlock.write_file("t", f"/workspace/{name}/file", b"content")
            assert (await run(airlock, f"kept = 1\n{write.format('src')}", thread="t")).content == "1"
            refused = await run(airlock, write.format("docs"), thread="t")
            assert refused.structured["error"]["name"] == "PermissionError"
            other = await run(airlock, "import subprocess\nsubprocess.run(['find'])", thread="t")
            assert other.structured["error"]["name"] == "PermissionError"
            await admin.apply_policy("a", POLICY.format(writable="docs"))
            changed = await run(airlock, f"print('kept' in globals())\n{write.format('docs')}", thread="t")
            assert (changed.content, "file rules have changed" in changed.note) == ("False\n1", True), changed
            refused = await run(airlock, write.format("src"), thread="t")
            assert refused.structured["error"]["name"] == "PermissionError"
            await run(airlock, "kept = 2", thread="t")
    with served(home) as gateway:  # finds the sandbox, and in it the interpreter
        async with Client(gateway.address, key) as airlock:
            again = await run(airlock, "kept", thread="t")
            assert (again.content, again.note) == ("2", "")
            await airlock.delete_thread("t")
    assert containers_of(home.instance) == []


@contextlib.contextmanager
def _image_with_ipykernel(directory: Path) -> Iterator[str]:
    """Yield the name of an image that is the default one with ipykernel and what it needs."""
    packages = directory / "packages"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages), "ipykernel==7.1.0"]
    if subprocess.run(install, check=False).returncode:
        pytest.skip("no registry has ipykernel here")
    name = f"airlock-made-ipykernel-{directory.name.lower()}"
    made = subprocess.run(
        ["docker", "create", "airlock-sandbox"], check=True, capture_output=True, text=True
    ).stdout.strip()
    try:
        where = "/usr/lib/python3/dist-packages"
        subprocess.run(["docker", "cp", f"{packages}/.", f"{made}:{where}"], check=True, capture_output=True)
        subprocess.run(["docker", "commit", made, name], check=True, capture_output=True)
        yield name
    finally:
        subprocess.run(["docker", "rm", made], check=True, capture_output=True)
        subprocess.run(["docker", "image", "rm", "-f", name], check=True, capture_output=True)


@pytest.mark.full
async def test_where_the_image_has_ipykernel_cells_run_in_its_shell(tmp_path: Path) -> None:
    with _image_with_ipykernel(tmp_path) as image:
        home = await asyncio.to_thread(make_home, tmp_path / "home")
        policy = home.config.parent / "policies" / "default.yaml"
        text = policy.read_text(encoding="utf-8").replace("image: airlock-sandbox", f"image: {image}")
        policy.write_text(text, encoding="utf-8")
        with served(home) as gateway:
            async with Client(gateway.address, home.key) as airlock:
                first = await run(airlock, "x = 6\n%time x * 7", thread="t")
                assert ("IPython" in first.note, first.content.splitlines()[-1]) == (True, "42"), first
                assert "sub" in (await run(airlock, "!echo sub", thread="t")).content
                shown = await run(airlock, f"from IPython.display import Image\nImage(data={png()!r})", thread="t")
                assert [one.media_type for one in shown.attachments] == ["image/png"], shown
                failed = await run(airlock, "x / 0", thread="t")
                assert (failed.structured["error"]["name"], "\x1b" in failed.content) == ("ZeroDivisionError", False)
                late = await run(airlock, "while True: pass", thread="t", timeout_s=1)
                assert (late.outcome, "variables are kept" in late.note) == ("timed_out", True), late
                assert (await run(airlock, "x", thread="t")).structured["execution_count"] == 6
                await airlock.delete_thread("t")
