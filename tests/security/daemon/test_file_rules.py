"""Commands that try to use files which the file rules of their call forbid: the kernel refuses, whatever they are."""

from __future__ import annotations

import pytest

from sandbox.v1 import channel_pb2 as wire
from tests.security.daemon.daemon_container import Client

RULES = wire.FileRules(
    readable=["/workspace", "/tmp"],
    writable=["/workspace/src", "/tmp"],
    unreadable=["/workspace/secrets", "/etc/passwd"],
)
MAKE = (
    "mkdir -p src secrets docs && echo key > secrets/k && echo page > docs/page && echo code > src/code"
    ' && rm -rf src/out other && python3 -c \'import os; os.setxattr("docs/page", "user.a", b"y")\''
)


def run(client: Client, line: str, rules: wire.FileRules | None = RULES) -> tuple[int, str]:
    request = wire.ExecRequest(argv=[b"/bin/sh", b"-c", line.encode()], file_rules=rules)
    reply = client.call(exec=request).exec
    assert reply.outcome == wire.OUTCOME_EXITED, reply
    return reply.exit_code, b"".join(piece.data for piece in reply.output).decode()


@pytest.fixture
def files(client: Client) -> None:
    assert run(client, MAKE, None)[0] == 0


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "line",
    [
        "cat secrets/k",
        "find src -exec cat {}/../secrets/k \\; | grep key",
        "cat /proc/self/cwd/secrets/k",
        "cat /proc/self/root/workspace/secrets/k",
        "x=secrets; cat $x/k",
        "sh -c \"$(printf '\\143at secrets/k')\"",
        "python3 -c 'print(open(\"secrets/k\").read())'",
        "ln -sf ../secrets src/link && cat src/link/k",
        "ln secrets/k src/hard",
        "mv secrets src/secrets",
        "cd secrets && ls",
        "cat /etc/passwd",
        "echo x > docs/page",
        "echo x >> docs/new",
        "rm docs/page",
        "mv docs/page src/page",
        "mv src sources",
        "truncate -s 0 docs/page",
        "mkdir other",
        'python3 -c \'import os; os.setxattr("docs/page", "user.a", b"x")\'',
        'python3 -c \'import os; os.removexattr("docs/page", "user.a")\'',
        "(setsid sh -c 'cat secrets/k > src/out' &); for i in 1 2 3 4 5 6 7 8 9; do sleep 0.05; done; grep key src/out",
    ],
)
def test_what_the_rules_forbid_fails_and_works_without_them(client: Client, line: str) -> None:
    assert run(client, line)[0] != 0
    assert run(client, line, None)[0] == 0


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "line",
    [
        "cat docs/page src/code && ls docs src",
        "echo x > src/new && mv src/new src/newer && mkdir src/d && mv src/newer src/d && rm -r src/d",
        "python3 -c 'import json, tempfile; tempfile.TemporaryFile()' && python3 -m json.tool --help > /dev/null",
        "sed -i s/code/more/ src/code",
        "cp docs/page /tmp/page && rm /tmp/page",
        "tar -cf src/docs.tar docs && tar -tf src/docs.tar > /dev/null",
    ],
)
def test_what_the_rules_allow_works(client: Client, line: str) -> None:
    code, output = run(client, line)
    assert code == 0, output


@pytest.mark.usefixtures("files")
def test_a_background_process_is_restricted_too(client: Client) -> None:
    started = client.call(
        process_start=wire.ProcessStartRequest(
            id="held", argv=[b"/bin/sh", b"-c", b"cat secrets/k; cat docs/page; exec sleep 60"], file_rules=RULES
        )
    )
    assert started.process.pid
    page = client.call(
        process_read=wire.ProcessReadRequest(
            id="held", stream=wire.OUTPUT_STREAM_STDOUT, limit_bytes=4096, wait_ms=5000
        )
    )
    assert page.process_read.data == b"page\n"
    client.call(process_signal=wire.ProcessSignalRequest(id="held", signal=9, tree=True))
    client.call(process_remove=wire.ProcessRemoveRequest(id="held"))


@pytest.mark.parametrize("path", ["workspace", "", "/a\0b"])
def test_a_path_that_is_none_is_refused(client: Client, path: str) -> None:
    rules = wire.FileRules(readable=["/workspace", path])
    reply = client.call(exec=wire.ExecRequest(argv=[b"true"], file_rules=rules))
    assert "file_rules" in reply.failure.message
