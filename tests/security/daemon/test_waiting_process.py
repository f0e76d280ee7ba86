"""The process that waits for the next start: tool code cannot take it over, and nothing of an earlier call is in it."""

from __future__ import annotations

import json

import pytest

from sandbox.v1 import channel_pb2 as wire
from tests.security.daemon.daemon_container import Client, Sandbox
from tests.waiting import eventually

# The one that waited for the program itself is gone, and the next one may not be there yet.
FIND_WAITING = """
import ctypes, json, os, resource, signal, time
def name(pid):
    try:
        return open(f'/proc/{pid}/cmdline').read().split('\\0')[0]
    except OSError:
        return ''
def waiting():
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for pid in filter(str.isdecimal, os.listdir('/proc')):
            if name(pid) == 'start_tool':
                return int(pid)
    raise SystemExit('no process waits')
pid = waiting()
"""

ATTACKS = """
libc = ctypes.CDLL(None, use_errno=True)
def call(function, *arguments):
    if function(*arguments) < 0:
        raise OSError(ctypes.get_errno(), '')
def syscall(number, *arguments):
    call(libc.syscall, number, *arguments)
read, write = (310, 311) if os.uname().machine == 'x86_64' else (270, 271)
buffer = ctypes.create_string_buffer(64)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 64)
memory = (ctypes.c_void_p * 2)(0x400000, 64)
attempts = {number.name: (lambda number=number: os.kill(pid, number)) for number in
            (signal.SIGSTOP, signal.SIGKILL, signal.SIGCONT, signal.SIGTERM, signal.SIGCHLD)}
attempts |= {
    'group': lambda: os.killpg(pid, signal.SIGSTOP),
    'attach': lambda: call(libc.ptrace, 16, pid, None, None),
    'seize': lambda: call(libc.ptrace, 0x4206, pid, None, None),
    'read memory': lambda: syscall(read, pid, vector, 1, memory, 1, 0),
    'write memory': lambda: syscall(write, pid, vector, 1, memory, 1, 0),
    'take a descriptor': lambda: syscall(438, os.pidfd_open(pid), 0, 0),
    'signal by descriptor': lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGSTOP),
    'limit': lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0)),
    'pin': lambda: os.sched_setaffinity(pid, {0}),
    'slow down': lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
    'schedule': lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
}
for file, flags in (('mem', os.O_RDONLY), ('mem', os.O_RDWR), ('environ', os.O_RDONLY), ('maps', os.O_RDONLY),
                    ('syscall', os.O_RDONLY), ('stack', os.O_RDONLY), ('oom_score_adj', os.O_WRONLY)):
    attempts[f'{file} {flags}'] = lambda file=file, flags=flags: os.read(os.open(f'/proc/{pid}/{file}', flags), 1)
for directory in ('fd', 'fdinfo', 'map_files', 'cwd', 'root'):
    attempts[directory] = lambda directory=directory: os.listdir(f'/proc/{pid}/{directory}')
for number in range(8):
    attempts[f'fd {number}'] = lambda number=number: os.open(f'/proc/{pid}/fd/{number}', os.O_RDWR)
done = {}
for name_of, attempt in attempts.items():
    try:
        attempt()
        done[name_of] = 'SUCCEEDED'
    except (PermissionError, FileNotFoundError):
        pass
    except OSError as error:
        done[name_of] = error.errno
print(json.dumps([pid, done, pid == waiting()]))
"""

KILL_WAITING = FIND_WAITING + "os.kill(pid, signal.SIGKILL)"

KILL_SPAWNER = (
    FIND_WAITING
    + """
os.kill(next(int(line.split()[1]) for line in open(f'/proc/{pid}/status') if line.startswith('PPid')), signal.SIGKILL)
"""
)

STATE = """
import json, os, resource, signal
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
names = ('Uid', 'Gid', 'Groups', 'CapInh', 'CapPrm', 'CapEff', 'CapAmb', 'NoNewPrivs', 'Seccomp', 'SigBlk', 'SigCgt',
         'Umask', 'TracerPid', 'Threads')
print(json.dumps([
    {name: status[name].split() for name in names},
    {'own session': os.getsid(0) == os.getpgid(0) == os.getpid(), 'cwd': os.getcwd(), 'nice': os.nice(0),
     'environment': dict(os.environ), 'files': sorted(map(int, os.listdir('/proc/self/fd')))[:3],
     'more files': len(os.listdir('/proc/self/fd')) - 4, 'limits': {name: resource.getrlimit(getattr(resource, name))
     for name in dir(resource) if name.startswith('RLIMIT_')}, 'score': open('/proc/self/oom_score_adj').read(),
     'ignored': [n.name for n in signal.Signals if signal.getsignal(n) == signal.SIG_IGN and n != signal.SIGPIPE]},
]))
"""


def python(client: Client, body: str, **fields: object) -> list[object]:
    reply = client.call(exec=wire.ExecRequest(argv=[b"python3", b"-c", body.encode()], **fields)).exec
    output = b"".join(piece.data for piece in reply.output).decode()
    assert (reply.outcome, reply.exit_code) == (wire.OUTCOME_EXITED, 0), output
    found: list[object] = json.loads(output)
    return found


def waiting(sandbox: Sandbox) -> list[int]:
    """Return the ids, on this host, of the processes that wait for a start."""
    rows = sandbox.container.top()["Processes"]
    return [int(row[1]) for row in rows if row[7].startswith("start_tool ")]


def test_tool_code_cannot_take_over_the_process_that_waits(client: Client) -> None:
    pid, done, is_the_same = python(client, FIND_WAITING + ATTACKS)
    assert done == {}
    assert is_the_same
    # The call after is started by the very process that was attacked.
    (own,) = python(client, "import os; print([os.getpid()])")
    assert own == pid


def test_a_call_gets_nothing_of_the_call_before(client: Client) -> None:
    before = python(client, STATE)
    hostile = "umask 0; cd /tmp; trap '' TERM HUP; ulimit -n 16; export LEFT=behind; exec 9</dev/null; sleep 0.1"
    assert client.execute(hostile, env={"GIVEN": "1"}).exit_code == 0
    after = python(client, STATE)
    first, second = (found[0].pop("Groups") for found in (before, after))  # type: ignore[attr-defined]
    assert (len(first), len(second), first != second) == (1, 1, True)  # the group of the call, and nothing else
    assert before == after
    status, rest = after
    assert isinstance(status, dict)
    assert isinstance(rest, dict)
    assert {int(status[name][0], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert (rest["files"], rest["more files"]) == ([0, 1, 2], 0)
    assert rest["own session"]
    assert status["Umask"] == ["0022"]
    assert set(status["Uid"]) == set(status["Gid"]) == {"10001"}


def test_the_next_start_does_not_notice_that_the_process_that_waited_was_killed(
    client: Client, sandbox: Sandbox
) -> None:
    assert eventually(lambda: len(waiting(sandbox)) == 1, 20)
    assert client.output("echo before") == "before\n"
    assert eventually(lambda: len(waiting(sandbox)) == 1, 20)
    (killed,) = waiting(sandbox)
    code, output = sandbox.container.exec_run(["python3", "-c", KILL_WAITING], user="0")
    assert code == 0, output
    assert eventually(lambda: killed not in waiting(sandbox), 20)
    assert client.output("echo after") == "after\n"
    assert eventually(lambda: len(waiting(sandbox)) == 1, 20)


def test_the_process_that_waits_ends_with_its_tool_spawner(client: Client, sandbox: Sandbox) -> None:
    assert eventually(lambda: len(waiting(sandbox)) == 1, 20)
    code, output = sandbox.container.exec_run(["python3", "-c", KILL_SPAWNER], user="0")
    assert code == 0, output
    assert eventually(lambda: not waiting(sandbox), 20)
    assert client.output("echo after") == "after\n"
    assert eventually(lambda: len(waiting(sandbox)) == 1, 20)


def test_the_process_that_waits_ends_when_no_program_is_started_for_a_while(client: Client, sandbox: Sandbox) -> None:
    assert client.output("echo before") == "before\n"
    assert eventually(lambda: len(waiting(sandbox)) == 1, 20)
    assert eventually(lambda: not waiting(sandbox), 60)
    assert client.output("echo after") == "after\n"
    assert eventually(lambda: len(waiting(sandbox)) == 1, 20)


def test_starts_at_once_each_have_a_process_of_their_own(sandbox: Sandbox) -> None:
    clients = [sandbox.connect() for _ in range(24)]
    for number, client in enumerate(clients):
        client.start([b"sh", b"-c", b"echo %d; id -G" % number])
    replies = [client.receive().exec for client in clients]
    lines = [b"".join(piece.data for piece in reply.output).split() for reply in replies]
    assert [int(first) for first, *_ in lines] == list(range(24))
    assert len({tuple(groups) for _, *groups in lines}) == 24


@pytest.mark.parametrize("large", [False, True])
def test_a_program_in_a_file_starts_as_one_in_the_order(client: Client, *, large: bool) -> None:
    size = 100_000 if large else 100
    argv = [b"sh", b"-c", b'printf %s "$1" | wc -c; cat', b"sh", b"x" * size]
    client.start(argv, stdin=True)
    client.send(wire.Input(data=b"given"))
    client.send(wire.Input(end=True))
    while (reply := client.receive()).WhichOneof("reply") != "exec":
        pass
    assert b"".join(piece.data for piece in reply.exec.output) == b"%d\ngiven" % size


@pytest.mark.parametrize(
    "argv, path, error",
    [
        ([b"no-such-program"], "/usr/bin:/bin", 2),
        ([b"/etc/passwd"], "/usr/bin", 13),
        ([b"passwd"], "/nowhere:/etc/passwd:/etc", 13),
        ([b"/workspace"], "/usr/bin", 13),
        ([b"true"], "/" + "x" * 5000, 36),
    ],
)
def test_a_program_that_cannot_be_executed_is_reported_with_its_errno(
    client: Client, argv: list[bytes], path: str, error: int
) -> None:
    reply = client.call(exec=wire.ExecRequest(argv=argv, env={"PATH": path})).exec
    assert (reply.outcome, reply.errno) == (wire.OUTCOME_FAILED_TO_START, error)


def test_the_places_of_a_path_are_tried_in_their_order(client: Client) -> None:
    # The first one cannot be executed; nothing below /workspace can here.
    client.output("mkdir first second; ln -s /etc/passwd first/it; ln -s /bin/echo second/it")
    path = "relative::/workspace/first:/workspace/second"
    reply = client.call(exec=wire.ExecRequest(argv=[b"it", b"second"], env={"PATH": path})).exec
    assert b"".join(piece.data for piece in reply.output) == b"second\n"
