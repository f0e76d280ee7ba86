"""What tool code tries against the daemon, from inside the sandbox. Each attempt must fail and the daemon stay well."""

from __future__ import annotations

import pytest

from sandbox.v1 import channel_pb2 as wire
from tests.security.daemon.daemon_container import Client, Sandbox
from tests.waiting import eventually

FIND_SERVER = """
import os, signal
def parent(pid):
    return next(int(l.split()[1]) for l in open(f'/proc/{pid}/status') if l.startswith('PPid'))
def uids(pid):
    return next(l.split()[1:] for l in open(f'/proc/{pid}/status') if l.startswith('Uid'))
server = next(int(p) for p in os.listdir('/proc') if p.isdecimal() and parent(p) == 1 and uids(p)[0] == '10002')
def attempt(name, action):
    try:
        print(name, 'SUCCEEDED', action())
    except Exception as error:
        print(name, 'failed', type(error).__name__)
"""


def attack(client: Client, body: str) -> str:
    reply = client.call(exec=wire.ExecRequest(argv=[b"python3", b"-c", (FIND_SERVER + body).encode()])).exec
    output = b"".join(piece.data for piece in reply.output).decode()
    assert reply.outcome == wire.OUTCOME_EXITED, output
    assert reply.exit_code == 0, output
    return output


def test_the_server_and_init_run_as_other_users_than_tools(client: Client) -> None:
    # Real, effective, saved, and the one by which files are judged.
    assert attack(client, "print(uids(server), uids(1), os.getresuid(), os.getresgid(), len(os.getgroups()))").split(
        "\n"
    )[0] == ("['10002', '10002', '10002', '10001'] ['0', '0', '0', '0'] (10001, 10001, 10001) (10001, 10001, 10001) 1")


def test_the_server_holds_no_capability_and_the_score_that_dies_last(client: Client) -> None:
    body = """
status = dict(l.split(':', 1) for l in open(f'/proc/{server}/status'))
print(*(int(status[name], 16) for name in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb')))
print(*(open(f'/proc/{pid}/oom_score_adj').read().strip() for pid in (1, server)))
print(*(os.getpriority(os.PRIO_PROCESS, pid) for pid in (1, server, 0)))
"""
    assert attack(client, body) == "0 0 0 0\n0 0\n0 0 10\n"


def test_tool_code_cannot_lower_its_score_whatever_process_of_its_tries(client: Client) -> None:
    body = """
def lower():
    for name in ('/proc/self', f'/proc/{os.getpid()}', '/proc/thread-self', '/proc/self/root/proc/self'):
        for file in ('oom_score_adj', 'oom_adj'):
            for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
                attempt(file, lambda: os.open(f'{name}/{file}', flags))
    at = os.open('/proc/self', os.O_PATH)
    attempt('at', lambda: os.open('oom_score_adj', os.O_WRONLY, dir_fd=at))
    print(open('/proc/self/oom_score_adj').read().strip())
lower()
sys.stdout.flush()
if not os.fork():
    os.setsid()
    lower()
    sys.stdout.flush()
    os._exit(0)
os.wait()
"""
    output = attack(client, "import sys\n" + body)
    assert "SUCCEEDED" not in output
    assert output.split().count("800") == 2


def test_the_wall_around_proc_leaves_all_other_writing_as_it_is(client: Client) -> None:
    body = """
import pty, shutil, stat, subprocess, tempfile
os.makedirs('/workspace/wall/a/deep'); os.makedirs('/workspace/wall/b')
open('/workspace/wall/a/file', 'w').write('1')
os.rename('/workspace/wall/a/file', '/workspace/wall/b/file')
os.rename('/workspace/wall/a/deep', '/workspace/wall/b/deep')
os.link('/workspace/wall/b/file', '/workspace/wall/a/link')
os.truncate('/workspace/wall/a/link', 0)
unnamed = os.open('/workspace/wall/a', os.O_TMPFILE | os.O_RDWR)
os.link(f'/proc/self/fd/{unnamed}', '/workspace/wall/b/named', dst_dir_fd=0)  # which makes it a linkat
for place in ('/tmp', '/dev/shm'):
    with tempfile.NamedTemporaryFile(dir=place) as file:
        file.write(b'x')
for device in ('/dev/null', '/dev/stdout', '/dev/fd/1', '/proc/self/fd/1'):
    open(device, 'w').close()
memory = os.memfd_create('m')
open(f'/proc/self/fd/{memory}', 'wb').write(b'x')
master, slave = pty.openpty()
os.close(os.open(os.ttyname(slave), os.O_RDWR | os.O_NOCTTY))
shutil.move('/workspace/wall/b/file', '/tmp/moved'); os.unlink('/tmp/moved')
shutil.rmtree('/workspace/wall')
child = subprocess.Popen(['sleep', '100'])
print(os.readlink(f'/proc/{child.pid}/exe') != '', os.listdir(f'/proc/{child.pid}/fd') != [])
child.kill(); child.wait()
"""
    assert attack(client, body) == "True True\n"


def test_one_call_can_look_into_the_processes_that_another_left_behind(client: Client) -> None:
    pid = client.output("sleep 100 >/dev/null 2>&1 & echo $!").strip()
    assert client.output(f"readlink /proc/{pid}/cwd; kill {pid}") == "/workspace\n"


def test_neither_pid_1_nor_the_server_can_be_signalled(client: Client) -> None:
    output = attack(
        client,
        "for pid in (1, server):\n"
        "  for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, 0):\n"
        "    attempt(f'{pid} {number}', lambda: os.kill(pid, number))\n",
    )
    assert output.count("PermissionError") == 8, output


@pytest.mark.parametrize("name", ["environ", "mem", "fd", "maps", "cwd", "root", "exe", "task", "io"])
def test_proc_entries_of_the_daemon_show_nothing(client: Client, name: str) -> None:
    body = f"""
import pathlib
for pid in (1, server):
    path = pathlib.Path(f'/proc/{{pid}}/{name}')
    if {name!r} == 'task':
        attempt('write', lambda: (path / str(pid) / 'comm').write_text('mine'))
    elif {name!r} in ('cwd', 'root', 'exe'):
        attempt('readlink', lambda: os.readlink(path))
    elif {name!r} == 'fd':
        attempt('list', lambda: os.listdir(path))
    else:
        attempt('read', lambda: path.read_bytes())
"""
    output = attack(client, body)
    assert "SUCCEEDED" not in output
    assert output.count("PermissionError") == 2, output


def test_the_daemon_cannot_be_traced(client: Client) -> None:
    body = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for pid in (1, server):
    print(libc.ptrace(16, pid, 0, 0), ctypes.get_errno())
    print(libc.process_vm_readv(pid, 0, 0, 0, 0, 0), ctypes.get_errno())
"""
    for line in attack(client, body).splitlines()[::2]:
        assert line.startswith("-1 "), line


def test_the_channel_cannot_be_entered_or_replaced(client: Client) -> None:
    body = """
import socket
attempt('list', lambda: os.listdir('/run/airlock'))
attempt('connect', lambda: socket.socket(socket.AF_UNIX).connect('/run/airlock/daemon.sock'))
attempt('unlink', lambda: os.unlink('/run/airlock/daemon.sock'))
attempt('rename', lambda: os.rename('/run/airlock', '/tmp/airlock'))
"""
    output = attack(client, body)
    assert "SUCCEEDED" not in output


def test_no_privilege_can_be_gained_and_the_calls_mark_not_be_dropped(client: Client) -> None:
    body = """
for uid in (0, 10002):
    attempt('setuid', lambda: os.setuid(uid))
attempt('setgroups', lambda: os.setgroups([]))
attempt('setgid', lambda: os.setgid(0))
attempt('oom', lambda: open('/proc/1/oom_score_adj', 'w').write('1000'))
status = dict(l.split(':', 1) for l in open('/proc/self/status'))
print(status['CapEff'].strip(), status['CapPrm'].strip(), status['NoNewPrivs'].strip(), status['Seccomp'].strip())
print(open('/proc/self/oom_score_adj').read().strip())
"""
    output = attack(client, body)
    assert "SUCCEEDED" not in output
    assert output.splitlines()[-2:] == ["0000000000000000 0000000000000000 1 2", "800"]


def test_killing_everything_within_reach_leaves_the_daemon_well(sandbox: Sandbox, client: Client) -> None:
    reply = client.execute("kill -9 -1; kill -9 1; true")
    assert reply.outcome in {wire.OUTCOME_SIGNALLED, wire.OUTCOME_EXITED}
    assert client.execute("true").outcome == wire.OUTCOME_EXITED
    assert sandbox.status() == "running"


def test_a_link_planted_for_evicted_output_is_not_followed(client: Client) -> None:
    client.execute("mkdir -p /tmp/elsewhere; rm -rf /workspace/.airlock; ln -s /tmp/elsewhere /workspace/.airlock")
    limit = wire.OutputLimit(
        limit_chars=100,
        head_chars=10,
        tail_chars=10,
        spill_path="/workspace/.airlock/output/a.txt",
        spill_limit_bytes=1 << 20,
    )
    reply = client.execute("seq 1 1000", output_limit=limit)
    assert reply.outcome == wire.OUTCOME_EXITED
    assert reply.evicted.incomplete
    assert reply.evicted.size_bytes == 0
    assert client.output("ls -A /tmp/elsewhere; rm /workspace/.airlock") == ""


@pytest.mark.parametrize("path", ["/tmp/planted/link", "/tmp/planted/dir/file"])
def test_a_link_planted_at_the_target_of_a_write_is_refused_with_where_it_leads(client: Client, path: str) -> None:
    client.execute(
        "rm -rf /tmp/planted /tmp/victim; mkdir -p /tmp/planted /tmp/victim; echo old > /tmp/victim/file;"
        "ln -s /tmp/victim/file /tmp/planted/link; ln -s ../victim /tmp/planted/dir"
    )
    for request in (
        {"write": wire.WriteRequest(path=path, data=b"new", inline=True)},
        {"read": wire.ReadRequest(path=path)},
        {"edit": wire.EditRequest(path=path, old_text=b"old", new_text=b"new")},
        {"grep": wire.GrepRequest(path=path, pattern="old", limit=1, timeout_ms=1000)},
    ):
        failure = client.call(**request).failure
        assert failure.kind == wire.FAILURE_KIND_INVALID_PATH
        assert "/tmp/victim/file" in failure.message
    assert client.output("cat /tmp/victim/file") == "old\n"


def test_the_file_tools_have_the_rights_of_the_tool_user_only(client: Client) -> None:
    for path in ("/etc/shadow", "/run/airlock/daemon.sock", "/root/x"):
        failure = client.call(read=wire.ReadRequest(path=path)).failure
        assert failure.kind == wire.FAILURE_KIND_PERMISSION_DENIED, failure
    failure = client.call(write=wire.WriteRequest(path="/etc/new", data=b"x", inline=True)).failure
    assert failure.kind == wire.FAILURE_KIND_PERMISSION_DENIED
    failure = client.call(list=wire.ListRequest(path="/proc/1", limit=10)).failure
    assert failure.kind == wire.FAILURE_KIND_INVALID_PATH


def test_written_files_belong_to_the_tool_user(client: Client) -> None:
    client.call(write=wire.WriteRequest(path="/workspace/new/deep/file", data=b"x", inline=True))
    assert (
        client.output("stat -c '%u:%g %a' /workspace/new/deep/file /workspace/new")
        == "10001:10001 644\n10001:10001 755\n"
    )


def test_pipes_and_devices_neither_block_nor_are_read(client: Client) -> None:
    client.execute("rm -f /tmp/pipe; mkfifo /tmp/pipe")
    for path in ("/tmp/pipe", "/dev/zero"):
        for request in (
            {"read": wire.ReadRequest(path=path)},
            {"read_lines": wire.ReadLinesRequest(path=path, limit=1, limit_bytes=10)},
            {"edit": wire.EditRequest(path=path, old_text=b"a", new_text=b"b")},
            {"grep": wire.GrepRequest(path=path, pattern="a", limit=1, timeout_ms=1000)},
        ):
            assert client.call(**request).failure.kind == wire.FAILURE_KIND_INVALID_ARGUMENT


def test_the_posture_is_what_the_container_really_has(client: Client) -> None:
    reply = client.call(hello=wire.HelloRequest(protocol_version=1)).hello
    posture = reply.posture
    assert reply.protocol_version == 1
    assert (posture.tool_uid, posture.daemon_uid) == (10001, 10002)
    assert posture.capabilities_bounding == 1 << 0 | 1 << 5 | 1 << 6 | 1 << 7  # CHOWN KILL SETGID SETUID
    assert posture.tool_capabilities_effective == 0
    assert posture.no_new_privileges
    assert posture.socket_closed_to_tools
    assert posture.seccomp_mode == 2
    assert posture.root_read_only
    assert posture.memory_limit_bytes == 512 * 1024 * 1024
    assert posture.memory_swap_limit_bytes in {0, 512 * 1024 * 1024}  # 0 where the kernel does not account swap
    assert posture.pids_limit == 256
    assert list(posture.network_interfaces) == []
    assert posture.kernel


def test_an_upload_that_is_given_up_leaves_nothing_behind(sandbox: Sandbox, client: Client) -> None:
    client.execute("rm -rf /tmp/upload; mkdir /tmp/upload; echo old > /tmp/upload/file")
    free = client.output("stat -f -c %f /tmp")
    other = sandbox.connect()
    other.send(wire.Request(write=wire.WriteRequest(path="/tmp/upload/file")))
    other.send(wire.Input(data=bytes(1 << 20)))
    assert eventually(lambda: client.output("stat -f -c %f /tmp") != free, 10)  # half of it is there
    other.close()
    assert eventually(lambda: client.output("stat -f -c %f /tmp") == free, 10)
    assert client.output("ls -A /tmp/upload; cat /tmp/upload/file") == "file\nold\n"


def test_a_write_that_fails_reads_its_input_to_the_end_so_the_next_call_is_understood(client: Client) -> None:
    client.send(wire.Request(write=wire.WriteRequest(path="/etc/no/file")))
    for _ in range(3):
        client.send(wire.Input(data=b"x" * 1000))
    client.send(wire.Input(end=True))
    assert client.receive().failure.kind == wire.FAILURE_KIND_PERMISSION_DENIED
    assert client.output("echo next") == "next\n"


def test_a_hostile_regular_expression_ends_at_its_time_limit_and_others_do_not_wait(
    sandbox: Sandbox, client: Client
) -> None:
    client.call(write=wire.WriteRequest(path="/tmp/evil", data=b"hit\n" + b"a" * 40 + b"!\n", inline=True))
    other = sandbox.connect()
    request = wire.GrepRequest(path="/tmp/evil", pattern="hit|(a+)+$", limit=10, timeout_ms=700)
    other.send(wire.Request(grep=request))
    assert client.call(stat=wire.StatRequest(path="/tmp/evil")).WhichOneof("reply") == "entry"
    reply = other.receive().grep
    assert reply.timed_out
    assert [match.line for match in reply.matches] == [1]
