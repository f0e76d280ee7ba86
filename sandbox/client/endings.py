"""Messages about how a program ended, where the outcome alone does not tell what to do about it."""

from __future__ import annotations

import errno
import os

from sandbox.client import replies
from sandbox.client.replies import Ending
from sandbox.v1 import channel_pb2 as pb

_FAR_OVER_DISK = (
    "the workspace is so far over its limit of disk that nothing is started; remove files with file calls, or write "
    "something short over them"
)
_OVER_DISK = (
    "the workspace took more disk than its limit, and everything that ran in the sandbox was killed; remove files "
    "before anything is written"
)
_HOST_DISK_REFUSED = (
    "the host's disk is nearly full, though the workspace is within its limit: nothing is started until the operator "
    "makes room, or file calls remove files"
)
_HOST_DISK = (
    "the host's disk is nearly full, though the workspace is within its limit: everything that ran in the sandbox was "
    "killed, and nothing may grow until the operator makes room"
)
_OVER_KERNEL = (
    "the sandbox held more sockets, terminals or open files than it may, and everything that ran in it was killed; "
    "close what is no longer used, and open fewer at once"
)
_NO_FILE_RULES = (
    "its file rules cannot be enforced here, so nothing is started: the sandbox's kernel has no Landlock of Linux 6.2 "
    "or later, or more than 4,096 files stand beside what the rules forbid; forbid whole directories"
)
_MAKE_ROOM = "end background processes, or kill what earlier commands left behind (strays)"
_START_FAILURES = {
    errno.E2BIG: "arguments and environment are too long together; write them to a file and name the file",
    errno.EPERM: _NO_FILE_RULES,
    errno.ENOENT: "there is no such program, or not the interpreter that its first line names",
    errno.EACCES: "the program may not be executed; chmod +x may be missing",
    errno.ENOEXEC: "the file is no program; a script begins with #! and its interpreter",
}


def of_command(ended: Ending, reply: pb.ExecReply) -> str:
    """Return the message for a command line, to be shown after its outcome."""
    message = ""
    if ended.outcome == "failed_to_start":
        number = replies.errno(reply.errno)
        advice = _NO_FILE_RULES if number == errno.EPERM else "the sandbox image needs a /bin/sh and a /workspace"
        message = f"/bin/sh did not start: {_strerror(number)}: {advice}"
    elif ended.outcome == "pids_limit":
        message = _MAKE_ROOM
    return _joined(message, ended, reply)


def of_program(ended: Ending, reply: pb.ExecReply, asked: pb.ExecRequest) -> str:
    """Return the message for a program with streams."""
    message = ""
    match ended.outcome:
        case "failed_to_start":
            number = replies.errno(reply.errno)
            advice = _START_FAILURES.get(number or 0)
            program = asked.argv[0][:200].decode("utf-8", "replace")
            message = f"{program!r} did not start: {_strerror(number)}" + (f": {advice}" if advice else "")
        case "pids_limit":
            message = f"the sandbox's limit of processes is reached and none could be made; {_MAKE_ROOM}"
        case "out_of_memory" if not reply.errno:
            message = "the sandbox's memory limit was reached and the kernel killed the program; use less memory"
        case "output_limit":
            message = (
                f"the program wrote more than {asked.stream_limit_bytes:,} bytes and was killed; ask for more, or "
                "write to a file and read that"
            )
        case "timed_out":
            message = (
                f"the time limit of {asked.timeout_ms / 1000:g} s was reached and everything the program had started "
                "was killed"
            )
    return _joined(message, ended, reply)


def survivors(reply: pb.ExecReply) -> str:
    """Return the message about processes that could not be killed."""
    return f"{reply.survivors} processes could not be killed; the next call gets a new sandbox with the same workspace"


def _joined(message: str, ended: Ending, reply: pb.ExecReply) -> str:
    """Append what the daemon reports besides the outcome; with an errno, nothing was started for lack of disk."""
    if ended.outcome == "disk_limit" and reply.host_disk:
        message = _HOST_DISK_REFUSED if reply.errno else _HOST_DISK
    elif ended.outcome == "disk_limit":
        message = _FAR_OVER_DISK if reply.errno else _OVER_DISK
    elif ended.outcome == "out_of_memory" and reply.errno:
        message = _OVER_KERNEL
    messages = [message] if message else []
    # A shell reports this in its own words or not at all, and exits with 1, 2 or 254.
    refused = replies.count(reply.pids_refused)
    if refused and ended.outcome in ("exited", "signalled") and ended.exit_code != 0:
        messages.append(
            f"the sandbox refused a process or thread {refused:,} times meanwhile, for its limit of processes; run "
            f"fewer at once, {_MAKE_ROOM}"
        )
    if reply.survivors:
        messages.append(survivors(reply))
    return "; ".join(messages)


def _strerror(number: int | None) -> str:
    return f"{os.strerror(number)} (errno {number})" if number else "unknown reason"
