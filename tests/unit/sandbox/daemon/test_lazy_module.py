"""What the daemon does without stays unloaded, and is there all the same when it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[4]
_SERVER = (
    "import sys; from sandbox.daemon import lazy_module; lazy_module.install();"
    "import sandbox.daemon.__main__, sandbox.daemon.supervisor.init, sandbox.daemon.serving.server;"
)


def _python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *options, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done


def test_init_and_server_start_without_loading_any_lazy_module() -> None:
    # Without site: a .pth file of this host may load some before. The second line names modules that only those load,
    # and one that the server needs.
    code = (
        f"import sys; sys.path[:0] = {sys.path!r};{_SERVER}"
        "print(lazy_module.loaded_for_use());"
        "print([name for name in ('dis', 'ast', 'string', 'textwrap', 'fnmatch', 'concurrent.futures._base',"
        " 'asyncio.transports') if name in sys.modules])"
    )
    assert _python(code, "-S").stdout.splitlines() == ["[]", "['asyncio.transports']"]


def test_a_lazy_module_is_loaded_when_it_is_used() -> None:
    code = (
        _SERVER + "import inspect, traceback, typing, logging, subprocess, locale, linecache;"
        "import concurrent.futures, concurrent.futures.thread;"
        "from concurrent.futures import ThreadPoolExecutor;"
        "from google.protobuf import text_encoding;"
        "from sandbox.daemon.files import search;"
        "assert inspect.iscoroutinefunction(search.grep);"
        "assert traceback.format_exception_only(ValueError('a')) == ['ValueError: a\\n'];"
        "assert traceback.extract_stack()[-2].name == '<module>', traceback.extract_stack();"
        "assert typing.Optional[int] == int | None;"
        "assert logging.getLogger('x').name == 'x' and logging.WARNING == 30;"
        "assert text_encoding.CEscape(b'\\n', False) == '\\\\n';"
        "assert ThreadPoolExecutor is concurrent.futures.thread.ThreadPoolExecutor;"
        "assert not hasattr(inspect, 'no_such_name');"
        "assert {'inspect', 'logging', 'typing', 'traceback', 'concurrent.futures'} <= {*lazy_module.loaded_for_use()}"
    )
    _python(code)


def test_asyncio_works_with_lazy_modules() -> None:
    code = _SERVER + (
        "import asyncio\n"
        "async def main():\n"
        "    try:\n"
        "        async with asyncio.timeout(0):\n"
        "            await asyncio.sleep(60)\n"
        "    except TimeoutError: print('timeout')\n"
        "    try: await asyncio.wait_for(asyncio.Event().wait(), 0.001)\n"
        "    except TimeoutError: print('wait_for')\n"
        "    print(await asyncio.to_thread(lambda: 'thread'))\n"
        "    print(asyncio.streams.StreamReader.__name__)\n"
        "asyncio.run(main())"
    )
    assert _python(code).stdout.split() == ["timeout", "wait_for", "thread", "StreamReader"]


def test_input_of_a_process_is_written_and_waited_for_without_loading_anything() -> None:
    code = _SERVER + (
        "import asyncio, os\n"
        "import sandbox.daemon.programs.processes\n"
        "from sandbox.daemon.programs.process_io import ProcessInput\n"
        "async def main():\n"
        "    reader, writer = os.pipe(); os.set_blocking(writer, False)\n"
        "    stdin = ProcessInput(writer)\n"
        "    print(0 < await stdin.write(bytes(1 << 20), 0.01) < 1 << 20)\n"
        "    print(await stdin.write(b'x', 0))\n"
        "    os.close(reader)\n"
        "    print(await stdin.write(b'x', 60))\n"
        "before = {*sys.modules}\n"
        "asyncio.run(main())\n"
        "print({*sys.modules} - before)"
    )
    assert _python(f"import sys; sys.path[:0] = {sys.path!r};{code}", "-S").stdout.splitlines() == [
        "True",
        "0",
        "0",
        "set()",
    ]


def test_a_failure_that_is_never_awaited_is_printed_to_stderr_with_its_stack() -> None:
    code = _SERVER + (
        "import asyncio, gc\n"
        "async def fails(): raise ValueError('of the task')\n"
        "async def main():\n"
        "    loop = asyncio.get_running_loop()\n"
        "    loop.call_soon(lambda: [][0])\n"
        "    task = loop.create_task(fails()); await asyncio.sleep(0); await asyncio.sleep(0); del task; gc.collect()\n"
        "asyncio.run(main())\n"
        "print(lazy_module.loaded_for_use())"
    )
    done = _python(code)
    assert "IndexError: list index out of range" in done.stderr
    assert "ValueError: of the task" in done.stderr
    assert "in fails" in done.stderr
    assert "logging" not in done.stdout


def test_reporting_a_failure_cannot_fail() -> None:
    code = _SERVER + (
        "import os, traceback\n"
        "from sandbox.daemon.lazy_module import LoopLog\n"
        "os.close(2)\n"
        "sys.stderr = open('/dev/full', 'w', buffering=1)\n"
        "LoopLog().error('%d', 'no number', exc_info=ValueError())\n"
        "LoopLog().exception('outside of any except')\n"
        "try: raise ValueError\n"
        "except ValueError: traceback.print_exc()\n"
        "os._exit(0)"
    )
    _python(code)


def test_a_module_that_could_not_be_loaded_is_tried_again_at_the_next_use() -> None:
    code = _SERVER + (
        "path, sys.path = sys.path, []; sys.path_importer_cache.clear()\n"
        "finders, sys.meta_path = sys.meta_path, []\n"
        "import inspect\n"
        "try: inspect.isfunction\n"
        "except ImportError: print('not yet')\n"
        "sys.path, sys.meta_path = path, finders\n"
        "print(inspect.isfunction(print))"
    )
    assert _python(code).stdout.split() == ["not", "yet", "False"]
