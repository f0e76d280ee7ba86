"""A seccomp filter for tool code, in addition to the engine's. Tool code inherits it and cannot remove it.

Disk: fallocate() can take all of a disk within a millisecond, and so can one byte in a file with an XFS attribute that
makes it grow by gigabytes. The disk watch (disk_watch.py) only observes usage and would always be too late, so tool
code has to write what it allocates. It must not set other file attributes either: they include the project whose quota
a file counts for, and its inheritance. io_uring would bypass the filter. Landlock rules, io_uring and requests of
io_setup keep files open where the daemon cannot find them, so all three fail as unknown calls.

Sockets: only Unix and IP. Other families are useless without a network, and each is kernel code shared with other
tenants: vsock reaches the hypervisor and ignores network namespaces, and unread netlink messages take kernel memory
that no cgroup counts. Of IP only TCP, UDP and ping. Buffers keep their default size: SO_SNDBUF and SO_RCVBUF succeed
without effect, as they do at the kernel's maximum.

BPF: programs on sockets, packet rings and, unless the policy allows them, seccomp filters of tool code's own. Freeing
many of them at once has deadlocked kernels. 32-bit x86 programs cannot use socketcall(), whose arguments are in memory,
which a filter cannot read; Linux has had separate calls since 4.3.

Extended attributes: Landlock does not restrict them, so tool code under file rules cannot set any. Nor can it where
the engine does not limit the files of a tmpfs: 64 KiB of an ACL on each are memory of the host that no cgroup counts.
The calls fail as on a file system without attributes, which programs know: `cp -a` copies what there is otherwise.
"""

import os
import struct
from array import array

from sandbox.daemon.supervisor.libc import libc

_EPERM, _EINVAL, _ENOSYS, _ENOPROTOOPT = 1, 22, 38, 92
_EPROTONOSUPPORT, _ESOCKTNOSUPPORT, _EOPNOTSUPP, _EAFNOSUPPORT = 93, 94, 95, 97

# Instructions: load a word of the call's description, keep some of its bits, compare and jump, return.
_LOAD, _AND, _JUMP, _IF_EQUAL, _IF_ANY_BIT, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_ARGUMENTS_AT = (16, 24, 32)  # the lower halves, on little-endian machines
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_SUCCEED_WITHOUT_EFFECT = _REFUSE  # errno 0

# The modes of fallocate that free space: punch a hole, collapse a range.
_FREEING = 0x02 | 0x08
# The ioctls that allocate space, whatever the size of their argument. Of type X: ALLOCSP, ALLOCSP64, RESVSP, RESVSP64,
# ZERO_RANGE and FSSETXATTR, which sets attributes; of type f: SETFLAGS, which sets some of them.
_TYPE_AND_NUMBER = 0xFFFF
_ALLOCATING = (*(0x5800 | number for number in (10, 36, 40, 42, 57, 32)), 0x6602)
# Numbers that are the same on all machines: io_uring_setup, file_setattr (as FSSETXATTR, since Linux 6.17),
# landlock_create_ruleset, landlock_add_rule and landlock_restrict_self.
_UNKNOWN = (425, 469, 444, 445, 446)
_SET_ATTRIBUTES = (463, 466)  # setxattrat, removexattrat
# The bit in the call numbers of x32 programs on x86_64 is ignored, so x32 calls are filtered like others.
_WITHOUT_X32 = 0xFFFFFFFF ^ 0x40000000

AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCKET_TYPE = 0x0F
_STREAM_DATAGRAM_RAW = (1, 2, 3)  # the kernel refuses raw sockets, with an error that programs know
_IP_PROTOCOLS = (0, 1, 6, 17, 58)  # the type's own, ICMP, TCP, UDP, ICMPv6

SOL_SOCKET, SOL_PACKET = 1, 263
_SIZES_OF_BUFFERS = (7, 8)
_FORCED_SIZES_OF_BUFFERS = (32, 33)
# SO_ATTACH_FILTER, DETACH_FILTER, LOCK_FILTER, ATTACH_BPF, ATTACH_REUSEPORT_CBPF and _EBPF, DETACH_REUSEPORT_BPF.
PROGRAMS_ON_SOCKETS = (26, 27, 44, 50, 51, 52, 68)

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_SECCOMP_SET_MODE_FILTER = 1

# For each machine, the architectures of the programs it runs: its own ones, and 32-bit ones.
_ARCHITECTURES = {"x86_64": (0xC000003E, 0x40000003), "aarch64": (0xC00000B7, 0x40000028)}
# The numbers that calls have for each architecture.
_CALLS: dict[str, dict[int, tuple[int, ...]]] = {
    "io_setup": {0xC000003E: (206, 543), 0x40000003: (245,), 0xC00000B7: (0,), 0x40000028: (243,)},
    "fallocate": {0xC000003E: (285,), 0x40000003: (324,), 0xC00000B7: (47,), 0x40000028: (352,)},
    "ioctl": {0xC000003E: (16, 514), 0x40000003: (54,), 0xC00000B7: (29,), 0x40000028: (54,)},
    "socket": {0xC000003E: (41,), 0x40000003: (359,), 0xC00000B7: (198,), 0x40000028: (281,)},
    "socketpair": {0xC000003E: (53,), 0x40000003: (360,), 0xC00000B7: (199,), 0x40000028: (288,)},
    "setsockopt": {0xC000003E: (54, 541), 0x40000003: (366,), 0xC00000B7: (208,), 0x40000028: (294,)},
    "prctl": {0xC000003E: (157,), 0x40000003: (172,), 0xC00000B7: (167,), 0x40000028: (172,)},
    "seccomp": {0xC000003E: (317,), 0x40000003: (354,), 0xC00000B7: (277,), 0x40000028: (383,)},
    "socketcall": {0x40000003: (102,)},
    "setxattr": {
        0xC000003E: (188, 189, 190, 197, 198, 199),
        0x40000003: (226, 227, 228, 235, 236, 237),
        0xC00000B7: (5, 6, 7, 14, 15, 16),
        0x40000028: (226, 227, 228, 235, 236, 237),
    },
}

Instruction = tuple[int, int, int, int]  # operation, how many to skip if true, and if not, operand
_Program = list[Instruction]
ALLOWED: Instruction = (_RETURN, 0, 0, _ALLOW)


def filter_tool_code(*, own_filters: bool = False, attributes: bool = True) -> bool:
    """Install the filter in this process and its future children, for good; return whether it is installed.

    `own_filters` lets tool code install seccomp filters, `attributes` set extended attributes. The filter requires a
    known machine and no_new_privs, which every sandbox sets.
    """
    program = tool_filter(os.uname().machine, own_filters=own_filters, attributes=attributes)
    return bool(program) and install(program)


def install(program: list[Instruction]) -> bool:
    """Install a filter's program in this process; return whether the kernel took it."""
    call = libc()
    body = array("B", b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    address, _ = body.buffer_info()
    described = struct.pack("@HP", len(program), address)
    return call is not None and call("prctl", _PR_SET_SECCOMP, _MODE_FILTER, described, 0, 0) == 0


def tool_filter(machine: str, *, own_filters: bool = False, attributes: bool = True) -> list[Instruction]:
    """Return the filter's program for a machine, empty for an unknown one."""
    program: _Program = []
    for architecture in _ARCHITECTURES.get(machine, ()):
        part = _of_architecture(architecture, own_filters=own_filters, attributes=attributes)
        program += [
            (_LOAD, 0, 0, _ARCHITECTURE_AT),
            # A conditional jump reaches 255 instructions, this one any number.
            (_IF_EQUAL, 1, 0, architecture),
            (_JUMP, 0, 0, len(part)),
            *part,
        ]
    return [*program, ALLOWED] if program else []


def _of_architecture(architecture: int, *, own_filters: bool, attributes: bool) -> _Program:
    filtered = {
        "io_setup": _refuse(_ENOSYS),
        "socketcall": _refuse(_ENOSYS),
        "fallocate": [_argument(1), (_IF_ANY_BIT, 0, 1, _FREEING), ALLOWED, *_refuse(_EOPNOTSUPP)],
        "ioctl": [_argument(1), (_AND, 0, 0, _TYPE_AND_NUMBER), *_for(_ALLOCATING, _refuse(_EOPNOTSUPP)), ALLOWED],
        "socket": _socket(),
        "socketpair": _socket(),
        "setsockopt": _setsockopt(),
    }
    if not own_filters:
        # EINVAL, as from a kernel without them.
        filtered["prctl"] = [
            _argument(0),
            *_for((_PR_SET_SECCOMP,), [_argument(1), *_for((_MODE_FILTER,), _refuse(_EINVAL))]),
            ALLOWED,
        ]
        filtered["seccomp"] = [_argument(0), *_for((_SECCOMP_SET_MODE_FILTER,), _refuse(_EINVAL)), ALLOWED]
    part = [(_LOAD, 0, 0, _NUMBER_AT), (_AND, 0, 0, _WITHOUT_X32), *_for(_UNKNOWN, _refuse(_ENOSYS))]
    if not attributes:
        filtered["setxattr"] = _refuse(_EOPNOTSUPP)
        part += _for(_SET_ATTRIBUTES, _refuse(_EOPNOTSUPP))
    for name, then in filtered.items():
        part += _for(_CALLS[name].get(architecture, ()), then)
    return [*part, ALLOWED]


def _socket() -> _Program:
    ip = [
        _argument(1),
        (_AND, 0, 0, _SOCKET_TYPE),
        *_unless(_STREAM_DATAGRAM_RAW, _refuse(_ESOCKTNOSUPPORT)),
        _argument(2),
        *_unless(_IP_PROTOCOLS, _refuse(_EPROTONOSUPPORT)),
        ALLOWED,
    ]
    return [_argument(0), *_for((AF_UNIX,), [ALLOWED]), *_for((_AF_INET, _AF_INET6), ip), *_refuse(_EAFNOSUPPORT)]


def _setsockopt() -> _Program:
    of_sockets = [
        _argument(2),
        *_for(_SIZES_OF_BUFFERS, [(_RETURN, 0, 0, _SUCCEED_WITHOUT_EFFECT)]),
        *_for(_FORCED_SIZES_OF_BUFFERS, _refuse(_EPERM)),
        *_for(PROGRAMS_ON_SOCKETS, _refuse(_ENOPROTOOPT)),
        ALLOWED,
    ]
    return [_argument(1), *_for((SOL_PACKET,), _refuse(_ENOPROTOOPT)), *_for((SOL_SOCKET,), of_sockets), ALLOWED]


def _argument(index: int) -> Instruction:
    return _LOAD, 0, 0, _ARGUMENTS_AT[index]


def _refuse(error: int) -> _Program:
    return [(_RETURN, 0, 0, _REFUSE | error)]


def _for(values: tuple[int, ...], then: _Program) -> _Program:
    """Return instructions that run `then` if the loaded value is among `values`."""
    if not values:
        return []
    compared = [(_IF_EQUAL, len(values) - 1 - place, 0, value) for place, value in enumerate(values)]
    operation, hit, _, value = compared[-1]
    return [*compared[:-1], (operation, hit, len(then), value), *then]


def _unless(values: tuple[int, ...], then: _Program) -> _Program:
    """Return instructions that run `then` unless the loaded value is among `values`."""
    return [*((_IF_EQUAL, len(values) - 1 - place + len(then), 0, value) for place, value in enumerate(values)), *then]
