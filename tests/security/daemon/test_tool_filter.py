"""System calls that the daemon's own filter refuses to tool code, tried from inside the sandbox.

Nothing here attaches a BPF program or fills a buffer: only the refusals are tested. Where the filter fails, the values
passed are ones that the kernel refuses.
"""

from __future__ import annotations

import os

import pytest

from sandbox.daemon.supervisor.tool_filter import tool_filter
from sandbox.v1 import channel_pb2 as wire
from tests.security.daemon.daemon_container import Client

TRIED = """
import array, ctypes, errno, mmap, os, signal, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def said(error):
    return errno.errorcode.get(error, str(error)) if error else 'done'
def result(action):
    try:
        action()
    except OSError as error:
        return said(error.errno)
    return 'done'
def call(number, *arguments):
    ctypes.set_errno(0)
    return said(ctypes.get_errno() if libc.syscall(number, *map(ctypes.c_long, arguments)) == -1 else 0)
"""


def tried(client: Client, body: str) -> list[str]:
    """Run Python as tool code and return its lines."""
    reply = client.call(exec=wire.ExecRequest(argv=[b"python3", b"-c", (TRIED + body).encode()])).exec
    output = b"".join(piece.data for piece in reply.output).decode()
    assert (reply.outcome, reply.exit_code) == (wire.OUTCOME_EXITED, 0), output
    return output.splitlines()


def test_sockets_are_unix_or_ip_and_of_no_other_family(client: Client) -> None:
    body = """
allowed = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6}
for family in (*range(64), 2**31 - 1):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        for make in (socket.socket, socket.socketpair):
            if family not in allowed:
                assert result(lambda: make(family, kind)) == 'EAFNOSUPPORT', (family, kind)
for family in allowed:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for flags in (0, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC):
            print(result(lambda: socket.socket(family, kind | flags)))
"""
    assert set(tried(client, body)) == {"done"}


def test_ip_sockets_are_tcp_udp_and_ping(client: Client) -> None:
    body = """
for protocol in (0, 6, 17, 1, 33, 115, 132, 136, 256, 262):
    kind = socket.SOCK_DGRAM if protocol in (1, 17, 33, 115, 136) else socket.SOCK_STREAM
    print(protocol, result(lambda: socket.socket(socket.AF_INET, kind, protocol)))
for kind in (socket.SOCK_SEQPACKET, 6, 10):
    print(result(lambda: socket.socket(socket.AF_INET, kind)))
"""
    lines = tried(client, body)
    assert [line for line in lines[:4] if line.endswith(" done")] == ["0 done", "6 done", "17 done", "1 done"]
    assert {line.split()[1] for line in lines[4:10]} == {"EPROTONOSUPPORT"}
    assert lines[10:] == ["ESOCKTNOSUPPORT"] * 3


def test_loopback_and_unix_sockets_work(client: Client) -> None:
    body = """
import threading
for family, address in ((socket.AF_INET, ('127.0.0.1', 0)), (socket.AF_UNIX, '/tmp/filter.sock')):
    with socket.socket(family) as server:
        server.bind(address)
        server.listen()
        thread = threading.Thread(target=lambda: server.accept()[0].sendall(b'well'))
        thread.start()
        with socket.socket(family) as client:
            client.connect(server.getsockname())
            print(client.recv(4).decode())
        thread.join()
os.unlink('/tmp/filter.sock')
print(socket.getaddrinfo('localhost', 80)[0][4][0] in ('127.0.0.1', '::1'))
"""
    assert tried(client, body) == ["well", "well", "True"]


def test_no_bpf_program_is_put_on_a_socket_or_taken_from_it(client: Client) -> None:
    body = """
for family, kind in ((socket.AF_UNIX, socket.SOCK_DGRAM), (socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_INET6, 1)):
    with socket.socket(family, kind) as tried:
        for option in (26, 27, 44, 50, 51, 52, 68):
            print(result(lambda: tried.setsockopt(socket.SOL_SOCKET, option, 0)))
        for option in (5, 13, 18, 22):  # rings, their version, fanout and its program
            print(result(lambda: tried.setsockopt(263, option, bytes(16))))
"""
    lines = tried(client, body)
    assert (len(lines), set(lines)) == (33, {"ENOPROTOOPT"})


def test_the_sizes_of_buffers_stay_what_they_are(client: Client) -> None:
    body = """
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
    with socket.socket(family, socket.SOCK_DGRAM) as tried:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            before = tried.getsockopt(socket.SOL_SOCKET, option)
            tried.setsockopt(socket.SOL_SOCKET, option, 1 << 30)
            assert tried.getsockopt(socket.SOL_SOCKET, option) == before
        for forced in (32, 33):
            assert result(lambda: tried.setsockopt(socket.SOL_SOCKET, forced, 1 << 20)) == 'EPERM'
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        assert tried.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 1
"""
    assert tried(client, body) == []


SECCOMP = """
PRCTL, SECCOMP = (157, 317) if os.uname().machine == 'x86_64' else (167, 277)
allow_all = array.array('B', struct.pack('=HBBI', 6, 0, 0, 0x7FFF0000))
program = array.array('B', struct.pack('@HP', 1, allow_all.buffer_info()[0]))
address = program.buffer_info()[0]
print(call(PRCTL, 22, 2, address), call(SECCOMP, 1, 0, address), call(SECCOMP, 1, 0, 0), call(SECCOMP, 1, 8, address))
print(call(PRCTL, 21, 0, 0), call(PRCTL, 38, 1, 0, 0, 0))
"""


def test_tool_code_installs_no_seccomp_filter(client: Client) -> None:
    # As a kernel without them answers. What prctl() is used for otherwise works.
    assert tried(client, SECCOMP) == ["EINVAL EINVAL EINVAL EINVAL", "done done"]


@pytest.mark.skipif(
    os.uname().machine != "x86_64", reason="looks at the other system calls of x86-64: run on such a machine"
)
def test_x32_and_32_bit_calls_are_judged_as_the_others_are(client: Client) -> None:
    body = """
X32 = 0x40000000
# With the bit an x32 call, where the kernel has those at all; by none of these numbers one gets around the filter.
for number in (41, X32 | 41, 53, X32 | 53):
    print(call(number, 40, 1, 0, 0))
for number in (54, X32 | 54, X32 | 541, 541):
    print(call(number, 1, 1, 26, 0, 0))
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
# push rbx; mov eax, edi; mov ebx, esi; mov r8d, ecx; mov ecx, edx; mov edx, r8d; int 0x80; pop rbx; ret
code.write(bytes.fromhex('53 89f8 89f3 4189c8 89d1 4489c2 cd80 5b c3'.replace(' ', '')))
enter = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int] * 4)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
sys.stdout.flush()
pid = os.fork()
if not pid:
    # socket, socketpair, two of setsockopt's first three arguments, socketcall, prctl, seccomp
    for numbers in ((359, 40, 1, 0), (359, 16, 3, 0), (360, 40, 1, 0), (366, 1, 1, 26), (366, 1, 263, 5),
                    (102, 1, 0, 0), (102, 14, 0, 0), (172, 22, 2, 0), (354, 1, 0, 0)):
        print(said(-enter(*numbers)))
    sys.stdout.flush()
    os._exit(0)
if os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
    print('no 32-bit programs')
"""
    lines = tried(client, body)
    assert lines[:4] == ["EAFNOSUPPORT"] * 4
    assert lines[4:8] == ["ENOPROTOOPT"] * 4
    assert lines[8:] in (
        ["no 32-bit programs"],
        [*["EAFNOSUPPORT"] * 3, *["ENOPROTOOPT"] * 2, *["ENOSYS"] * 2, *["EINVAL"] * 2],
    )


def test_the_posture_shows_what_tool_code_was_refused_when_it_tried(client: Client) -> None:
    posture = client.call(hello=wire.HelloRequest(protocol_version=1)).hello.posture
    assert list(posture.tool_socket_families) == [1, 2, 10]
    assert posture.socket_programs_refused
    assert posture.seccomp_filters_refused
    assert not posture.extended_attributes_refused


def test_there_is_no_filter_for_a_machine_whose_calls_are_not_known() -> None:
    assert tool_filter("riscv64") == []
    assert len(tool_filter("x86_64")) > len(tool_filter("x86_64", own_filters=True)) > 0
