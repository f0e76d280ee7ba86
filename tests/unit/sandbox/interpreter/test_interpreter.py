"""The interpreter over a real daemon, the in-memory engine's, with this machine's python3 without its packages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox.engines.local.memory_engine import MemoryEngine
from sandbox.errors import Conflict
from sandbox.file_rules import FileRules
from sandbox.interpreter.cell import Cell, CellResult
from sandbox.interpreter.inside.limits import OUTPUT_LIMIT_BYTES, TAIL_BYTES
from sandbox.interpreter.interpreter import CONTEXTS_LIMIT, InterpreterCall, process_id_of
from sandbox.protocols import Processes
from sandbox.sandbox import SandboxSpec
from tests.made_images import png

pytestmark = pytest.mark.asyncio(loop_scope="module")
NEW = "new interpreter"
Run = Callable[..., "asyncio.Future[CellResult]"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Processes]:
    """The background processes of a sandbox whose python3 has no packages."""
    programs = tmp_path_factory.mktemp("programs")
    python = Path(sys.executable).resolve()  # not what stands first in PATH: that may be a script which looks for one
    script = f'#!/bin/sh\n[ -z "$BROKEN" ] || {{ echo it is broken >&2; exit 9; }}\nexec {python} -S "$@"\n'
    (programs / "python3").write_text(script, encoding="utf-8")
    (programs / "python3").chmod(0o755)
    engine = MemoryEngine(root=tmp_path_factory.mktemp("engine"))
    path = f"{programs}:/usr/bin:/bin"
    sandbox = await engine.create(SandboxSpec("tenant", "thread", "any-image", env={"PATH": path}))
    yield sandbox.processes
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def run(processes: Processes, request: pytest.FixtureRequest) -> AsyncIterator[Run]:
    """Run code in a context of the test's own, which ends with it."""
    context = f"c{abs(hash(request.node.name)) % 10**12}"

    def run_code(
        code: str, *, timeout_s: float = 60.0, restart: bool = False, **how: object
    ) -> asyncio.Future[CellResult]:
        cell = Cell(code, context, restart, timeout_s)
        return asyncio.ensure_future(InterpreterCall(processes, cell, **how).run())  # type: ignore[arg-type]

    yield run_code
    await run_code("", restart=True)


def text(result: CellResult) -> str:
    return b"".join(piece.data for piece in (*result.output, *result.tail)).decode("utf-8", "replace")


def value(result: CellResult) -> str:
    """Return the value of the cell's last expression."""
    (shown,) = [one for one in result.objects if one.is_result]
    return shown.texts["text/plain"]


def said(result: CellResult) -> str:
    return "\n".join(result.notes)


async def test_variables_stay_and_cells_are_counted(run: Run) -> None:
    first = await run("import math\nx = 6")
    second = await run("x * 7")
    assert (first.outcome, first.count, second.count) == ("completed", 1, 2)
    assert NEW in said(first)
    assert second.notes == ()
    assert value(second) == "42"


async def test_output_of_the_code_and_of_programs_it_starts_comes_as_bytes_each_stream_apart(
    run: Run,
) -> None:
    seen: list[tuple[str, bytes]] = []
    code = "import os, sys\nos.write(1, b'\\xff\\n')\nos.system('echo sub')\nprint('late', file=sys.stderr)"
    result = await run(code, on_output=lambda stream, data: seen.append((stream, data)))
    out = b"".join(piece.data for piece in result.output if piece.stream == "stdout")
    err = b"".join(piece.data for piece in result.output if piece.stream == "stderr")
    assert (out, err) == (b"\xff\nsub\n", b"late\n")
    assert b"".join(data for _, data in seen) == b"".join(piece.data for piece in result.output)


async def test_an_exception_ends_the_cell_and_not_the_interpreter(run: Run) -> None:
    await run("kept = 1\ndef divide(x):\n    return 1 / x")
    failed = await run("divide(0)")
    assert failed.error is not None
    assert (failed.outcome, failed.error.name, failed.error.value) == (
        "failed",
        "ZeroDivisionError",
        "division by zero",
    )
    assert "return 1 / x" in failed.error.traceback  # the line is shown, though no file has it
    assert "sandbox/interpreter" not in failed.error.traceback
    assert value(await run("kept")) == "1"


@pytest.mark.parametrize(
    "code,name",
    [
        ("def f(): return f()\nf()", "RecursionError"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("input('name? ')", "RuntimeError"),
        ("if True print", "SyntaxError"),
        ("x = '\\0'\nexec('a\\0b')", "SyntaxError"),
        ("class Odd(Exception):\n    def __str__(self): raise KeyError\nraise Odd", "Odd"),
    ],
)
async def test_what_python_code_can_do_to_end_itself_is_an_error_of_the_cell(run: Run, code: str, name: str) -> None:
    failed = await run(code)
    assert failed.error is not None
    assert (failed.outcome, failed.error.name) == ("failed", name)
    assert value(await run("1")) == "1"


async def test_code_is_awaited_where_it_says_so(run: Run) -> None:
    assert value(await run("import asyncio\nawait asyncio.sleep(0, 'slept')")) == "'slept'"


async def test_code_that_runs_too_long_is_interrupted_and_variables_are_kept(
    run: Run,
) -> None:
    result = await run("x = 5\nprint('begun')\nwhile True: pass", timeout_s=0.3)
    assert result.outcome == "timed_out"
    assert text(result) == "begun\n"
    assert "variables are kept" in said(result)
    assert value(await run("x")) == "5"


async def test_code_that_does_not_stop_when_interrupted_costs_its_interpreter(
    run: Run,
) -> None:
    code = "import time\nwhile True:\n    try:\n        time.sleep(60)\n    except KeyboardInterrupt: pass"
    result = await run(code, timeout_s=0.3)
    assert result.outcome == "timed_out"
    assert "the interpreter was restarted; variables are gone" in said(result)
    assert NEW in said(await run("1"))


async def test_code_whose_call_is_cancelled_is_interrupted(processes: Processes, run: Run) -> None:
    await run("x = 1")
    context = (await processes.list()).processes[-1].id.rpartition("-")[2]
    begun = asyncio.Event()
    cell = Cell("x = 2\nprint(x)\nwhile True: pass", context)
    call = InterpreterCall(processes, cell, on_output=lambda *_: begun.set())
    running = asyncio.ensure_future(call.run())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await call.stop()
    assert value(await run("x")) == "2"


@pytest.mark.parametrize(
    "code,outcome,how",
    [
        ("import os; os._exit(7)", "exited", "exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", "signalled", "signal 9"),
    ],
)
async def test_code_that_ends_its_interpreter_has_an_outcome_that_says_how_and_the_next_call_a_new_one(
    run: Run, code: str, outcome: str, how: str
) -> None:
    result = await run(code)
    assert (result.outcome, how in said(result)) == (outcome, True)
    assert "variables are gone" in said(result)
    again = await run("1")
    assert NEW in said(again)
    assert value(again) == "1"


async def test_an_interpreter_that_ended_between_calls_is_replaced_and_the_result_says_so(
    run: Run, processes: Processes
) -> None:
    await run("import os, threading\nthreading.Timer(0.05, os._exit, [3]).start()")
    last = (await processes.list()).processes[-1].id
    while (await processes.wait(last, wait_s=5)).running:
        pass
    again = await run("1")
    assert "had ended (exit code 3)" in said(again)
    assert NEW in said(again)


async def test_a_python_that_does_not_start_says_why(run: Run) -> None:
    result = await run("1", env={"BROKEN": "yes"})
    assert (result.outcome, result.exit_code) == ("exited", 9)
    assert "and wrote: it is broken" in said(result)


async def test_an_interpreter_that_is_removed_while_code_runs_ends_the_call(run: Run, processes: Processes) -> None:
    begun = asyncio.Event()
    running = run("print(1)\nimport time; time.sleep(60)", on_output=lambda *_: begun.set())
    await begun.wait()
    await processes.remove((await processes.list()).processes[-1].id)
    result = await running
    assert (result.outcome in {"cancelled", "signalled"}, "the next call starts a new one" in said(result)) == (
        True,
        True,
    )


async def test_a_forked_copy_of_the_interpreter_ends_with_the_cell(run: Run) -> None:
    result = await run(
        "import os\npid = os.fork()\nif pid == 0:\n    print('child')\nelse:\n    done = os.waitpid(pid, 0)[1]"
    )
    assert text(result) == "child\n"
    assert value(await run("done, os.getpid() != pid")) == "(0, True)"


async def test_output_past_the_limit_keeps_its_head_and_its_end(run: Run) -> None:
    code = "import os\npiece = b'x' * 2**20\nfor _ in range(64): os.write(1, piece)\nprint('the end')"
    result = await run(code)
    head, tail = (sum(len(piece.data) for piece in pieces) for pieces in (result.output, result.tail))
    assert (head, tail) == (OUTPUT_LIMIT_BYTES, TAIL_BYTES)
    assert head + tail + result.left_out_bytes == 64 * 2**20 + len("the end\n")
    assert text(result).endswith("the end\n")


async def test_output_between_calls_comes_first_in_the_next_result(run: Run) -> None:
    code = "import threading\nsaid = threading.Event()\ndef late():\n    print('between')\n    said.set()\n"
    await run(f"{code}threading.Timer(0.05, late).start()")
    await asyncio.sleep(0.3)
    result = await run("said.wait(5)\nprint('now')")
    assert text(result).splitlines()[-1] == "now"
    assert "between" in text(result)


async def test_a_huge_repr_is_cut_and_one_that_raises_says_so(run: Run) -> None:
    result = await run("'y' * 10**7")
    assert len(value(result)) < 200_000
    assert "characters left out" in value(result)
    assert "raised KeyError" in value(await run("class Odd:\n    def __repr__(self): raise KeyError\nOdd()"))


async def test_images_that_objects_have_are_shown_up_to_a_size(run: Run) -> None:
    image = png(3, 2)
    code = f"class Plot:\n    def _repr_png_(self): return {image!r}\ndisplay(Plot())\nPlot()"
    result = await run(code)
    assert [(one.image, one.is_result) for one in result.objects] == [(image, False), (image, True)]
    huge = await run("class Huge:\n    def _repr_png_(self): return b'x' * (9 * 2**20)\nHuge()")
    assert (huge.objects[0].image, huge.left_out_objects) == (b"", 1)
    large = await run("class Large:\n    def _repr_png_(self): return b'x' * (7 * 2**20)\nLarge()")
    assert len(large.objects[0].image) == 7 * 2**20


async def test_a_working_directory_that_is_gone_is_left(run: Run) -> None:
    await run("import os, tempfile\nd = tempfile.mkdtemp()\nos.chdir(d)\nos.rmdir(d)")
    result = await run("len(os.getcwd()) > 0")
    assert value(result) == "True"
    assert "the working directory was gone" in said(result)


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.stdout.close(); sys.stderr.close()",
        "import os; os.close(1); os.close(2)",
        "import sys; sys.stdout = None; sys.stderr = 5",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "import builtins; del builtins.input; builtins.repr = None",
    ],
)
async def test_what_code_does_to_its_streams_and_signals_does_not_reach_the_next_cell(run: Run, code: str) -> None:
    await run(code)
    result = await run("print('heard')\nwhile True: pass", timeout_s=0.3)
    assert (text(result), result.outcome) == ("heard\n", "timed_out")
    assert "variables are kept" in said(result)


async def test_code_that_closes_the_channel_costs_its_own_interpreter(run: Run) -> None:
    broken = await run("import os\nos.closerange(3, 100)\nprint(1)")
    assert broken.outcome in {"failed", "exited"}
    assert "the next call starts a new one" in said(broken)
    assert NEW in said(await run("2"))


@pytest.mark.parametrize("junk", [r"no frame at all\n", r"done 00 999999999\n", r"image 00 3\nabc"])
async def test_code_that_writes_to_the_channel_spoils_its_own_result_at_most(run: Run, junk: str) -> None:
    code = f"import os\nfor fd in range(3, 30):\n    try: os.write(fd, b'{junk}')\n    except OSError: pass"
    broken = await run(code)
    assert broken.outcome == "completed" or "the interpreter was ended" in said(broken)
    assert value(await run("2")) == "2"


async def test_variables_of_the_environment_are_those_of_the_call(run: Run) -> None:
    code = "import os\nos.environ.get('HTTP_PROXY')"
    assert value(await run(code, env={"HTTP_PROXY": "http://one"})) == "'http://one'"
    assert value(await run(code, env={"HTTP_PROXY": "http://two"})) == "'http://two'"
    assert (await run(code)).objects == ()


async def test_no_module_of_the_workspace_takes_the_place_of_one_that_the_interpreter_needs(
    run: Run,
) -> None:
    await run("open('json.py', 'w').write('raise SystemError')")
    result = await run("import sys\n'json' in sys.modules", restart=True)
    assert value(result) == "True"
    await run("import os\nos.remove('json.py')")


async def test_a_second_call_while_code_runs_is_refused_by_the_interpreter_itself(
    run: Run,
) -> None:
    await run("1")
    begun = asyncio.Event()
    first = run("print('begun')\nimport time; time.sleep(60)", timeout_s=2.0, on_output=lambda *_: begun.set())
    await begun.wait()
    second = await run("2")
    assert second.outcome == "failed"
    assert "it did not run" in said(second)
    assert (await first).outcome == "timed_out"


async def test_a_restart_ends_what_runs_and_without_code_nothing_is_started(
    run: Run,
) -> None:
    await run("x = 1")
    again = await run("'x' in globals()", restart=True)
    assert value(again) == "False"
    assert "restarted" in said(again)
    ended = await run("", restart=True)
    assert (ended.outcome, ended.count) == ("completed", None)
    assert NEW in said(await run("1"))


async def test_an_interpreter_of_other_file_rules_is_never_used(processes: Processes, run: Run) -> None:
    await run("x = 1")
    earlier = (await processes.list()).processes[-1].id
    context = earlier.rpartition("-")[2]
    rules = FileRules(readable=("/",), writable=("/",))
    assert process_id_of(context, rules) != earlier
    try:
        changed = await run("'x' in globals()", rules=rules)
    except Exception as error:
        pytest.skip(f"no file rules here: {error}")
    assert "file rules have changed" in said(changed)
    assert earlier not in {one.id for one in (await processes.list()).processes}


async def test_a_thread_has_so_many_contexts_and_the_error_says_how_to_end_one(processes: Processes) -> None:
    def call(name: str, code: str = "1", *, restart: bool = False) -> InterpreterCall:
        return InterpreterCall(processes, Cell(code, name, restart))

    names = [f"many{number}" for number in range(CONTEXTS_LIMIT)]
    try:
        await asyncio.gather(*(call(name).run() for name in names))
        with pytest.raises(Conflict, match="restart: true and no code"):
            await call("more").run()
        await call(names[0], "", restart=True).run()
        assert (await call("more").run()).outcome == "completed"
    finally:
        await asyncio.gather(*(call(name, "", restart=True).run() for name in (*names, "more")))


async def test_a_sandbox_that_is_lost_while_code_runs_is_the_outcome(tmp_path: Path) -> None:
    engine = MemoryEngine(root=tmp_path)
    sandbox = await engine.create(SandboxSpec("tenant", "lost", "any-image"))
    begun = asyncio.Event()
    cell = Cell("print(1)\nimport time; time.sleep(60)")
    call = InterpreterCall(sandbox.processes, cell, on_output=lambda *_: begun.set())
    running = asyncio.ensure_future(call.run())
    await begun.wait()
    await engine.remove(sandbox.id)
    result = await running
    assert result.outcome == "daemon_lost"
    await call.stop()
    await engine.close()


async def test_nothing_of_an_interpreter_is_kept_in_the_workspace(processes: Processes, run: Run) -> None:
    result = await run("import os\nprint('z' * 300_000)\nos.path.exists('.airlock/processes')")
    assert value(result) == "False"
