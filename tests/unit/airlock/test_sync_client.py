"""SyncClient: Client's methods, blocking; from any thread, also beside a running loop and in a forked process."""

from __future__ import annotations

import asyncio
import gc
import inspect
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import grpc
import pytest

from airlock import Client, ClientClosed, InvalidArgument, SyncClient, WrongEventLoop
from airlock.v1 import process_service_pb2 as process_pb
from airlock.v1 import run_service_pb2 as run_pb
from airlock.v1 import tool_service_pb2 as tool_pb
from gateway.v1 import process_service_pb2_grpc, run_service_pb2_grpc, tool_service_pb2_grpc

EVENTS = 1000


class Served(
    tool_service_pb2_grpc.ToolServiceServicer,
    run_service_pb2_grpc.RunServiceServicer,
    process_service_pb2_grpc.ProcessServiceServicer,
):
    """A gateway in threads; `ended` counts the streams and calls that a client gave up."""

    def __init__(self) -> None:
        self.ended = threading.Semaphore(0)
        self.began = threading.Semaphore(0)

    def CallTool(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.name == "slow":
            self._wait(context)
        return tool_pb.CallToolResponse(result=tool_pb.ToolResult(outcome="exited", content=request.name.encode()))

    def StreamToolCall(self, request: Any, context: Any) -> Any:  # noqa: N802
        for piece in (b"one", b"two"):
            yield tool_pb.StreamToolCallResponse(output=tool_pb.ToolOutput(data=piece))
        yield tool_pb.StreamToolCallResponse(result=tool_pb.ToolResult(outcome="exited"))

    def WatchRun(self, request: Any, context: Any) -> Any:  # noqa: N802
        for sequence in range(request.from_sequence, EVENTS + 1):
            yield run_pb.WatchRunResponse(event=run_pb.Event(sequence=sequence, type="text", payload_json="{}"))
            if request.run_id == "endless" and sequence == 3:
                self._wait(context)

    def RunProgram(self, requests: Any, context: Any) -> Any:  # noqa: N802
        taken = b"".join(one.stdin for one in requests)
        yield process_pb.RunProgramResponse(stdout=taken)
        yield process_pb.RunProgramResponse(
            end=process_pb.ProgramEnd(outcome="exited", exit_code=0, output_bytes=len(taken))
        )

    def _wait(self, context: Any) -> None:
        given_up = threading.Event()
        context.add_callback(given_up.set)
        self.began.release()
        given_up.wait(60)
        self.ended.release()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Served]]:
    servicer, server = Served(), grpc.server(ThreadPoolExecutor(16))
    tool_service_pb2_grpc.add_ToolServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    run_service_pb2_grpc.add_RunServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    process_service_pb2_grpc.add_ProcessServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", servicer
    server.stop(None).wait()


@pytest.fixture
def client(served: tuple[str, Served]) -> Iterator[SyncClient]:
    with SyncClient(served[0], "alk_x") as client:
        yield client


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    def methods(kind: type) -> dict[str, list[tuple[str, Any]]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: [(one.name, one.kind) for one in inspect.signature(method).parameters.values()]
            for name, method in found
            if not name.startswith("_")
        }

    blocking, asynchronous = methods(SyncClient), methods(Client)
    assert blocking.pop("close") == asynchronous.pop("aclose")
    assert blocking == asynchronous
    assert inspect.signature(SyncClient) == inspect.signature(Client)


def test_the_stub_has_every_method() -> None:
    stub = Path(inspect.getfile(SyncClient)).with_suffix(".pyi").read_text(encoding="utf-8")
    assert [
        name
        for name, _ in inspect.getmembers(SyncClient, inspect.isfunction)
        if not name.startswith("_") and f"    def {name}(" not in stub
    ] == []


def test_calls_return_results_and_streams_are_iterators(client: SyncClient) -> None:
    assert client.call_tool("ls", {}).content == "ls"
    events = [event.sequence for event in client.watch_run("r")]
    assert events == list(range(1, EVENTS + 1))


def test_several_threads_use_one_client_at_once(client: SyncClient, served: tuple[str, Served]) -> None:
    def work(n: int) -> str:
        first = next(iter(client.watch_run("r", n)))
        return client.call_tool(f"t{first.sequence}", {}).content

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(1, 65))) == [f"t{n}" for n in range(1, 65)]


def test_output_is_given_in_the_thread_that_waits(client: SyncClient) -> None:
    seen: list[tuple[str, bytes, threading.Thread]] = []
    client.call_tool("x", {}, on_output=lambda stream, data: seen.append((stream, data, threading.current_thread())))
    assert seen == [("stdout", data, threading.current_thread()) for data in (b"one", b"two")]


def test_an_error_of_on_output_ends_the_call_and_a_coroutine_function_is_refused(client: SyncClient) -> None:
    def failing(stream: str, data: bytes) -> None:
        raise ZeroDivisionError

    async def asynchronous(stream: str, data: bytes) -> None: ...

    with pytest.raises(ZeroDivisionError):
        client.call_tool("x", {}, on_output=failing)
    with pytest.raises(InvalidArgument, match="plain function"):
        client.call_tool("x", {}, on_output=asynchronous)


def test_input_can_be_an_iterator(client: SyncClient) -> None:
    result = client.run_program(["cat"], stdin=(b"%d" % n for n in range(10)))
    assert result.raise_for_status().stdout == "0123456789"


def test_a_stream_that_is_left_early_is_cancelled(client: SyncClient, served: tuple[str, Served]) -> None:
    servicer = served[1]
    for event in client.watch_run("endless"):
        if event.sequence == 3:
            assert servicer.began.acquire(timeout=30)
            break
    assert servicer.ended.acquire(timeout=30)
    stream: Any = client.watch_run("endless")
    assert [next(stream).sequence for _ in range(3)] == [1, 2, 3]
    assert servicer.began.acquire(timeout=30)
    stream.close()
    assert servicer.ended.acquire(timeout=30)
    assert next(stream, None) is None


def test_arguments_that_do_not_fit_are_an_error_at_once(client: SyncClient) -> None:
    with pytest.raises(TypeError):
        client.call_tool()  # type: ignore[call-arg]
    assert client.call_tool("ls", {}).content == "ls"


async def test_it_works_where_a_loop_runs(served: tuple[str, Served]) -> None:
    with SyncClient(served[0], "alk_x") as client:
        assert client.call_tool("ls", {}).content == "ls"
        assert [one.sequence for one in client.watch_run("r", EVENTS)] == [EVENTS]


def test_a_closed_client_says_so_and_closing_ends_what_is_under_way(served: tuple[str, Served]) -> None:
    address, servicer = served
    client = SyncClient(address, "alk_x")
    stream = client.watch_run("r")
    next(stream)
    with ThreadPoolExecutor(1) as threads:
        under_way = threads.submit(client.call_tool, "slow", {})
        assert servicer.began.acquire(timeout=30)
        client.close()
        with pytest.raises(ClientClosed, match="while the call was under way"):
            under_way.result(30)
    assert servicer.ended.acquire(timeout=30)
    client.close()
    with pytest.raises(ClientClosed, match="make another"):
        client.call_tool("ls", {})
    with pytest.raises(ClientClosed), client:
        pass
    with pytest.raises(ClientClosed):
        next(stream)
    unused = SyncClient(address, "alk_x")
    unused.close()
    with pytest.raises(ClientClosed):
        list(unused.watch_run("r"))


def test_a_client_that_is_never_closed_leaves_no_thread(served: tuple[str, Served]) -> None:
    def threads() -> int:
        return sum(one.name == "airlock-client" for one in threading.enumerate())

    before = threads()
    client = SyncClient(served[0], "alk_x")
    client.call_tool("ls", {})
    stream: Any = client.watch_run("r")
    next(stream)
    del client
    assert next(stream).sequence == 2  # a stream keeps its client
    del stream
    gc.collect()
    deadline = time.monotonic() + 30
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == before


def test_its_own_thread_cannot_wait_for_itself(served: tuple[str, Served]) -> None:
    errors: list[BaseException] = []

    def key() -> str:
        try:
            client.call_tool("ls", {})
        except WrongEventLoop as error:
            errors.append(error)
        return "alk_x"

    with SyncClient(served[0], key) as client:
        client.call_tool("ls", {})
    assert errors


def python(code: str, address: str, timeout_s: float = 60) -> str:
    """Run code in a process of its own, where `address` is a gateway's, and return what it printed."""
    program = f"import os, sys, airlock\naddress = {address!r}\n{textwrap.dedent(code)}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


IN_CHILD = """
    def in_child(work):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                print("child:", work(), flush=True)
            except airlock.AirlockError as error:
                print("child:", type(error).__name__, "spawn" in str(error), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)

"""


def test_a_child_that_was_forked_before_the_first_call_works(served: tuple[str, Served]) -> None:
    code = f"""{IN_CHILD}
    client = airlock.SyncClient(address, "alk_x")
    in_child(lambda: client.call_tool("ls", {{}}).content)
    print("parent:", client.call_tool("ls", {{}}).content)
    """
    assert python(code, served[0]) == "child: ls\nparent: ls\n"


def test_a_child_that_was_forked_later_says_so_and_never_hangs(served: tuple[str, Served]) -> None:
    code = f"""{IN_CHILD}
    import asyncio
    client = airlock.SyncClient(address, "alk_x")
    print("parent:", client.call_tool("ls", {{}}).content)
    stream = client.watch_run("r")
    next(stream)
    in_child(lambda: client.call_tool("ls", {{}}).content)
    in_child(lambda: next(stream))
    in_child(lambda: airlock.SyncClient(address, "alk_x").call_tool("ls", {{}}).content)
    in_child(lambda: asyncio.run(airlock.Client(address, "alk_x").call_tool("ls", {{}})))
    in_child(lambda: [client.close(), stream.close()])
    client.call_tool("x", {{}}, on_output=lambda *_: None)
    print("parent:", client.call_tool("ls", {{}}).content)
    """
    said = python(code, served[0]).splitlines()
    assert said[0] == said[-1] == "parent: ls"
    assert said[1:-1] == [*(["child: WrongProcess True"] * 4), "child: [None, None]"]


def test_a_program_that_closes_nothing_ends(served: tuple[str, Served]) -> None:
    code = """
    client = airlock.SyncClient(address, "alk_x")
    stream = client.watch_run("endless")
    print(next(stream).sequence, client.call_tool("ls", {}).content)
    """
    assert python(code, served[0]) == "1 ls\n"


def test_ctrl_c_cancels_a_stream(served: tuple[str, Served]) -> None:
    code = f"""
import os, signal, threading, airlock
client = airlock.SyncClient({served[0]!r}, "alk_x")
stream = client.watch_run("endless")
print([next(stream).sequence for _ in range(3)])
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    next(stream)
except KeyboardInterrupt:
    print(next(stream, "ended"), client.call_tool("ls", {{}}).content)
"""
    assert python(code, served[0]) == "[1, 2, 3]\nended ls\n"
    assert served[1].ended.acquire(timeout=30)


def test_types_are_those_of_a_client_that_blocks(client: SyncClient) -> None:
    with pytest.raises(Exception), client.forward_port("t", 1) as connection:  # noqa: B017, PT011 - it is not served
        connection.read()
    assert isinstance(client.forward_port("t", 1), AbstractContextManager)
    assert not isinstance(client.watch_run("r"), AsyncIterator)
    assert not asyncio.iscoroutinefunction(client.call_tool)
