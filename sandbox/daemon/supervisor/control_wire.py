"""Messages between init and the server, over a SOCK_SEQPACKET pair.

Server to init: (kind, call, value), followed by descriptors or numbers.
    SPAWN       stdout, stderr and optionally stdin; under the file rules `value`, none if it is 0
    SPAWN_TTY   a terminal that becomes the program's controlling one; as SPAWN
    PROBE       the write end of a pipe
    KILL        kill everything the call started
    SIGNAL      send signal `value` to the process group of the call's first process
    SIGNAL_TREE send signal `value` once to everything the call started
    KILL_STRAYS kill what calls started, except the calls whose numbers follow
    PAUSE       stop everything that calls started and that runs
    RESUME      resume what PAUSE stopped
    FILE_RULES  what later orders mean by the file rules `value`, which follow (file_rules.py); it has no answer
Init to server: (kind, call, value, pid). STARTED or FAILED answers the first three. DONE answers the others, in order;
its value is the number of processes that remain or were signalled, or a negative errno. EXITED is unsolicited.

The program of SPAWN and SPAWN_TTY follows the order or, beyond PROGRAM_LIMIT_BYTES, is in a memory file that is the
first descriptor. Its fields are separated by NUL, which arguments and environment cannot contain: cwd, number of
arguments, the arguments, the environment as NAME=value.
"""

import struct

SPAWN, KILL, PROBE, SPAWN_TTY, SIGNAL, SIGNAL_TREE, KILL_STRAYS, PAUSE, RESUME = 1, 2, 3, 4, 5, 6, 7, 8, 9
FILE_RULES = 10
STARTED, FAILED, EXITED, DONE = 11, 12, 13, 14

ORDER = struct.Struct("!BIB")
NOTICE = struct.Struct("!BIiI")
_NUMBER = struct.Struct("!I")

# Concurrent calls: one for each connection, the background processes, and a margin.
LIVE_CALLS_LIMIT = 4096
ORDER_LIMIT_BYTES = ORDER.size + LIVE_CALLS_LIMIT * _NUMBER.size

# A program that follows its order: the queue must have room for many orders.
PROGRAM_LIMIT_BYTES = 4096

# How many file rules init knows at a time, each of which has a process; their numbers begin at 1.
FILE_RULES_LIMIT = 8
FILE_RULES_LIMIT_BYTES = ORDER_LIMIT_BYTES - ORDER.size

# Each call has a supplementary group of its own: this base plus the call's number.
CALL_GID_BASE = 1 << 30
CALL_NUMBERS = 1 << 30


def call_gid(call: int) -> int:
    """Return the supplementary group id that marks the processes of a call."""
    return CALL_GID_BASE + call % CALL_NUMBERS


def call_of_gid(gid: int) -> int:
    """Return the call of a supplementary group, 0 for any other group."""
    return gid - CALL_GID_BASE if CALL_GID_BASE < gid < CALL_GID_BASE + CALL_NUMBERS else 0


def encode_calls(calls: list[int]) -> bytes:
    """Return the numbers that follow KILL_STRAYS; ValueError if they exceed one order."""
    if len(calls) > LIVE_CALLS_LIMIT:
        raise ValueError(f"{len(calls)} calls are live; {LIVE_CALLS_LIMIT} fit one order")
    return b"".join(map(_NUMBER.pack, calls))


def decode_calls(data: bytes) -> frozenset[int]:
    """Return the calls of encode_calls()."""
    return frozenset(call for (call,) in _NUMBER.iter_unpack(data))


def encode_program(argv: list[bytes], env: list[bytes], cwd: bytes) -> bytes:
    """Encode a program, whose fields must not contain NUL."""
    return b"\0".join([cwd, b"%d" % len(argv), *argv, *env])


def decode_program(data: bytes) -> tuple[list[bytes], list[bytes], bytes]:
    """Return (argv, env, cwd)."""
    cwd, count, *rest = data.split(b"\0")
    return rest[: int(count)], rest[int(count) :], cwd
