"""`airlock approvals` as a process of its own, at a terminal (a pty), against a server that speaks the protocol."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any, Self

import grpc
import pytest

from airlock.v1 import approval_service_pb2 as pb
from gateway.v1 import approval_service_pb2_grpc as grpc_pb

_PATIENCE_S = 60


def pending(id_: str, **fields: object) -> pb.Approval:
    """An approval that waits."""
    made = pb.Approval(
        id=id_, thread="t1", run_id="run_1", call_id="call_1", tool="execute", digest="0" * 64,
        policy_version="policy_1",
        arguments_json=json.dumps({"command": "git status && git push origin main", "timeout_s": 5}), rule="push",
        reason="what is pushed is public", asked=["git push origin main"], status=pb.APPROVAL_STATUS_PENDING,
        proposed_rule="tools: [execute]\nargv: [[git, push, origin, main, {end: true}]]\n",
    )  # fmt: skip
    made.created_at.GetCurrentTime()
    made.expires_at.FromSeconds(made.created_at.seconds + 7200)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Service(grpc_pb.ApprovalServiceServicer):
    """Approvals in memory; remembers what was answered."""

    def __init__(self) -> None:
        self.approvals: dict[str, pb.Approval] = {}
        self.answers: list[pb.ResolveApprovalRequest] = []
        self.changes: Queue[pb.Approval] = Queue()
        self.watched = threading.Event()
        self.stopping = threading.Event()
        self.cut = False

    def listed(self, one: pb.Approval) -> pb.Approval:
        """What lists and watches hold."""
        if not self.cut:
            return one
        made = pb.Approval()
        made.CopyFrom(one)
        made.arguments_size_bytes, made.arguments_cut = len(one.arguments_json), True
        made.arguments_json = made.proposed_rule = ""
        return made

    def ListApprovals(self, request: Any, context: Any) -> Any:  # noqa: N802
        found = [self.listed(one) for one in reversed(self.approvals.values()) if request.status in (0, one.status)]
        return pb.ListApprovalsResponse(approvals=found)

    def GetApproval(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.GetApprovalResponse(approval=self.approvals[request.approval_id])

    def WatchApprovals(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        for one in list(self.approvals.values()):
            yield pb.WatchApprovalsResponse(approval=self.listed(one))
        yield pb.WatchApprovalsResponse(caught_up=True)
        self.watched.set()
        while context.is_active() and not self.stopping.is_set():
            with contextlib.suppress(Exception):
                yield pb.WatchApprovalsResponse(approval=self.changes.get(timeout=0.1))
        if self.stopping.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, "the gateway is stopping")

    def ResolveApproval(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.answers.append(request)
        one = self.approvals[request.approval_id]
        denied = request.answer == pb.ANSWER_DENY
        one.status = pb.APPROVAL_STATUS_DENIED if denied else pb.APPROVAL_STATUS_APPROVED
        one.answer, one.message, one.resolved_by = request.answer, request.message, "alk_12345678"
        self.changes.put(one)
        return pb.ResolveApprovalResponse(approval=one)


def serve(service: Service, address: str = "127.0.0.1:0") -> tuple[grpc.Server, str]:
    server = grpc.server(futures.ThreadPoolExecutor(8))
    grpc_pb.add_ApprovalServiceServicer_to_server(service, server)
    port = server.add_insecure_port(address)
    server.start()
    return server, f"127.0.0.1:{port}"


@pytest.fixture
def served() -> Iterator[tuple[Service, str]]:
    service = Service()
    server, address = serve(service)
    yield service, address
    server.stop(0).wait()


@contextlib.contextmanager
def restarted() -> Iterator[tuple[Service, str, Any]]:
    """Serve; the function that is given drains the gateway and starts another one on its address."""
    service = Service()
    server, address = serve(service)
    servers = [server]

    def restart(other: Service) -> None:
        assert service.watched.wait(_PATIENCE_S)
        service.stopping.set()
        server.stop(2).wait()
        servers.append(serve(other, address)[0])

    yield service, address, restart
    for one in servers:
        one.stop(0).wait()


def command(address: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "gateway.cli", "approvals", *arguments, "--address", address, "--key", "alk_x"]


class Terminal:
    """`airlock approvals watch` in a pty."""

    def __init__(self, address: str, **env: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command(address, "watch"),
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "NO_COLOR": "1", **env},
        )  # fmt: skip
        os.close(slave)
        self._text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._lock = threading.Lock()

    def until(self, wanted: str) -> str:
        """Read until a text has come; return what came before it and forget it."""
        deadline = time.monotonic() + _PATIENCE_S
        while wanted not in self._text:
            assert time.monotonic() < deadline, f"{wanted!r} never came:\n{self._text}"
            if select.select([self._master], [], [], 0.2)[0]:
                try:
                    # A read may end within a character, or within an escape sequence.
                    read = self._decoder.decode(os.read(self._master, 65536))
                    self._text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._text + read)
                except OSError:
                    pytest.fail(f"it ended before {wanted!r}:\n{self._text}")
        before, _, self._text = self._text.partition(wanted)
        return before

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def close(self) -> int:
        """Wait for the end."""
        return self.process.wait(_PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def test_one_key_allows_once(served: tuple[Service, str]) -> None:
    service, address = served
    service.approvals["apr_1"] = pending("apr_1")
    with Terminal(address) as terminal:
        shown = terminal.until(" q  quit")
        assert "git status && git push origin main" in shown
        assert "what is pushed is public" in shown
        assert "{end: true}" in shown
        terminal.press("y")
        terminal.until("apr_1 allowed once by alk_12345678")
        terminal.press("q")
        assert terminal.close() == 0
        assert [(one.approval_id, one.answer) for one in service.answers] == [("apr_1", pb.ANSWER_ALLOW_ONCE)]


@pytest.mark.parametrize("key, answer", [("r", pb.ANSWER_ALLOW_RUN), ("t", pb.ANSWER_ALLOW_THREAD)])
def test_the_proposed_rule_may_hold_for_the_run_or_the_thread(
    served: tuple[Service, str], key: str, answer: int
) -> None:
    service, address = served
    service.approvals["apr_1"] = pending("apr_1")
    with Terminal(address) as terminal:
        terminal.until(" q  quit")
        terminal.press(key)
        terminal.until("allowed for the")
        terminal.press("q")
        assert terminal.close() == 0
        assert [one.answer for one in service.answers] == [answer]


def test_only_a_call_of_a_run_is_offered_an_answer_for_the_run(served: tuple[Service, str]) -> None:
    service, address = served
    service.approvals["apr_1"] = pending("apr_1", run_id="")
    shown = subprocess.run(command(address, "show", "apr_1"), capture_output=True, text=True, check=True).stdout
    assert "t would allow:" in shown
    assert "r and t would allow:" not in shown


def test_without_a_proposed_rule_only_once_and_no_are_answers(served: tuple[Service, str]) -> None:
    service, address = served
    service.approvals["apr_1"] = pending("apr_1", proposed_rule="")
    with Terminal(address) as terminal:
        shown = terminal.until(" q  quit")
        assert "this thread" not in shown
        terminal.press("trxz\x1b[A")  # none of them means anything
        terminal.press("nnot on a friday\x7f\x7f\x7f\x7f\x7f\x7fsunday\r")
        terminal.until("apr_1 denied by alk_12345678: not on a sunday")
        terminal.press("q")
        assert terminal.close() == 0
        assert [(one.answer, one.message) for one in service.answers] == [(pb.ANSWER_DENY, "not on a sunday")]


def test_escape_takes_a_refusal_back_and_later_goes_on_with_the_next(served: tuple[Service, str]) -> None:
    service, address = served
    service.approvals = {name: pending(name) for name in ("apr_1", "apr_2")}
    with Terminal(address) as terminal:
        assert "1 more pending" in terminal.until(" q  quit")
        terminal.press("nbecause")
        terminal.until("because")
        terminal.press("\x1b")
        terminal.until("not answered")
        assert "apr_1" in terminal.until(" q  quit")
        terminal.press("s")
        assert "apr_2" in terminal.until(" q  quit")
        terminal.press("\x03")
        assert terminal.close() == 0
        assert service.answers == []


def test_what_another_approver_answers_leaves_the_screen(served: tuple[Service, str]) -> None:
    service, address = served
    service.approvals["apr_1"] = pending("apr_1")
    with Terminal(address) as terminal:
        terminal.until(" q  quit")
        other = pending("apr_1", status=pb.APPROVAL_STATUS_DENIED, answer=pb.ANSWER_DENY, resolved_by="alk_other")
        service.changes.put(other)
        terminal.until("apr_1 denied by alk_other")
        service.changes.put(pending("apr_2"))
        assert "apr_2" in terminal.until(" q  quit")
        terminal.press("q")
        assert terminal.close() == 0


def test_arguments_are_edited_in_the_persons_editor(served: tuple[Service, str], tmp_path: Path) -> None:
    service, address = served
    service.approvals["apr_1"] = pending("apr_1")
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/main/staging/ "$1"\n')
    editor.chmod(0o755)
    with Terminal(address, EDITOR=str(editor), VISUAL=str(editor)) as terminal:
        terminal.until(" q  quit")
        terminal.press("e")
        terminal.until("approved with other arguments")
        terminal.press("q")
        assert terminal.close() == 0
        (answer,) = service.answers
        assert answer.answer == pb.ANSWER_EDIT
        assert json.loads(answer.arguments_json) == {"command": "git status && git push origin staging", "timeout_s": 5}


def test_what_others_said_moves_no_cursor(served: tuple[Service, str]) -> None:
    service, address = served
    evil = json.dumps({"command": "git push \x1b[2J\u202e[bold]x[/]"})
    service.approvals["apr_1"] = pending("apr_1", arguments_json=evil, reason="a\x1b[2Jb")
    with Terminal(address) as terminal:
        raw = terminal.until(" q  quit")
        assert "\u241b[2J" in raw
        assert "\u202e" not in raw
        assert "[bold]x[/]" in raw
        terminal.press("q")
        assert terminal.close() == 0


def test_what_lists_have_cut_is_fetched_whole_before_it_is_shown_for_an_answer(served: tuple[Service, str]) -> None:
    service, address = served
    rule = {"id": "g", "tools": ["write_file"], "effect": "allow", "reason": "r", "paths": ["/workspace/big"]}
    arguments = json.dumps({"path": "/workspace/big", "content": "HEAD" + "x" * 5000})
    whole = pending("apr_1", tool="write_file", arguments_json=arguments, proposed_rule=json.dumps([rule]))
    whole.asked[:] = ["/workspace/big"]
    service.approvals["apr_1"] = whole
    service.cut = True
    with Terminal(address) as terminal:
        shown = terminal.until("once")
        assert "HEAD" in shown
        assert shown.count("x") > 3900  # a long line is wrapped, not cut at the edge of the panel
        assert "r and t would allow: writing any content to /workspace/big" in " ".join(shown.split())
        assert "more characters: `airlock approvals show apr_1`" in re.sub(r"[│\s]+", " ", shown)
        terminal.press("q")
        assert terminal.close() == 0
    listed = subprocess.run(command(address, "list"), capture_output=True, text=True, check=True).stdout
    assert f"({len(arguments):,} bytes of arguments" in " ".join(listed.split())
    watching = subprocess.Popen(command(address, "watch"), stdout=subprocess.PIPE, text=True)
    try:
        assert watching.stdout is not None
        assert any("HEAD" in line for line in watching.stdout)
    finally:
        watching.kill()
        watching.communicate()


def test_lists_shows_allows_and_denies_for_programs(served: tuple[Service, str]) -> None:
    service, address = served
    service.approvals = {name: pending(name) for name in ("apr_1", "apr_2", "apr_3")}

    def run(*arguments: str) -> Any:
        done = subprocess.run(command(address, *arguments, "--json"), capture_output=True, check=True, text=True)
        return json.loads(done.stdout)

    assert [one["id"] for one in run("list")] == ["apr_3", "apr_2", "apr_1"]
    assert run("show", "apr_1")["arguments"]["timeout_s"] == 5
    assert run("allow", "apr_1")["status"] == "approved"
    assert run("deny", "apr_2", "--message", "no")["message"] == "no"
    run("allow", "apr_3", "--args", '{"command": "git push origin staging"}')
    assert [one.answer for one in service.answers] == [pb.ANSWER_ALLOW_ONCE, pb.ANSWER_DENY, pb.ANSWER_EDIT]
    wrong = subprocess.run(
        command(address, "allow", "apr_1", "--run", "--thread"), capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "use only one of" in wrong.stderr


@pytest.mark.parametrize("as_json", [True, False])
def test_a_watch_in_a_pipe_reports_a_restart_and_what_waits_then(*, as_json: bool) -> None:
    with restarted() as (service, address, restart):
        service.approvals["apr_1"] = pending("apr_1")
        watching = subprocess.Popen(
            command(address, "watch", *(["--json"] if as_json else [])),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            # Whatever started the tests, in the background say, may make all its children ignore it.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - it takes no lock
        )  # fmt: skip
        assert watching.stdout is not None
        try:
            while "apr_1" not in (line := watching.stdout.readline()):
                assert line, "it ended"
            other = Service()
            other.approvals["apr_2"] = pending("apr_2")
            restart(other)
            while "apr_2" not in (line := watching.stdout.readline()):
                assert line, "it ended"
        finally:
            watching.send_signal(signal.SIGINT)
            _, said = watching.communicate(timeout=_PATIENCE_S)
        assert said.count("the gateway is gone") == 1
        assert said.count("the gateway is back") == 1
        assert watching.returncode == 130


def test_at_a_terminal_a_restart_shows_what_waits_then_and_forgets_what_does_not() -> None:
    with restarted() as (service, address, restart):
        service.approvals["apr_1"] = pending("apr_1")
        with Terminal(address) as terminal:
            terminal.until(" q  quit")
            other = Service()
            other.approvals["apr_2"] = pending("apr_2")
            restart(other)
            terminal.until("the gateway is gone")
            terminal.until("the gateway is back")
            terminal.until("apr_2")
            terminal.until(" q  quit")
            terminal.press("y")
            terminal.until("apr_2 allowed once")
            terminal.press("q")
            assert terminal.close() == 0
        assert service.answers == []


def test_a_gateway_that_was_never_there_is_not_waited_for() -> None:
    done = subprocess.run(command("127.0.0.1:1", "watch"), capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "Is the gateway running?" in done.stderr


def test_ids_are_whole_however_narrow_the_terminal_is(served: tuple[Service, str]) -> None:
    service, address = served
    long = f"apr_{'0123456789abcdef' * 2}"
    service.approvals[long] = pending(long, thread="a-thread-with-a-long-name-of-its-own", rule="push-" + "x" * 30)
    done = subprocess.run(
        command(address, "list"), capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"}
    )
    assert long in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
