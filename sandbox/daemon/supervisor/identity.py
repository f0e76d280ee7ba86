"""The identity of the server: isolated from tool code, with tool code's rights on files and no others."""

import os
import struct
from collections.abc import Callable

from sandbox.daemon.settings import Settings
from sandbox.daemon.supervisor.libc import libc

_PR_SET_KEEPCAPS = 8
_SETUID_MASK = 1 << 7
_CAPABILITY_HEADER = struct.pack("=Ii", 0x20080522, 0)  # version 3 of the interface; this thread
_NO_CHANGE = -1  # setfsuid() changes nothing, and returns the current user

_Call = Callable[..., int]


# The group of the bundle's directory (Dockerfile), which init and the server can enter and tool code cannot. All
# sandboxes share its volume, so tool code could lock its files for other tenants, and watch their daemons open them.
BUNDLE_GID = 599_999_999


class NotSafe(OSError):
    """The kernel did not apply a required restriction to this process; str() names it."""


def become_server(settings: Settings) -> None:
    """Become the server's user for good, with tool code's rights on files only; raises NotSafe.

    Real, effective and saved user are the daemon's. The kernel compares those with the caller's, so tool code cannot
    signal, trace, limit, pin or slow down this process. File access is checked against a fourth one, the file system
    user, which is tool code's. The change also makes the process not dumpable, so tool code cannot read its /proc
    entries. Forked children inherit all of this.
    """
    os.umask(0o022)
    os.setgroups([BUNDLE_GID])
    os.setresgid(settings.tool_gid, settings.tool_gid, settings.tool_gid)
    call = libc()
    if call is not None and _files_as(call, settings.tool_uid):
        # Leaving root drops every capability, and setting the file system user requires one of them.
        call("prctl", _PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setresuid(settings.daemon_uid, settings.daemon_uid, settings.daemon_uid)
        _set_capabilities(call, _SETUID_MASK)
        taken = _files_as(call, settings.tool_uid)
        _set_capabilities(call, 0)
        call("prctl", _PR_SET_KEEPCAPS, 0, 0, 0, 0)
        if not taken:
            raise NotSafe(f"the server could not take the rights of user {settings.tool_uid} on files")
    else:
        # gVisor has no file system user. It checks the effective user, also for who may slow this process down.
        os.setresuid(settings.daemon_uid, settings.tool_uid, settings.daemon_uid)
    with open("/proc/self/status", "rb") as file:
        status = dict(line.split(b":", 1) for line in file if b":" in line)
    for name in (b"CapPrm", b"CapEff"):
        if int(status[name], 16):
            raise NotSafe(f"the server would keep capabilities ({name.decode()} {status[name].decode().strip()})")


def _files_as(call: _Call, uid: int) -> bool:
    """Set the file system user; return whether it took effect, which setfsuid() does not report."""
    call("setfsuid", uid)
    return call("setfsuid", _NO_CHANGE) == uid


def _set_capabilities(call: _Call, mask: int) -> None:
    call("capset", _CAPABILITY_HEADER, struct.pack("=6I", mask, mask, 0, 0, 0, 0))
