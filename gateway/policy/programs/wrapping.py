"""Programs that run other programs: what they run, or why that cannot be determined."""

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import dropwhile

from gateway.policy.programs.call import Call, FileUse
from gateway.policy.programs.files import FIND_RUNS, command_end, starting_points
from gateway.policy.programs.options import Parsed, read_options
from gateway.policy.programs.paths import is_stream
from gateway.policy.shell_line import SimpleCommand
from gateway.policy.shell_names import behind_nuls, keeps_meaning
from gateway.policy.variables import may_assign
from gateway.policy.words import Opaque, Word, names

LIMIT_STARTS = 8

_SYSTEM_DIRECTORIES = ("/bin", "/usr/bin", "/usr/local/bin")
_CHANGES_THE_SHELL = names(""". alias bg bind break builtin compgen complete compopt continue coproc declare disown
    enable eval exec exit export fc fg getopts hash history jobs let local logout mapfile popd pushd read readarray
    readonly return set shift shopt source suspend trap typeset unalias unset""")
_RUNS_OTHERS = names("""aa-exec at batch bwrap capsh catchsegv cgexec choom chroot chrt chpst cpulimit crontab daemon
    daemonize dbus-launch dbus-run-session direnv dumb-init eatmydata entr envdir execlineb expect faketime fakeroot
    firejail flock gdb gosu hyperfine i386 i486 i586 i686 inotifyd lckdo linux32 linux64 logsave ltrace nocache nodemon
    nsenter numactl parallel perf pkexec prlimit proot proxychains proxychains4 rlwrap run-parts runcon runsv runsvdir
    runuser screen script sem setarch setlock setpriv setuidgid sg softlimit ssh-agent sshpass start-stop-daemon strace
    su su-exec systemd-cat systemd-inhibit systemd-run taskset tcpsvd timelimit tini tmux torify torsocks trickle tsocks
    udpsvd uftrace unbuffer uname26 unshare valgrind watch watchexec withlock x86_64 xterm xvfb-run""")
# The loader and emulators run the program that is their argument.
_LOADER = re.compile(r"ld[A-Za-z0-9._-]*\.so(\.[0-9]+)*|qemu-[a-z0-9_]+(-static)?")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_DURATION = re.compile(r"[0-9]+(\.[0-9]+)?[smhd]?")
# Shells with another language, or with other builtins and special variables than those that lines are read by.
_OTHER_SHELLS = names("""zsh ksh ksh93 rksh rzsh mksh lksh oksh loksh pdksh posh yash csh tcsh fish pwsh powershell nu
    elvish xonsh osh ysh rbash""")
_SHELLS = ("sh", "bash", "dash", "ash")
# Options of a shell that are understood, each word behind a NUL.
_SHELL_OPTIONS = re.compile(r"(?:\0-(?:[euxc]+|[euxc]*o\0(?:pipefail|errexit|nounset|xtrace))(?=\0|\Z))*")
# Runners of package managers and build tools: the subcommands that run what follows; none where it always does.
_RUNNERS = {
    **dict.fromkeys(("bunx", "npx", "pnpx", "uvx"), ""),
    **dict.fromkeys(("conda", "hatch", "mamba", "pdm", "pipenv", "pipx", "poetry", "rye"), "run"),
    **dict.fromkeys(("bundle", "pyenv", "rbenv"), "exec"),
    **dict.fromkeys(("npm", "mise"), "exec x"),
    **dict.fromkeys(("pnpm", "yarn"), "exec dlx"),
    "bun": "x",
    "uv": "run tool",
}
_RUNNER_FLAGS = frozenset({"--", "-y", "--yes", "-q", "--quiet", "--frozen", "--locked", "--no-sync", "--offline"})
_NUMBERS = frozenset({"$?", "$#", "$$", "$!"})
_ANY_WORDS = Word("*", "expansion")
_ANY_WORD = Word("*", "expansion", single=True)


@dataclass(frozen=True)
class Inner:
    """What a wrapper runs: commands, or the script of a shell. Without `replaces` it is a program of its own besides.

    `files` are what it reads itself.
    """

    commands: tuple[SimpleCommand, ...] = ()
    script: str | None = None
    replaces: bool = True
    files: tuple[FileUse, ...] = ()


def unwrap(command: SimpleCommand) -> Inner | None:
    """Return what a command runs, None for one that runs nothing but itself. Raises Opaque."""
    words = command.words
    directory, _, name = words[0].text.rpartition("/")
    known = name in _WRAPPERS or name in _RUNS_OTHERS or _LOADER.fullmatch(name) is not None
    if name in _CHANGES_THE_SHELL and not directory and not keeps_meaning(words):
        if name in ("export", "unset", "read"):
            raise Opaque(f"{name} of a variable may change what the rest of the line runs; use a name in lower case")
        raise Opaque(f"{name} changes what the rest of the line means")
    if directory and directory not in _SYSTEM_DIRECTORIES and (known or name in ("make", "gmake")):
        raise Opaque(f"{words[0].text} has the name of a program that runs others")
    if name in _WRAPPERS:
        return _WRAPPERS[name](command)
    if known:
        raise Opaque(f"{name} runs other programs")
    if not directory:
        _check_builtin(name, words)
    return None


def _check_builtin(name: str, words: tuple[Word, ...]) -> None:
    """Raise Opaque for the forms of harmless builtins in which some shells evaluate an argument."""
    flags = {"printf": ("-v",), "test": ("-v", "-R"), "[": ("-v", "-R"), "wait": ("-p",)}.get(name, ())
    if not flags:
        return
    place = words[1:2] if name == "printf" else words[1:]
    for word, behind in zip(place, (*words[2:], None), strict=False):
        # An operand that is exactly one word is never taken for an operator where there are enough others, but
        # `test $x a[...]` with x=-v evaluates its index.
        unsure = not word.prefix and word.text not in _NUMBERS
        # `printf "$x" ...`, and `test "$x" 'a[$(rm y)]'`, with x=-v: the word behind it is taken for a variable.
        named = name == "printf" or (behind is not None and (behind.literal is None or "[" in behind.text))
        evaluates = not word.one_word or (word.kind == "expansion" and named)
        if (unsure and evaluates) or (word.literal or "").startswith(flags):
            raise Opaque(f"{name} with {word.text} may evaluate an argument")


def _parsed(command: SimpleCommand, options: str) -> Parsed:
    """Read the options before the wrapped command. Raises Opaque for one that is not known."""
    call = Call(command.words[0].text.rpartition("/")[2], command.words[1:], command.cwd)
    parsed = read_options(call, options, runs=True, permute=False)
    if (opaque := call.effects().opaque) is not None:
        raise Opaque(opaque)
    if any(value is not None and not value.one_word for _, value in parsed.given):
        raise Opaque(f"{call.name} has an option whose argument is not one word")
    return parsed


def _reads(command: SimpleCommand, words: list[Word], *, dash: bool) -> tuple[FileUse, ...]:
    call = Call(command.words[0].text, command.words[1:], command.cwd)
    call.files(words, "read", dash=dash)
    return call.effects().files


def _rest(command: SimpleCommand, rest: list[Word]) -> SimpleCommand:
    """Return the words from there on as the wrapped command. Raises Opaque."""
    name = rest[0].literal if rest else None
    if not name or name.startswith("-") or "=" in name:
        raise Opaque(f"{command.words[0].text} is used in a form that is not understood")
    return replace(command, words=tuple(rest))


def _prefixing(
    options: str,
    *,
    alone: bool = False,
    replaces: bool = True,
    behind: Callable[[list[Word]], list[Word]] = lambda operands: operands,
) -> Callable[[SimpleCommand], Inner | None]:
    """Return how `wrapper [OPTIONS] COMMAND` is unwrapped.

    `alone` says that it also does something without COMMAND; `behind` gives the operands that are COMMAND.
    """

    def describe(command: SimpleCommand) -> Inner | None:
        operands = behind(_parsed(command, options).operands)
        return Inner((_rest(command, operands),), replaces=replaces) if operands or not alone else None

    return describe


def _shell(command: SimpleCommand) -> Inner | None:
    """A shell with -c, or with a script by name; one that reads its input could run anything."""
    words = command.words
    name = words[0].text
    begins = words[1].literal or "-" if len(words) > 1 else "-"
    if name.rpartition("/")[2] in _OTHER_SHELLS and begins.startswith(("-", "+", "/c", "/C")):
        raise Opaque(f"{name} runs commands in a language that is not read here; use sh or bash")
    options = _SHELL_OPTIONS.match(behind_nuls(words[1:]))
    position = 1 + (options.group().count("\0") if options else 0)
    if position == len(words):
        raise Opaque(f"{name} runs the commands that it reads")
    word = words[position]
    has_script = any(option.text.startswith("-") and "c" in option.text for option in words[1:position])
    if word.kind != "literal" and (has_script or not word.one_word or word.begins[:1] in ("", "-", "+")):
        raise Opaque(f"{name} runs a command that is not literal")
    if word.text == "--login" or word.text.startswith("-l"):
        raise Opaque(f"{name} {word.text} runs what the home directory says first; leave it out")
    if word.begins.startswith(("-", "+")):
        raise Opaque(f"{name} is used with {word.text}, which is not understood")
    return Inner(script=word.text) if has_script else _named_script(command, word)


def _named_script(command: SimpleCommand, script: Word) -> Inner:
    begins = script.begins
    paths = [posixpath.normpath(posixpath.join(directory, begins)) for directory in command.cwd or ("/",)]
    climbs = script.kind != "literal" and (begins.startswith("/") or ".." in script.text.split("/"))
    if climbs or any(is_stream(path) for path in (begins, *paths)):
        raise Opaque(f"{command.words[0].text} runs {script.text}, which may be what it reads")
    return Inner(replaces=False, files=_reads(command, [script], dash=False))


def _env(command: SimpleCommand) -> Inner | None:
    parsed = _parsed(command, "-0iv -u: --null --unset= --debug --ignore-environment")
    for value in parsed.values("-u", "--unset"):
        if value.kind != "literal" or not may_assign(value.text):
            raise Opaque(f"env -u {value.text} may change what runs")
    operands = _without_assignments(parsed.operands)
    shell = next((word.text for word in operands if word.text.rpartition("/")[2] in _SHELLS), None)
    if shell is not None and parsed.has("-i", "--ignore-environment"):
        raise Opaque(f"env -i starts {shell} without PATH, and some shells then look for programs here")
    return Inner((_rest(command, operands),)) if operands else None


def _without_assignments(operands: list[Word]) -> list[Word]:
    """Return what stands behind `NAME=value`. Raises Opaque for a variable that may change what runs."""
    for place, word in enumerate(operands):
        assignment = _ASSIGNMENT.match(word.begins)
        if assignment is None:
            return operands[place:]
        assigned = word.literal[assignment.end() :] if word.literal is not None else None
        if not may_assign(assignment.group(1), assigned) or not word.one_word:
            raise Opaque(f"it sets {assignment.group(1)}, which may change what runs")
    return []


def _without_duration(operands: list[Word]) -> list[Word]:
    """Return what stands behind the first operand of timeout. Raises Opaque where that is no duration."""
    if not operands or not _DURATION.fullmatch(operands[0].literal or ""):
        raise Opaque("timeout is used in another form than timeout DURATION COMMAND")
    return operands[1:]


def _command(command: SimpleCommand) -> Inner | None:
    if len(command.words) == 1 or command.words[1].literal in ("-v", "-V"):
        return None
    return Inner((_rest(command, list(command.words[1:])),))


def _xargs(command: SimpleCommand) -> Inner | None:
    parsed = _parsed(
        command,
        """-0rtx -a: -d: -E: -I: -i[] -L: -l[] -n: -P: -s: --null --no-run-if-empty --verbose --exit --arg-file=
        --delimiter= --replace[=] --max-lines[=] --max-args= --max-procs= --max-chars=""",
    )
    if not parsed.operands:
        return None
    words = _rest(command, parsed.operands).words
    replaced = parsed.values("-I", "-i", "--replace")
    is_replacing = parsed.has("-I", "-i", "--replace")
    if is_replacing:
        mark = replaced[-1].text if replaced else "{}"
        if not mark or any(value.kind != "literal" for value in replaced) or mark in words[0].text:
            raise Opaque("xargs is used in a form that is not understood")
        words = tuple(_with_mark(word, mark) for word in words)
    # Each of these may take back the replacement, and append what is read; -n 1 does not.
    counts = parsed.values("-n", "--max-args")
    if not is_replacing or parsed.has("-L", "-l", "--max-lines") or any(count.text != "1" for count in counts):
        words = (*words, _ANY_WORDS)
    files = _reads(command, parsed.values("-a", "--arg-file"), dash=True)
    return Inner((replace(command, words=words),), files=files)


def _with_mark(word: Word, mark: str) -> Word:
    """Return a word in which something is put in the place of `mark`."""
    before, found, _ = word.text.partition(mark)
    if not found:
        return word
    if word.kind != "literal":
        return _ANY_WORDS
    return replace(_ANY_WORD, text=word.text, prefix=before)


def _find(command: SimpleCommand) -> Inner | None:
    words = command.words
    commands: list[SimpleCommand] = []
    starts, end = starting_points(words[1:]), 0
    for place, word in enumerate(words):
        if place < end or word.literal not in FIND_RUNS:
            continue
        end = command_end(words, place + 1, plus=word.text.startswith("-exec"))
        wrapped = words[place + 1 : end]
        if not wrapped or end == len(words) or wrapped[0].kind != "literal" or "{}" in wrapped[0].text:
            raise Opaque(f"find {word.text} is used in a form that is not understood")
        inside = word.text in ("-execdir", "-okdir")
        found = [Word(".")] if inside else starts
        if len(found) > LIMIT_STARTS:
            raise Opaque("find starts at too many places")
        put = dict.fromkeys(tuple(_with_found(inner, start) for inner in wrapped) for start in found)
        commands.extend(replace(command, words=one, cwd=None if inside else command.cwd) for one in put)
    if commands and any(word.text.startswith("-files0") for word in words):
        raise Opaque("find -files0-from starts at places that are not known")
    return Inner(tuple(commands), replaces=False) if commands else None


def _with_found(word: Word, start: Word) -> Word:
    """Return a word with a file below `start` in the place of {}."""
    if "{}" not in word.text:
        return word
    if word.kind != "literal" or start.kind != "literal" or word.text != "{}":
        # {}/../x may be anywhere; what it begins with is known, and that it is no option.
        begins = word.text.partition("{}")[0] or start.begins
        return replace(_ANY_WORD, text=word.text, prefix=begins)
    root = start.text.rstrip("/") if start.text.strip("/") else ""
    return Word(f"{root}/**", "glob", prefix=f"{root}/")


def _runner(command: SimpleCommand) -> Inner | None:
    """A runner such as `uv run`: it is a program of its own besides, as it may install what it runs."""
    words = command.words
    name, verbs = words[0].text.rpartition("/")[2], _RUNNERS[words[0].text.rpartition("/")[2]].split()
    place = 1
    if verbs:
        verb = words[1] if len(words) > 1 else Word("")
        if verb.literal is None or verb.text.startswith("-"):
            if any(word.literal is None or word.text in verbs for word in words[1:]):
                raise Opaque(f"{name} may run another program; write its subcommand first, as in `{name} {verbs[0]}`")
            return None
        if verb.text not in verbs or [word.text for word in words[1:3]] == ["tool", "install"]:
            return None
        if verb.text == "tool" and (len(words) < 3 or words[2].literal != "run"):
            raise Opaque(f"{name} tool is used in a form that is not understood")
        place = 3 if verb.text == "tool" else 2
    rest = [*dropwhile(lambda word: word.literal in _RUNNER_FLAGS, words[place:])]
    if not rest:
        raise Opaque(f"{name} may run what it reads")
    return Inner((_rest(command, rest),), replaces=False)


_WRAPPERS: dict[str, Callable[[SimpleCommand], Inner | None]] = {
    "busybox": _prefixing(""),
    "chronic": _prefixing("-ev"),
    # Programs of their own besides.
    **dict.fromkeys(("doas", "sudo"), _prefixing(
        "-AbBEHkKlnNPSvV -C: -g: -p: -T: -u: -U: --group= --list --non-interactive --preserve-env[=] --stdin --user=",
        alone=True, replaces=False, behind=_without_assignments,
    )),
    "command": _command,
    "env": _env,
    "find": _find,
    "ionice": _prefixing("-t -c: -n: --class= --classdata= --ignore", alone=True),
    "nice": _prefixing("-# -n: --adjustment=", alone=True),
    "nohup": _prefixing(""),
    "setsid": _prefixing("-cfw --ctty --fork --wait"),
    "stdbuf": _prefixing("-i: -o: -e: --input= --output= --error="),
    "time": _prefixing("-pv --portability --verbose"),
    "timeout": _prefixing(
        "-fpv -k: -s: --kill-after= --signal= --foreground --preserve-status --verbose", behind=_without_duration
    ),
    "toybox": _prefixing(""),
    "xargs": _xargs,
    **dict.fromkeys((*_SHELLS, *_OTHER_SHELLS), _shell),
    **dict.fromkeys(_RUNNERS, _runner),
}  # fmt: skip
