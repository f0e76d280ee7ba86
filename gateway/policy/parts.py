"""A call cut into the parts that are judged: a path, each simple command, each file that a command names, a host.

A command line goes down to the programs it runs: `timeout 5 make`, `sh -c '...'`, `find ... -exec rm {} +` are taken
apart (programs/), and what a wrapper runs is judged in its place. Builtins that change what the rest of the line means
(alias, eval, ...) and programs that exist to run others (sudo, ...) are opaque always.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from gateway.policy.fields import CONNECT, FILE_TOOLS, JUDGED_AS, WRITING_TOOLS
from gateway.policy.globs import PathGlob, path_problem, read_glob, tree_glob
from gateway.policy.programs import read_call
from gateway.policy.programs.call import LIMIT_USES, TOO_MANY, Access, FileUse, absolute, any_file
from gateway.policy.recent import Recent
from gateway.policy.shell import parse_line
from gateway.policy.shell_builtins import does_nothing
from gateway.policy.shell_grammar import LIMIT_COMMANDS
from gateway.policy.shell_line import START, Directories, Redirect, ShellLine, SimpleCommand, joined
from gateway.policy.url_paths import judged_path
from gateway.policy.words import Word
from gateway.support.hosts import canonical_host, shown_endpoint

_SHOWN_CHARS = 200
_LIMIT_PORT = 65_535
_METHOD = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_LIMIT_KEPT_BYTES = 4 * 1024 * 1024
# What a service does to a path, judged as write_file, that writes nothing into it.
_NO_BYTES = ("remove", "make_directory")
_NOWHERE = "/dev/null"
_TOOL_OF: dict[Access, str] = {"read": "read_file", "write": "write_file", "list": "ls"}
_LIMIT_DEPTH = 4
# Of all programs of a line: find can put one command, and one script, in many places.
_LIMIT_WORDS = 12_000
_LIMIT_SCRIPTS_BYTES = 64 * 1024

Kind = Literal["tool", "path", "below", "command", "host", "line"]


@dataclass(frozen=True)
class Part:
    """What is judged at once, by the rules of `tool`. `shown` is for people.

    tool: a tool that has nothing but its name. path: a file, or what `glob` matches; both are None where it is
    unknown, and with `below` everything in that directory too. below: what a search of `path` may meet, which is only
    ever restricted. command: `words` run in one of the directories `cwd`; a `wrapper` runs another part in its place,
    or does nothing beside it, and is only restricted; `within` are commands that end in these words and run them, and
    an allow that goes so far is one for these, too. host: `host` (canonical) and `port`; of an HTTP request to it also
    `method` and `url_path`, both None where the gateway sees no request, or not which path. line: a whole command line
    that is opaque. `size_bytes` is what is written, None where it is not known.
    `of_command`: a command line does this, not a tool.
    """

    kind: Kind
    shown: str
    tool: str
    path: str | None = None
    below: bool = False
    words: tuple[Word, ...] = ()
    cwd: Directories = START
    wrapper: bool = False
    host: str | None = None
    port: int | None = None
    method: str | None = None
    url_path: str | None = None
    size_bytes: int | None = None
    of_command: bool = False
    glob: str | None = None
    within: tuple[SimpleCommand, ...] = ()

    @cached_property
    def meant(self) -> PathGlob | None:
        """What it means where that is more than one path, ready to be compared with globs."""
        if self.glob is not None:
            return read_glob(f"{self.glob}/**" if self.below else self.glob)
        return tree_glob(self.path) if self.path is not None and (self.below or self.kind == "below") else None

    @property
    def is_known(self) -> bool:
        """Whether it is known which file is meant."""
        return self.kind != "path" or self.path is not None or self.glob is not None

    @property
    def endpoint(self) -> str:
        """What an approver is asked about by a rule that treats all requests to a host alike."""
        return self.shown if self.method is None or self.host is None else shown_endpoint(self.host, self.port)

    @property
    def needs_allow(self) -> bool:
        """Whether something must allow it; the others are only there to be denied or asked about."""
        return self.kind != "below" and not self.wrapper


@dataclass(frozen=True)
class Parts:
    """The parts of a call. `invalid` says why it cannot be judged, `opaque` why its command line cannot be read."""

    parts: tuple[Part, ...] = ()
    invalid: str | None = None
    opaque: str | None = None


def cut(tool: str, arguments: Mapping[str, object], *, effects: bool = True, redirects: bool = True) -> Parts:
    """Cut a call into its parts. Never raises.

    Without `effects` what programs do with files is left out, and without `redirects` what the shell opens.
    """
    tool = JUDGED_AS.get(tool, tool)
    if tool in FILE_TOOLS:
        return _cut_file_call(tool, arguments)
    if tool == "execute":
        command = arguments.get("command")
        if not isinstance(command, str):
            return Parts(invalid="command must be text" if "command" in arguments else "command is missing")
        return _COMMANDS.get((command, effects, redirects), lambda: _read_command(command, effects, redirects))
    if tool == CONNECT:
        return _cut_connection(arguments)
    return Parts((Part("tool", shown(tool), tool),))


def shown(text: str) -> str:
    """Return a short text for people and models; names that are not UTF-8 come out escaped."""
    return text[:_SHOWN_CHARS].encode("utf-8", "backslashreplace").decode("utf-8")


def _cut_file_call(tool: str, arguments: Mapping[str, object]) -> Parts:
    path = arguments.get("path")
    problem = path_problem(path)
    if problem is None and tool == "glob":
        problem = _pattern_problem(arguments.get("pattern"))
    if problem is not None or not isinstance(path, str):
        return Parts(invalid=problem)
    # A service that removes a tree does so to all that is in it (gateway/services/workspace_service.py).
    below = tool in WRITING_TOOLS and arguments.get("recursive") is True
    size_bytes = _written_bytes(tool, arguments)
    name = f"{path} and all below it" if below else path
    parts = [Part("path", shown(name), tool, path=path, size_bytes=size_bytes, below=below)]
    if tool in ("glob", "grep"):
        parts.append(Part("below", shown(f"below {path}"), tool, path=path))
    return Parts(tuple(parts))


def _pattern_problem(pattern: object) -> str | None:
    """Return what keeps a glob call's pattern from staying below its path."""
    if not isinstance(pattern, str):
        return "pattern must be text"
    if "\0" in pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        return 'pattern must be relative and without ".."; give the directory as path'
    return None


def _written_bytes(tool: str, arguments: Mapping[str, object]) -> int | None:
    if tool not in WRITING_TOOLS:
        return None
    text = arguments.get("content" if tool == "write_file" else "new_text")
    if isinstance(text, str):
        return len(text.encode(errors="surrogatepass"))
    return 0 if arguments.get("operation") in _NO_BYTES else None


def _cut_connection(arguments: Mapping[str, object]) -> Parts:
    host, port = arguments.get("host"), arguments.get("port")
    if not isinstance(host, str):
        return Parts(invalid="host must be text")
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port <= _LIMIT_PORT:
        return Parts(invalid=f"port must be a number from 1 to {_LIMIT_PORT}")
    try:
        name = canonical_host(host)
    except ValueError as error:
        return Parts(invalid=f"host is not valid: {error}")
    method, target = arguments.get("method"), arguments.get("path")
    endpoint = shown_endpoint(name, port)
    if method is None and target is None:
        return Parts((Part("host", endpoint, CONNECT, host=name, port=port),))
    if not isinstance(method, str) or not isinstance(target, str) or not _METHOD.fullmatch(method):
        return Parts(invalid="method and path belong together: the method and the target of an HTTP request")
    text = shown(f"{method.upper()} {endpoint}{target.partition('?')[0]}")
    path = judged_path(target)
    return Parts((Part("host", text, CONNECT, host=name, port=port, method=method.upper(), url_path=path),))


def _size_bytes(key: tuple[str, bool, bool], parts: Parts) -> int:
    """Return about how much memory a command and its parts take."""
    words = sum(len(part.words) for part in parts.parts)
    return 1000 + 8 * len(key[0]) + 600 * len(parts.parts) + 200 * words


_COMMANDS: Recent[tuple[str, bool, bool], Parts] = Recent(_LIMIT_KEPT_BYTES, _size_bytes)
"""A command is judged before it runs, explained, and tried again; it says the same every time."""


def _read_command(command: str, effects: bool, redirects: bool) -> Parts:
    programs = read_programs(command)
    opened = [part for redirect in programs.redirects if redirects for part in _redirected(redirect)]
    opened = [part for part in opened if part.path != _NOWHERE]
    opaque = programs.opaque
    # In bash /dev/tcp/host/port is a connection, not a file.
    device = next((part.path for part in opened if part.path is not None and part.path.startswith("/dev/")), None)
    if opaque is None and device is not None:
        opaque = f"a redirect to {device!r} may be something else than a file"
    # `cd src && git diff && echo ok` needs nothing but an allow for git.
    beside = any(not program.wrapper and not does_nothing(program.words) for program in programs.programs)
    parts: list[Part] = []
    for program in programs.programs:
        words, name = program.words, program.words[0].text
        text = shown(" ".join(word.text for word in words))
        wrapper = program.wrapper or (beside and does_nothing(words))
        parts.append(Part("command", text, "execute", None, False, words, program.cwd, wrapper, within=program.within))
        if effects:
            parts.extend(_file_part(name, use) for use in program.uses)
    parts.extend(opened)
    if not parts and opaque is None:
        parts.append(Part("line", "a line that runs nothing", "execute", of_command=True))
    return Parts(tuple(dict.fromkeys(parts)), opaque=opaque)


def _redirected(redirect: Redirect) -> Iterator[Part]:
    """Yield the files that a redirect may open; of one that is not plain it is unknown which one it is."""
    mark, tool = (">", "write_file") if redirect.writes else ("<", "read_file")
    target = redirect.target or ""
    for path in absolute(target, redirect.cwd) if not target.endswith("/") else (None,):
        name = path or target or "a file that is not known before it runs"
        yield Part("path", shown(f"{mark} {name}"), tool, path=path, of_command=True)


def _file_part(name: str, use: FileUse) -> Part:
    # The glob of a shell's pattern as people write it, where a wildcard is never a leading dot.
    glob = use.glob.replace("[!.]*", "*") if use.glob is not None else None
    target = use.path or glob or (f"any file ({use.why})" if use.why else "a file that cannot be determined")
    return Part(
        "path",
        shown(f"{name}: {use.access} {'below ' if use.below else ''}{target}"),
        _TOOL_OF[use.access],
        path=use.path,
        below=use.below,
        of_command=True,
        wrapper=use.possible,
        glob=use.glob,
    )


@dataclass(frozen=True)
class Program(SimpleCommand):
    """A simple command to judge, and where it may run. A `wrapper` runs the next one in its place.

    Of a wrapper's words only deny and ask rules are about; the files that it uses are judged like any other's. `within`
    are the commands that end in these words and run them, innermost first.
    """

    wrapper: bool = False
    uses: tuple[FileUse, ...] = ()
    within: tuple[SimpleCommand, ...] = ()


def read_programs(command: str) -> Programs:
    """Parse a command line, unwrap its commands and see what known programs do. Never raises."""
    reading = Programs()
    reading.line(parse_line(command), depth=0)
    return reading


class Programs:
    """A command line down to the programs it runs. `opaque` is None when these are all."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.redirects: list[Redirect] = []
        self.opaque: str | None = None
        self._words = self._uses = self._scripts_bytes = 0

    def line(self, line: ShellLine, depth: int) -> None:
        """Take in a line and what its commands wrap."""
        self.opaque = self.opaque or line.opaque
        self.redirects.extend(line.redirects)
        for command in line.commands:
            self.command(command, depth)

    def command(self, command: SimpleCommand, depth: int, within: tuple[SimpleCommand, ...] = ()) -> None:
        """Take in one simple command and what it wraps."""
        self._words += len(command.words)
        if depth > _LIMIT_DEPTH or len(self.programs) > LIMIT_COMMANDS or self._words > _LIMIT_WORDS:
            self._refuse("it wraps commands too deep or has too many")
            return
        if command.words[0].kind != "literal":
            self._refuse("the name of a program is not literal")
            self.programs.append(Program(command.words, command.cwd))
            return
        command = self._placed(command)
        call = read_call(command.words, command.cwd)
        self._uses += len(call.uses)
        if self._uses > LIMIT_USES:
            call.uses = dict.fromkeys(any_file(TOO_MANY))
        if call.opaque is not None:
            self._refuse(call.opaque)
        self.programs.append(Program(command.words, command.cwd, call.replaces, tuple(call.uses), within))
        if call.script is not None:
            self._scripts_bytes += len(call.script.encode(errors="replace"))
            if self._scripts_bytes > _LIMIT_SCRIPTS_BYTES:
                self._refuse(f"its scripts are longer than {_LIMIT_SCRIPTS_BYTES} bytes together")
                return
            self.line(parse_line(call.script, command.cwd), depth + 1)
        for wrapped in call.commands:
            # `git -C lib diff` ends in a `git diff`, which begins with git.
            end = wrapped.words[wrapped.words[0] == command.words[0] :]
            ends = bool(end) and end == command.words[-len(end) :]
            self.command(wrapped, depth + 1, (command, *within) if ends else ())

    def _refuse(self, reason: str) -> None:
        self.opaque = self.opaque or reason

    def _placed(self, command: SimpleCommand) -> SimpleCommand:
        """Return a command whose program has the absolute path that it runs by, where that is not as it is written.

        `cd x && ./build.sh` is another program than the ./build.sh that rules name; deny rules see both.
        """
        name = command.words[0].text
        if "/" not in name or name.startswith("/") or command.cwd == START:
            return command
        if command.cwd is None or len(command.cwd) > 1 or ".." in name.split("/"):
            self._refuse("it runs a program by a relative path after cd; write the absolute path")
            return command
        self.programs.append(Program(command.words, command.cwd, wrapper=True))
        return replace(command, words=(Word(joined(command.cwd[0], name)), *command.words[1:]))
