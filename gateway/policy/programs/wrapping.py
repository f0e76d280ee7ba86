"""Programs that run other programs: what they run, or why that cannot be determined."""

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import dropwhile

from gateway.policy.programs.call import Call, Describe, is_stream
from gateway.policy.programs.options import Parsed, read_options
from gateway.policy.programs.scripts import read_script
from gateway.policy.shell_builtins import behind_nuls, keeps_meaning
from gateway.policy.words import Opaque, Word, may_assign, names

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
RUNNERS = {
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


def refuse_others(call: Call, *, elsewhere: bool) -> None:
    """Refuse a program that runs others or changes the shell in ways that are not read, or stands `elsewhere`."""
    name = call.name
    runs_others = name in _RUNS_OTHERS or _LOADER.fullmatch(name) is not None
    if elsewhere:
        if runs_others or name in PROGRAMS or name in ("find", "make", "gmake"):
            call.refuse(f"{call.program.text} has the name of a program that runs others")
    elif runs_others:
        call.refuse(f"{name} runs other programs")
    elif call.program.text == name:
        words = (call.program, *call.words)
        if name in _CHANGES_THE_SHELL and not keeps_meaning(words):
            if name in ("export", "unset", "read"):
                call.refuse(f"{name} of a variable may change what the rest of the line runs; use a name in lower case")
            call.refuse(f"{name} changes what the rest of the line means")
        _refuse_evaluation(call, words)


def _refuse_evaluation(call: Call, words: tuple[Word, ...]) -> None:
    """Refuse the forms of harmless builtins in which some shells evaluate an argument."""
    name = call.name
    flags = {"printf": ("-v",), "test": ("-v", "-R"), "[": ("-v", "-R"), "wait": ("-p",)}.get(name, ())
    place = words[1:2] if name == "printf" else words[1:]
    for word, behind in zip(place, (*words[2:], None), strict=False) if flags else ():
        # An operand that is exactly one word is never taken for an operator where there are enough others, but
        # `test $x a[...]` with x=-v evaluates its index.
        unsure = not word.prefix and word.text not in _NUMBERS
        # `printf "$x" ...`, and `test "$x" 'a[$(rm y)]'`, with x=-v: the word behind it is taken for a variable.
        named = name == "printf" or (behind is not None and (behind.literal is None or "[" in behind.text))
        evaluates = not word.one_word or (word.kind == "expansion" and named)
        if (unsure and evaluates) or (word.literal or "").startswith(flags):
            call.refuse(f"{name} with {word.text} may evaluate an argument")


def _parsed(call: Call, options: str) -> Parsed:
    """Read the options before the wrapped command. Raises Opaque for one that is not known."""
    parsed = read_options(call, options, runs=True, permute=False)
    if call.opaque is not None:
        raise Opaque(call.opaque)
    if any(value is not None and not value.one_word for _, value in parsed.given):
        raise Opaque(f"{call.name} has an option whose argument is not one word")
    return parsed


def _run(call: Call, words: Sequence[Word], *, replaces: bool = True) -> None:
    """Take in the wrapped command. Raises Opaque where it does not begin with a name."""
    name = words[0].literal if words else None
    if not name or name.startswith("-") or "=" in name:
        raise Opaque(f"{call.name} is used in a form that is not understood")
    call.replaces = replaces
    call.run(words)


def _prefixing(
    options: str,
    *,
    alone: bool = False,
    replaces: bool = True,
    behind: Callable[[list[Word]], list[Word]] = lambda operands: operands,
) -> Describe:
    """Return how `wrapper [OPTIONS] COMMAND` is unwrapped.

    `alone` says that it also does something without COMMAND; `behind` gives the operands that are COMMAND.
    """

    def describe(call: Call) -> None:
        operands = behind(_parsed(call, options).operands)
        if operands or not alone:
            _run(call, operands, replaces=replaces)

    return describe


def _shell(call: Call) -> None:
    """A shell with -c, or with a script by name; one that reads its input could run anything."""
    name, words = call.name, call.words
    if name in _OTHER_SHELLS and (not words or (words[0].literal or "-").startswith(("-", "+", "/c", "/C"))):
        raise Opaque(f"{name} runs commands in a language that is not read here; use sh or bash")
    options = _SHELL_OPTIONS.match(behind_nuls(words))
    position = options.group().count("\0") if options else 0
    if position == len(words):
        raise Opaque(f"{name} runs the commands that it reads")
    word = words[position]
    has_script = any(option.text.startswith("-") and "c" in option.text for option in words[:position])
    if word.kind != "literal" and (has_script or not word.one_word or word.begins[:1] in ("", "-", "+")):
        raise Opaque(f"{name} runs a command that is not literal")
    if word.text == "--login" or word.text.startswith("-l"):
        raise Opaque(f"{name} {word.text} runs what the home directory says first; leave it out")
    if word.begins.startswith(("-", "+")):
        raise Opaque(f"{name} is used with {word.text}, which is not understood")
    if has_script:
        call.script, call.replaces = word.text, True
    else:
        _read_script(call, word)


def _read_script(call: Call, script: Word) -> None:
    begins = script.begins
    paths = [posixpath.normpath(posixpath.join(directory, begins)) for directory in call.directories or ("/",)]
    climbs = script.kind != "literal" and (begins.startswith("/") or ".." in script.text.split("/"))
    if climbs or any(is_stream(path) for path in (begins, *paths)):
        raise Opaque(f"{call.name} runs {script.text}, which may be what it reads")
    call.file(script, "read", dash=False)


def _env(call: Call) -> None:
    parsed = _parsed(call, "-0iv -u: --null --unset= --debug --ignore-environment")
    for value in parsed.values("-u", "--unset"):
        if value.kind != "literal" or not may_assign(value.text):
            raise Opaque(f"env -u {value.text} may change what runs")
    operands = _without_assignments(parsed.operands)
    shell = next((word.text for word in operands if word.text.rpartition("/")[2] in _SHELLS), None)
    if shell is not None and parsed.has("-i", "--ignore-environment"):
        raise Opaque(f"env -i starts {shell} without PATH, and some shells then look for programs here")
    if operands:
        _run(call, operands)


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


def _command(call: Call) -> None:
    if call.words and call.words[0].literal not in ("-v", "-V"):
        _run(call, call.words)


def _xargs(call: Call) -> None:
    parsed = _parsed(
        call,
        """-0rtx -a: -d: -E: -I: -i[] -L: -l[] -n: -P: -s: --null --no-run-if-empty --verbose --exit --arg-file=
        --delimiter= --replace[=] --max-lines[=] --max-args= --max-procs= --max-chars=""",
    )
    call.files(parsed.values("-a", "--arg-file"), "read")
    words = parsed.operands
    if not words:
        return
    replaced = parsed.values("-I", "-i", "--replace")
    is_replacing = parsed.has("-I", "-i", "--replace")
    if is_replacing:
        mark = replaced[-1].text if replaced else "{}"
        if not mark or any(value.kind != "literal" for value in replaced) or mark in words[0].text:
            raise Opaque("xargs is used in a form that is not understood")
        words = [_with_mark(word, mark) for word in words]
    # Each of these may take back the replacement, and append what is read; -n 1 does not.
    counts = parsed.values("-n", "--max-args")
    if not is_replacing or parsed.has("-L", "-l", "--max-lines") or any(count.text != "1" for count in counts):
        words = [*words, _ANY_WORDS]
    _run(call, words)


def _with_mark(word: Word, mark: str) -> Word:
    """Return a word in which something is put in the place of `mark`."""
    before, found, _ = word.text.partition(mark)
    if not found:
        return word
    if word.kind != "literal":
        return _ANY_WORDS
    return replace(_ANY_WORD, text=word.text, prefix=before)


def _runner(call: Call) -> None:
    """A runner such as `uv run`: it is a program of its own besides, as it may install what it runs."""
    name, words, verbs = call.name, call.words, RUNNERS[call.name].split()
    if name == "bun":
        read_script(call)
    place = 0
    if verbs:
        verb = words[0] if words else Word("")
        if verb.literal is None or verb.text.startswith("-"):
            if any(word.literal is None or word.text in verbs for word in words):
                raise Opaque(f"{name} may run another program; write its subcommand first, as in `{name} {verbs[0]}`")
            return
        if verb.text not in verbs or [word.text for word in words[:2]] == ["tool", "install"]:
            return
        if verb.text == "tool" and (len(words) < 2 or words[1].literal != "run"):
            raise Opaque(f"{name} tool is used in a form that is not understood")
        place = 2 if verb.text == "tool" else 1
    rest = [*dropwhile(lambda word: word.literal in _RUNNER_FLAGS, words[place:])]
    if not rest:
        raise Opaque(f"{name} may run what it reads")
    _run(call, rest, replaces=False)


PROGRAMS: dict[str, Describe] = {
    "busybox": _prefixing(""),
    "chronic": _prefixing("-ev"),
    # Programs of their own besides.
    **dict.fromkeys(("doas", "sudo"), _prefixing(
        "-AbBEHkKlnNPSvV -C: -g: -p: -T: -u: -U: --group= --list --non-interactive --preserve-env[=] --stdin --user=",
        alone=True, replaces=False, behind=_without_assignments,
    )),
    "command": _command,
    "env": _env,
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
    **dict.fromkeys(RUNNERS, _runner),
}  # fmt: skip
