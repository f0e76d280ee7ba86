"""The daemon's end against a gateway that sends anything: it answers or hangs up, serves others, and stays itself.

Each input is what one connection sends to a real daemon in a real, hardened sandbox, so that a request may remove,
write and execute whatever it names.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from hypothesis import strategies as st

from sandbox.daemon.frames import MAX_FRAME_BYTES
from sandbox.v1 import channel_pb2 as pb
from tests.fuzz.messages import Messages, damaged

_ANSWER_LIMIT_S = 60.0
_DAMAGED_ANSWER_LIMIT_S = 0.02
_STREAM_MEMBERS = {"started", "output", "chunk"}
_PATHS = (
    *(
        "/workspace",
        "/workspace/a",
        "/workspace/a/b",
        "/workspace/b.txt",
        "/tmp",
        "/tmp/a",
        "/",
        "/etc/passwd",
        "/dev/null",
    ),
    *(
        "/proc/self/mem",
        "/workspace/../etc",
        "//workspace//a",
        "",
        "relative",
        "/" + "x" * 300,
        "/workspace/\n",
        "/run/airlock/daemon.sock",
    ),
)
_PROGRAMS = (
    *(
        [b"true"],
        [b"echo", b"a"],
        [b"cat"],
        [b"sh", b"-c", b"echo out; echo err >&2; exit 3"],
        [b"/nowhere"],
        [b"/workspace"],
    ),
    *(
        [b"sh", b"-c", b"sleep 0.05 &"],
        [b"sh", b"-c", b"kill -9 $$"],
        [b"head", b"-c", b"100000", b"/dev/zero"],
        [b""],
        [],
        [b"a\0b"],
    ),
)
PROCESSES = ("p1", "p2", "p3", "p4")
_SPECIAL = {
    **dict.fromkeys(
        ("path", "new_path", "cwd", "spill_path", "output_directory"),
        st.one_of(st.sampled_from(_PATHS), st.text(max_size=20)),
    ),
    "id": st.sampled_from([*PROCESSES, *PROCESSES, "", "../x", "p" * 65]),
    "pattern": st.one_of(
        st.sampled_from(["*", "**", "**/*.txt", "a+", "(", "[", "(a+)+$", "{a,b}"]), st.text(max_size=20)
    ),
    # Nothing runs for long: what is fuzzed is the daemon, not the clock.
    "timeout_ms": st.sampled_from([1, 5, 50, 2**32 - 1]),
    "wait_ms": st.sampled_from([0, 1, 20, 60_001, 2**32 - 1]),
}
_messages = Messages(_SPECIAL)
_CALLS = [field.name for field in pb.Request.DESCRIPTOR.oneofs_by_name["call"].fields]

Input = tuple[bytes, bool]  # what is sent, and whether an answer is due


@st.composite
def inputs(draw: st.DrawFn) -> Input:
    """Return what one connection sends, and whether an answer is due."""
    name = draw(st.sampled_from(_CALLS))
    field = pb.Request.DESCRIPTOR.fields_by_name[name]
    message = draw(_messages.of(field.message_type))
    if name in {"exec", "process_start"}:
        message.argv[:] = draw(st.sampled_from(_PROGRAMS))
    request = pb.Request(**{name: message}, refuse_hard_links=draw(st.booleans()))
    frames = [request.SerializeToString()]
    if (name == "exec" and request.exec.stdin) or (name == "write" and not request.write.inline):
        pieces = draw(st.lists(st.binary(max_size=256), max_size=3))
        frames += [pb.Input(data=piece).SerializeToString() for piece in pieces]
        frames.append(pb.Input(end=True).SerializeToString())
    if name == "attach":
        # A daemon that is retired would have nothing left to fuzz.
        frames += [pb.Input(in_use=using).SerializeToString() for using in draw(st.lists(st.booleans(), max_size=3))]
    whole = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    sent = draw(damaged(frames))
    # A request to accept waits for as long as an earlier input keeps the proxy port open.
    return sent, sent == whole and name != "proxy_accept"


async def judge(socket_path: Path, given: Input, seen: Counter[str]) -> None:
    """Send one input and hear the daemon out; AssertionError is a finding."""
    sent, whole = given
    reader, writer = await asyncio.open_unix_connection(str(socket_path), limit=2 * MAX_FRAME_BYTES)
    try:
        writer.write(sent)
        async with asyncio.timeout(_ANSWER_LIMIT_S if whole else _DAMAGED_ANSWER_LIMIT_S):
            seen[await _final(reader)] += 1
    except TimeoutError:
        assert not whole, f"no answer within {_ANSWER_LIMIT_S:.0f} s to {sent!r}"
        seen["still listening"] += 1
    except (asyncio.IncompleteReadError, ConnectionError):
        assert not whole, f"the daemon hung up on {sent!r}"
        seen["hung up"] += 1
    finally:
        writer.close()


async def _final(reader: asyncio.StreamReader) -> str:
    """Return the name of the final member; what is no reply, or out of bounds, is a finding."""
    while True:
        size = int.from_bytes(await reader.readexactly(4), "big")
        assert size <= MAX_FRAME_BYTES
        reply = pb.Reply.FromString(await reader.readexactly(size))
        member = reply.WhichOneof("reply")
        assert member is not None, "an empty reply"
        if member == "failure":
            kind = pb.FailureKind.Name(reply.failure.kind)
            assert kind != "FAILURE_KIND_INTERNAL", f"the daemon failed: {reply.failure.message}"
            return kind.removeprefix("FAILURE_KIND_").lower()
        if member not in _STREAM_MEMBERS:
            return member
