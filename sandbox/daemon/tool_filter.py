"""A filter of system calls in which tool code is born, besides the engine's: none takes disk in no time, or hides it.

fallocate() takes as much of a disk as there is within a millisecond, and so does one byte in a file that is to grow by
a gigabyte at a time, an attribute of XFS. What only watches how much a sandbox uses (disk_watch.py) would always come
too late, so tool code has to write what it wants to have. Nor may it set the other attributes of files: among them are
the project whose quota a file counts for, and whether what is made in a directory counts for its project. A program is
told what file systems that know no such call say, and does without. io_uring would be a way around.

Files without a name are looked for where processes hold them (disk_use.py). A rule of Landlock holds one where nobody
can look; so does io_uring, and io_setup's kind of requests hold sockets, in which files are under way.
"""

import os
import struct
from array import array

from sandbox.daemon.foreign import libc

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_EOPNOTSUPP, _ENOSYS = 95, 38

# Instructions: load a word of the call's description, keep some of its bits, compare and jump, return.
_LOAD, _AND, _IF_EQUAL, _IF_ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _SECOND_ARGUMENT_AT = 0, 4, 24  # the lower half, on machines whose bytes go upwards
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
# Of fallocate's modes those that give back: punch a hole, collapse a range.
_GIVING_BACK = 0x02 | 0x08
# The same by ioctl, whatever the size of their argument. Of type X: ALLOCSP, ALLOCSP64, RESVSP, RESVSP64, ZERO_RANGE
# and FSSETXATTR, which sets attributes; of type f: SETFLAGS, which sets some of these.
_TYPE_AND_NUMBER = 0xFFFF
_TAKING = (*(0x5800 | number for number in (10, 36, 40, 42, 57, 32)), 0x6602)
_X32 = 0x40000000
# Numbers that are the same on all machines. The second sets attributes as FSSETXATTR does, since Linux 6.17; the others
# are landlock_create_ruleset, landlock_add_rule and landlock_restrict_self.
_NUMBERS = (425, 469, 444, 445, 446)
_UNKNOWN = (*_NUMBERS, *(_X32 | number for number in _NUMBERS))

# Of a machine, the numbers that each kind of program it runs has: architecture, io_setup, fallocate, ioctl.
_CALLS = {
    "x86_64": (
        (0xC000003E, (206, _X32 | 543), (285, _X32 | 285), (16, _X32 | 514)),
        (0x40000003, (245,), (324,), (54,)),
    ),
    "aarch64": ((0xC00000B7, (0,), (47,), (29,)), (0x40000028, (243,), (352,), (54,))),
}

Instruction = tuple[int, int, int, int]  # operation, how many to skip if true, and if not, operand


def filter_tool_code() -> bool:
    """Put this process and all that it starts behind the filter, for good; return whether it is.

    Not where the machine is another, and not where programs could gain privileges, which no sandbox lets them.
    """
    call = libc()
    program = tool_filter(os.uname().machine)
    if call is None or not program:
        return False
    body = array("B", b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    address, _ = body.buffer_info()
    return call("prctl", _PR_SET_SECCOMP, _MODE_FILTER, struct.pack("@HP", len(program), address), 0, 0) == 0


def tool_filter(machine: str) -> list[Instruction]:
    """Return the filter's program for a machine, nothing for one that is not known."""
    program: list[Instruction] = []
    for architecture, io_setup, fallocate, ioctl in _CALLS.get(machine, ()):
        part = _of_architecture(io_setup, fallocate, ioctl)
        program += [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_IF_EQUAL, 0, len(part), architecture), *part]
    return [*program, (_RETURN, 0, 0, _ALLOW)] if program else []


def _of_architecture(
    io_setup: tuple[int, ...], fallocate: tuple[int, ...], ioctl: tuple[int, ...]
) -> list[Instruction]:
    part: list[Instruction] = [
        (_LOAD, 0, 0, _NUMBER_AT),
        *_refusing((*_UNKNOWN, *io_setup), [(_RETURN, 0, 0, _REFUSE | _ENOSYS)]),
        *_refusing(
            fallocate,
            [
                (_LOAD, 0, 0, _SECOND_ARGUMENT_AT),
                (_IF_ANY_BIT, 0, 1, _GIVING_BACK),
                (_RETURN, 0, 0, _ALLOW),
                (_RETURN, 0, 0, _REFUSE | _EOPNOTSUPP),
            ],
        ),
        *_refusing(
            ioctl,
            [
                (_LOAD, 0, 0, _SECOND_ARGUMENT_AT),
                (_AND, 0, 0, _TYPE_AND_NUMBER),
                *_refusing(_TAKING, [(_RETURN, 0, 0, _REFUSE | _EOPNOTSUPP)]),
                (_RETURN, 0, 0, _ALLOW),
            ],
        ),
    ]
    return [*part, (_RETURN, 0, 0, _ALLOW)]


def _refusing(values: tuple[int, ...], then: list[Instruction]) -> list[Instruction]:
    """Return what comes to `then` for one of some values, and else skips it."""
    compared = [(_IF_EQUAL, len(values) - 1 - place, 0, value) for place, value in enumerate(values)]
    operation, hit, _, value = compared[-1]
    return [*compared[:-1], (operation, hit, len(then), value), *then]
