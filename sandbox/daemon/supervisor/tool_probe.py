"""The self-test of a process that has just become the tool user. Runs in a child of the tool spawner."""

import errno
import os
import socket
from collections.abc import Callable

from sandbox.daemon.supervisor.libc import libc
from sandbox.daemon.supervisor.tool_filter import ALLOWED, PROGRAMS_ON_SOCKETS, install

_PR_GET_NO_NEW_PRIVS = 39
_FAMILIES = 64  # more than Linux has
_TYPES = (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)


def describe_tool(output: int, daemon_socket: bytes, become_tool: Callable[[], None]) -> None:
    """Write /proc/self/status as the tool user to `output`, followed by more lines of the same form.

    OomScoreAdjMin is the lowest OOM score it can set, SocketClosed whether it cannot connect to the daemon's socket,
    SocketFamilies the families of sockets it can create, SocketPrograms and SeccompFilters whether it can install any.
    The kernel reports none of these, so they are tried out. NoNewPrivs is included because gVisor does not list it.
    """
    try:
        # Opened first: a process that changed its user without an exec may not open its own files in /proc.
        score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        score = -1  # no such file, or not writable for tool processes (launch.py)
    become_tool()
    lowest = _lowest_score(score) if score >= 0 else own_oom_score_adj()
    with open("/proc/self/status", "rb") as file:
        report = file.read() + b"OomScoreAdjMin:\t%d\n" % lowest
    call = libc()
    if call is not None:
        report += b"NoNewPrivs:\t%d\n" % call("prctl", _PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
        report += b"SeccompFilters:\t%d\n" % install([ALLOWED])
    families = " ".join(str(family) for family in range(1, _FAMILIES) if _opens(family))
    report += b"SocketFamilies:\t%s\n" % families.encode()
    report += b"SocketPrograms:\t%d\n" % _takes_socket_program()
    os.write(output, report + b"SocketClosed:\t%d\n" % _is_closed(daemon_socket))


def _is_closed(path: bytes) -> bool:
    """Return whether this process is not permitted to connect; other failures do not count."""
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(path)
        except PermissionError:
            return True
        except (OSError, ValueError):
            return False
    return False


def _opens(family: int) -> bool:
    for kind in _TYPES:
        try:
            socket.socket(family, kind).close()
            return True
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:
                return False  # whatever the type
    return False


def _takes_socket_program() -> bool:
    """Return whether any of the options reaches the kernel. None of the values is a valid program."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as tried:
        for option in PROGRAMS_ON_SOCKETS:
            try:
                tried.setsockopt(socket.SOL_SOCKET, option, 0)
            except OSError as error:
                if error.errno == errno.ENOPROTOOPT:
                    continue
            return True
    return False


def _lowest_score(score: int) -> int:
    refused, taken = -1001, int(os.pread(score, 16, 0))  # the kernel has none below -1000
    while taken - refused > 1:
        middle = (taken + refused) // 2
        try:
            os.pwrite(score, b"%d" % middle, 0)
            taken = middle
        except OSError:
            refused = middle
    return taken


def own_oom_score_adj() -> int:
    """Return this process' OOM score, 0 if it cannot be read."""
    try:
        with open("/proc/self/oom_score_adj", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
