"""What init and the server say to each other over a SOCK_SEQPACKET pair.

Server to init: (kind, call) and, with it, descriptors. SPAWN carries a memory file with the program, then stdout,
stderr and perhaps stdin; PROBE carries the writing end of a pipe. Init to server: (kind, call, value, pid).

The program is NUL-separated, which is safe because neither arguments nor environment can hold NUL:
cwd, number of arguments, the arguments, the environment as NAME=value.
"""

import struct

SPAWN, KILL, PROBE = 1, 2, 3
STARTED, FAILED, EXITED, KILLED = 11, 12, 13, 14

ORDER = struct.Struct("!BI")
NOTICE = struct.Struct("!BIiI")

# A call's processes carry one supplementary group that no other call has: this base plus the call's number.
CALL_GID_BASE = 1 << 30
CALL_NUMBERS = 1 << 30


def call_gid(call: int) -> int:
    """Return the supplementary group id that marks the processes of a call."""
    return CALL_GID_BASE + call % CALL_NUMBERS


def encode_program(argv: list[bytes], env: list[bytes], cwd: bytes) -> bytes:
    """Return the bytes of a program; no member may hold NUL."""
    return b"\0".join([cwd, b"%d" % len(argv), *argv, *env])


def decode_program(data: bytes) -> tuple[list[bytes], list[bytes], bytes]:
    """Return (argv, env, cwd)."""
    cwd, count, *rest = data.split(b"\0")
    return rest[: int(count)], rest[int(count) :], cwd
