"""RemoteShell: runs commands in a sandbox, through its daemon. Satisfies agent.filesystem.Shell.

A lost daemon is an outcome, not an exception: the command may have run, and the caller must learn that.
"""

from __future__ import annotations

import errno
import math
import os
import re
import time
from collections.abc import AsyncIterable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from sandbox import protocols
from sandbox.client import arguments, replies
from sandbox.client.channel import Channel
from sandbox.client.program_stream import CallersFault, ProgramStream, receive_exec
from sandbox.client.replies import Ending
from sandbox.daemon.programs.output import (
    BYTES_PER_CHARACTER,
    KEPT_LIMIT_BYTES,
    PIECES_LIMIT,
    count_characters,
    prefix_length,
)
from sandbox.errors import DaemonLost, SandboxError, SandboxRetired
from sandbox.file_rules import FileRules
from sandbox.in_turns import in_turns
from sandbox.v1 import channel_pb2 as pb

# Over a limit of disk: by whether the host's disk is short, and whether nothing was started.
_OVER_DISK = {
    (False, True): (
        "the workspace is so far over its disk limit that nothing is started; remove files with file calls, or "
        "overwrite a file with a shorter one"
    ),
    (False, False): (
        "the workspace exceeded its disk limit, so everything that ran in the sandbox was killed; remove files before "
        "you write anything"
    ),
    (True, True): (
        "the host's disk is nearly full, though the workspace is within its limit: nothing is started until the "
        "operator makes room, or file calls remove files"
    ),
    (True, False): (
        "the host's disk is nearly full, though the workspace is within its limit: everything that ran in the sandbox "
        "was killed, and nothing may grow until the operator makes room"
    ),
}
_OVER_KERNEL = (
    "the sandbox exceeded its limit of sockets, terminals or open files, and everything that ran in it was killed; "
    "close what is no longer used, and open fewer at once"
)
_FILE_RULES = {
    errno.EPERM: (
        "its file rules cannot be enforced here, so nothing is started: the sandbox's kernel has no Landlock of Linux "
        "6.2 or later"
    ),
    errno.EOVERFLOW: (
        "nothing is started under its file rules, because more than 4,096 files stand in the same directory as a "
        "forbidden one: remove some with the file tools, or keep the forbidden files in a directory of their own"
    ),
}
_MAKE_ROOM = "end background processes, or kill what earlier commands left behind (strays)"
_START_FAILURES = {
    errno.E2BIG: "arguments and environment are too long together; write them to a file and name the file",
    **_FILE_RULES,
    errno.ENOENT: "there is no such program, or not the interpreter that its first line names",
    errno.EACCES: "the program may not be executed; chmod +x may be missing",
    errno.ENOEXEC: "the file is no program; a script begins with #! and its interpreter",
}


def _command_message(ended: Ending, reply: pb.ExecReply) -> str:
    number = replies.errno(reply.errno)
    advice = _FILE_RULES.get(number or 0, "the sandbox image needs a /bin/sh and a /workspace")
    messages = {"failed_to_start": f"/bin/sh did not start: {_strerror(number)}: {advice}", "pids_limit": _MAKE_ROOM}
    return _message(messages, ended, reply)


def _program_message(ended: Ending, reply: pb.ExecReply, asked: pb.ExecRequest) -> str:
    number = replies.errno(reply.errno)
    advice = _START_FAILURES.get(number or 0)
    program = asked.argv[0][:200].decode("utf-8", "replace")
    messages = {
        "failed_to_start": f"{program!r} did not start: {_strerror(number)}" + (f": {advice}" if advice else ""),
        "pids_limit": f"the sandbox's limit of processes is reached and none could be made; {_MAKE_ROOM}",
        "out_of_memory": "the sandbox's memory limit was reached and the kernel killed the program; use less memory",
        "output_limit": (
            f"the program wrote more than {asked.stream_limit_bytes:,} bytes and was killed; ask for more, or write to "
            "a file and read that"
        ),
        "timed_out": (
            f"the time limit of {asked.timeout_ms / 1000:g} s was reached and everything the program had started was "
            "killed"
        ),
    }
    return _message(messages, ended, reply)


def _remaining_message(reply: pb.ExecReply) -> str:
    return f"{reply.remaining} processes could not be killed; the next call gets a new sandbox with the same workspace"


def _message(by_outcome: Mapping[str, str], ended: Ending, reply: pb.ExecReply) -> str:
    """Return the message of the outcome, followed by what else the daemon reports."""
    message = by_outcome.get(ended.outcome, "")
    if ended.outcome == "disk_limit":
        message = _OVER_DISK[reply.host_disk, bool(reply.errno)]
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
    if reply.remaining:
        messages.append(_remaining_message(reply))
    return "; ".join(messages)


def _strerror(number: int | None) -> str:
    return f"{os.strerror(number)} (errno {number})" if number else "unknown reason"


DEFAULT_SPILL_LIMIT_BYTES = 256 * 1024 * 1024
# The kernel's limit for one argument (MAX_ARG_STRLEN).
_COMMAND_LIMIT_BYTES = 128 * 1024 - 1
_TIMEOUT_LIMIT_S = 24 * 3600.0
_OUTPUT_LIMIT_BYTES = 1024**4
# Beyond the command's own limit: the daemon kills the tree, and closes and hashes the spilled output.
_GRACE_S = 15.0


@dataclass(frozen=True, eq=False)
class RemoteShell:
    """A shell in one sandbox. `env` is added to every command's environment.

    `spill_limit_bytes` bounds a spilled output, and `spill_quota_bytes` all of them together by removing the oldest; 0
    is no limit.
    """

    channel: Channel
    env: Mapping[str, str] = field(default_factory=dict)
    spill_limit_bytes: int = DEFAULT_SPILL_LIMIT_BYTES
    spill_quota_bytes: int = 0
    grace_s: float = _GRACE_S
    clock: Callable[[], float] = time.monotonic
    file_rules: pb.FileRules | None = None

    def under(self, rules: FileRules | None, env: Mapping[str, str] = protocols.NO_VARIABLES) -> RemoteShell:
        """Return this shell with file rules for everything it starts; where the kernel lacks them, nothing starts.

        `env` is added for what it starts, except what the sandbox sets itself.
        """
        message = None if rules is None else arguments.file_rules_message(rules)
        return replace(self, file_rules=message, env={**env, **self.env})

    async def execute(  # noqa: PLR0913 - how a line runs, and how much of its output is shown
        self,
        command: str,
        *,
        timeout_s: float,
        call_id: str,
        limit_chars: int,
        head_chars: int,
        tail_chars: int,
        on_output: protocols.OnOutput | None = None,
        context: object = None,
    ) -> protocols.ExecResult:
        """Run `/bin/sh -c command` in /workspace; cancelling the await kills everything it started.

        Output beyond `limit_chars` stays in /workspace/.airlock/output/<call_id>.txt. `on_output` gets output as it
        arrives, up to the same limit. `context`, which agents give to any shell, says nothing here.
        """
        del context
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call_id):
            raise ValueError(f"call id {call_id!r}: 1 to 64 of A-Z a-z 0-9 _ - are allowed")
        _check_timeout(timeout_s)
        line = command.encode("utf-8", "surrogateescape")
        if b"\0" in line:
            return protocols.ExecResult("failed_to_start", message="the command has a NUL character; leave it out")
        if len(line) > _COMMAND_LIMIT_BYTES:
            return protocols.ExecResult(
                "failed_to_start",
                message=f"the command is over {_COMMAND_LIMIT_BYTES:,} bytes; write it to a file and run that",
            )
        limit = pb.OutputLimit(
            limit_chars=limit_chars,
            head_chars=head_chars,
            tail_chars=tail_chars,
            spill_path=f"{protocols.OUTPUT_DIRECTORY}/{call_id}.txt",
            spill_limit_bytes=self.spill_limit_bytes,
            spill_quota_bytes=self.spill_quota_bytes,
        )
        request = pb.ExecRequest(
            argv=[b"/bin/sh", b"-c", line],
            env=self.env,
            timeout_ms=math.ceil(timeout_s * 1000),
            output_limit=limit,
            stream=on_output is not None,
            file_rules=self.file_rules,
        )
        output = _Output(_most_bytes(limit), PIECES_LIMIT)
        try:
            reply = await self._run(request, output, on_output, timeout_s + self.grace_s)
            self._retire_if_any_remain(reply)
            return await _result(reply, output, limit)
        except DaemonLost as error:
            self.channel.mark_lost(error)
            message = _lost_message(error, "command")
            return protocols.ExecResult(
                "daemon_lost", output=await output.pieces(), output_bytes=output.size_bytes, message=message
            )
        except SandboxError as error:
            return protocols.ExecResult("failed_to_start", message=str(error))

    async def run_program(
        self,
        program: protocols.ProgramSpec,
        *,
        stdin: AsyncIterable[bytes] | None,
        on_output: protocols.OnProgramOutput,
    ) -> protocols.ProgramResult:
        """Run a program with streams; cancelling the await kills everything it started.

        `stdin` is read as fast as the program takes it. `on_output` gets pieces of 1 MiB at most, and the program waits
        while it is awaited. An exception of either ends the call and propagates. Past its output limit the program is
        killed: outcome output_limit. A program that cannot be requested has failed to start, and `message` says why.
        """
        timeout_s, output_limit_bytes = program.timeout_s, program.output_limit_bytes
        _check_timeout(timeout_s)
        if not 0 < output_limit_bytes <= _OUTPUT_LIMIT_BYTES:
            raise ValueError(
                f"output_limit_bytes {output_limit_bytes!r}: more than 0 and {_OUTPUT_LIMIT_BYTES} at most"
            )
        try:
            request = pb.ExecRequest(
                argv=arguments.checked_argv(program.argv),
                env=arguments.checked_environment(self.env, program.env),
                cwd=arguments.checked_path(program.cwd) if program.cwd else "",
                timeout_ms=math.ceil(timeout_s * 1000),
                stdin=stdin is not None,
                stream=True,
                stream_limit_bytes=output_limit_bytes,
                file_rules=self.file_rules,
            )
            arguments.checked_request(pb.Request(exec=request))
        except SandboxError as error:
            return protocols.ProgramResult("failed_to_start", message=str(error))
        stream = ProgramStream(request, stdin, on_output, timeout_s + self.grace_s, self.clock)
        try:
            reply = await stream.run(self.channel)
            result = _program_result(reply, request)
            self._retire_if_any_remain(reply)
            return result
        except CallersFault as fault:
            raise fault.error from None
        except DaemonLost as error:
            self.channel.mark_lost(error)
            message = _lost_message(error, "program")
            return protocols.ProgramResult("daemon_lost", output_bytes=stream.output_bytes, message=message)
        except SandboxError as error:
            outcome = "pids_limit" if error.errno == errno.EAGAIN else "failed_to_start"
            return protocols.ProgramResult(outcome, errno=error.errno, message=str(error))

    def _retire_if_any_remain(self, reply: pb.ExecReply) -> None:
        """Mark a sandbox lost that has processes which cannot be killed; its keeper replaces it."""
        if reply.remaining:
            self.channel.mark_lost(DaemonLost(_remaining_message(reply)))

    async def _run(
        self, request: pb.ExecRequest, output: _Output, on_output: protocols.OnOutput | None, limit_s: float
    ) -> pb.ExecReply:
        async def take(piece: pb.Output) -> None:
            stream, data = output.add(piece)
            if on_output is not None:
                on_output(stream, data)

        async with self.channel.call(pb.Request(exec=request)) as call:
            wanted = None if on_output is None else take
            return await receive_exec(call, wanted, limit_s=limit_s, clock=self.clock)


def _check_timeout(timeout_s: float) -> None:
    if not 0 < timeout_s <= _TIMEOUT_LIMIT_S:
        raise ValueError(f"timeout_s {timeout_s!r}: more than 0 and {_TIMEOUT_LIMIT_S:.0f} at most")


class _Output:
    """Collected output, within limits; consecutive pieces of one stream are joined, and count as one."""

    def __init__(self, limit_bytes: int, pieces_limit: int) -> None:
        self.size_bytes = 0
        self._limit_bytes = limit_bytes
        self._pieces_limit = pieces_limit
        self._parts: list[tuple[protocols.OutputStream, bytearray]] = []

    def add(self, output: pb.Output) -> tuple[protocols.OutputStream, bytes]:
        stream, data = replies.output_stream(output), output.data
        self.size_bytes += len(data)
        if self.size_bytes > self._limit_bytes:
            raise DaemonLost("the sandbox daemon sent more output than was asked for")
        if self._parts and self._parts[-1][0] == stream:
            self._parts[-1][1].extend(data)
        elif len(self._parts) < self._pieces_limit:
            self._parts.append((stream, bytearray(data)))
        else:
            raise DaemonLost("the sandbox daemon sent output in more pieces than it may keep")
        return stream, data

    async def pieces(self) -> tuple[protocols.OutputPiece, ...]:
        return tuple([protocols.OutputPiece(stream, bytes(data)) async for stream, data in in_turns(self._parts)])

    async def head(self, chars: int) -> tuple[protocols.OutputPiece, ...]:
        """Return the first characters: a streamed call sends up to the limit before the daemon evicts the output."""
        kept = []
        async with aclosing(in_turns(self._parts)) as parts:
            async for stream, part in parts:
                data = bytes(part[: prefix_length(bytes(part), chars)])
                if data:
                    kept.append(protocols.OutputPiece(stream, data))
                chars -= count_characters(data)
                if len(data) < len(part):
                    break
        return tuple(kept)


def _most_bytes(limit: pb.OutputLimit) -> int:
    """Return how many bytes of output a daemon may send, as a stream or in its reply, without the tail."""
    # Bytes that are no characters count only as bytes: such pieces are in the head whole, and the last one is cut.
    of_characters = BYTES_PER_CHARACTER * (limit.limit_chars + limit.head_chars)
    # Or the last piece is not cut, and fills a frame at most.
    return min(of_characters, KEPT_LIMIT_BYTES + 1024 * 1024)


async def _result(reply: pb.ExecReply, output: _Output, limit: pb.OutputLimit) -> protocols.ExecResult:
    ended = replies.ending(reply.outcome, reply.exit_code, reply.signal)
    if ended.outcome == "output_limit":
        raise DaemonLost("the sandbox daemon ended a command at a limit that it was not given")
    tail_bytes = BYTES_PER_CHARACTER * limit.tail_chars
    tail = _Output(tail_bytes, pieces_limit=tail_bytes)
    for collected, pieces in ((output, reply.output), (tail, reply.tail)):
        async for piece in in_turns(pieces):
            collected.add(piece)
    evicted = _spilled(reply.evicted, limit) if reply.HasField("evicted") else None
    return replies.converted(
        protocols.ExecResult,
        reply,
        **ended._asdict(),
        output=await output.head(limit.head_chars) if evicted else await output.pieces(),
        tail=await tail.pieces() if evicted else (),
        evicted=evicted,
        message=_command_message(ended, reply),
    )


def _lost_message(error: DaemonLost, what: str) -> str:
    ran = "did not run" if isinstance(error, SandboxRetired) else "may have run"
    return f"{error}. The {what} {ran}; the workspace is kept and the next call gets a new sandbox."


def _spilled(evicted: pb.Evicted, limit: pb.OutputLimit) -> protocols.SpilledOutput:
    if evicted.path != limit.spill_path or not re.fullmatch(r"[0-9a-f]{64}", evicted.sha256):
        raise DaemonLost("the sandbox daemon evicted output to a place that was not asked for, or without its digest")
    if evicted.size_bytes > limit.spill_limit_bytes or evicted.lines > evicted.size_bytes:
        raise DaemonLost("the sandbox daemon claims a spilled output past its limit")
    return replies.converted(protocols.SpilledOutput, evicted)


def _program_result(reply: pb.ExecReply, asked: pb.ExecRequest) -> protocols.ProgramResult:
    ended = replies.ending(reply.outcome, reply.exit_code, reply.signal)
    number = replies.errno(reply.errno) if ended.outcome == "failed_to_start" else None
    message = _program_message(ended, reply, asked)
    return replies.converted(protocols.ProgramResult, reply, **ended._asdict(), errno=number, message=message)
