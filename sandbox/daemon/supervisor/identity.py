"""As whom the server runs: in no way tool code's equal, yet with no more rights on files than tool code has."""

import os
import struct
from collections.abc import Callable

from sandbox.daemon.settings import Settings
from sandbox.daemon.supervisor.libc import libc

_PR_SET_KEEPCAPS = 8
_SETUID_MASK = 1 << 7
_CAPABILITY_HEADER = struct.pack("=Ii", 0x20080522, 0)  # version 3 of the interface; this thread
_NOBODY = -1  # setfsuid() changes nothing for it, and tells whose files these are now

_Call = Callable[..., int]


# The group of the bundle's directory (Dockerfile): init and the server enter it, tool code does not. All sandboxes
# share its volume, so tool code could lock its files for other tenants, and watch their daemons open them.
BUNDLE_GID = 599_999_999


class NotSafe(OSError):
    """The kernel did not make of this process what it must be; str() says what is missing."""


def become_server(settings: Settings) -> None:
    """Become the server's user for good: tool code's rights on files, and nothing else of its or of root's.

    Real, effective and saved user are the daemon's. The kernel compares those with the caller's, so tool code may not
    signal, trace, limit, pin or slow down this process. Files are judged by a fourth one, the file system user, which
    is tool code's. The change also makes the process not dumpable, so tool code may not read its /proc entries.
    Children that are forked inherit all of it. Raises NotSafe.
    """
    os.umask(0o022)
    os.setgroups([BUNDLE_GID])
    os.setresgid(settings.tool_gid, settings.tool_gid, settings.tool_gid)
    call = libc()
    if call is not None and _files_as(call, settings.tool_uid):
        _become(call, settings.tool_uid, settings.daemon_uid)
    else:
        # gVisor knows no such user. There the effective one judges files, and also who may slow this process down.
        os.setresuid(settings.daemon_uid, settings.tool_uid, settings.daemon_uid)
    _refuse_capabilities()


def _become(call: _Call, tool_uid: int, daemon_uid: int) -> None:
    # Leaving root takes every capability away, and another's file system user needs one of them at that moment.
    call("prctl", _PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setresuid(daemon_uid, daemon_uid, daemon_uid)
    _set_capabilities(call, _SETUID_MASK)
    taken = _files_as(call, tool_uid)
    _set_capabilities(call, 0)
    call("prctl", _PR_SET_KEEPCAPS, 0, 0, 0, 0)
    if not taken:
        raise NotSafe(f"the server could not take the rights of user {tool_uid} on files")


def _files_as(call: _Call, uid: int) -> bool:
    """Have files judged as another user's; return whether they are. setfsuid() itself reports no failure."""
    call("setfsuid", uid)
    return call("setfsuid", _NOBODY) == uid


def _set_capabilities(call: _Call, mask: int) -> None:
    call("capset", _CAPABILITY_HEADER, struct.pack("=6I", mask, mask, 0, 0, 0, 0))


def _refuse_capabilities() -> None:
    with open("/proc/self/status", "rb") as file:
        status = dict(line.split(b":", 1) for line in file if b":" in line)
    for name in (b"CapPrm", b"CapEff"):
        if int(status[name], 16):
            raise NotSafe(f"the server would keep capabilities ({name.decode()} {status[name].decode().strip()})")
