"""File rules as the kernel holds them: each test runs commands in a domain, and shows that they work outside of it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.daemon.files import write_files
from sandbox.daemon.paths import Place
from sandbox.daemon.supervisor.file_rules import FileRules, Grants, TooManyFiles, make_writable
from sandbox.daemon.supervisor.landlock import ALL, TRUNCATE_VERSION, landlock_version, restrict

pytestmark = pytest.mark.skipif(
    landlock_version() < TRUNCATE_VERSION,
    reason="needs Landlock's third version: Linux 6.2, with landlock among its LSMs",
)
_PR_SET_NO_NEW_PRIVS = 38


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("src/app.py", "secrets/key", "docs/page.md", ".git/config"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def paths(*found: Path) -> tuple[bytes, ...]:
    return tuple(map(os.fsencode, found))


def run(grants: Grants | None, line: str, cwd: Path) -> int:
    return start(grants, line, cwd).wait()


def start(grants: Grants | None, line: str, cwd: Path) -> subprocess.Popen[bytes]:
    """Start a command; it is in the domain of the grants when this returns."""

    def enter() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if grants is not None and not restrict(ALL, grants.rights, grants.files, grants.is_meant):
            os._exit(77)

    null = subprocess.DEVNULL
    # No thread runs here.
    return subprocess.Popen(["/bin/sh", "-c", line], cwd=cwd, preexec_fn=enter, stdout=null, stderr=null)  # noqa: PLW1509


@pytest.mark.parametrize(
    "line",
    [
        "cat secrets/key",
        "find src -exec cat {}/../secrets/key \\; | grep secrets",
        "cat /proc/self/cwd/secrets/key",
        "cat /proc/self/root/$PWD/secrets/key",
        "ln -sf ../secrets/key src/link && cat src/link",
        "ln secrets/key src/hard && cat src/hard",
        "mv secrets/key src/key",
        "mv secrets src/secrets",
        "cp -r secrets src/copy",
        "tar -cf src/all.tar secrets",
        "cd secrets && ls",
        "ls -R . | grep key",
        "echo x > docs/page.md",
        "truncate -s 0 docs/page.md",
        "rm docs/page.md",
        "mv docs/page.md src/page.md",
        "mkdir new",
        "mv src source",
        "sed -i s/a/b/ .git/config",
    ],
)
def test_what_the_rules_forbid_fails_in_the_domain_and_works_outside(line: str, tree: Path) -> None:
    rules = FileRules(paths(tree), paths(tree / "src"), unreadable=paths(tree / "secrets"))
    assert run(Grants(rules), line, tree) not in (0, 77)
    assert run(None, line, tree) == 0


@pytest.mark.parametrize(
    "line",
    [
        "cat docs/page.md .git/config src/app.py",
        "echo x > src/new && mv src/new src/newer && rm src/newer",
        "mkdir -p src/a/b && mv src/a/b src/b && rmdir src/a src/b",
        "python3 -c 'import json, tempfile, subprocess; subprocess.run([\"true\"], check=True)'",
        "cat < /dev/null > /dev/null; head -c 1 /dev/urandom >/dev/null; cat /proc/self/status >/dev/null",
        "ls src docs",
        "truncate -s 0 src/app.py",
    ],
)
def test_what_the_rules_allow_works(line: str, tree: Path) -> None:
    rules = FileRules(paths(tree), paths(tree / "src"), unreadable=paths(tree / "secrets"))
    assert run(Grants(rules), line, tree) == 0


def test_what_is_made_beside_a_forbidden_directory_makes_the_grants_outdated(tree: Path) -> None:
    grants = Grants(FileRules(paths(tree), unreadable=paths(tree / "secrets")))
    assert grants.is_current()
    (tree / "new").write_text("new")
    assert not grants.is_current()
    assert run(Grants(FileRules(paths(tree), unreadable=paths(tree / "secrets"))), "cat new", tree) == 0


def test_a_directory_that_comes_or_is_made_again_makes_the_grants_outdated(tree: Path) -> None:
    rules = FileRules(paths(tree), paths(tree / "later"))
    grants = Grants(rules)
    assert grants.is_current()
    (tree / "later").mkdir()
    assert not grants.is_current()
    grants = Grants(rules)
    (tree / "later").rename(tree / "earlier")
    (tree / "later").mkdir()
    assert not grants.is_current()


def test_what_stands_beside_a_forbidden_directory_is_not_looked_at_again(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        (tree / f"file{number}").touch()
    grants = Grants(FileRules(paths(tree), unreadable=paths(tree / "secrets")))
    now_ns = time.time_ns() + 3_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    assert grants.is_current()
    seen: list[bytes] = []
    lstat = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path: seen.append(path) or lstat(path))
    assert grants.is_current()
    assert len(seen) < 25
    state = tree.stat()
    (tree / "docs").rename(tree / "old")
    (tree / "secrets").rename(tree / "docs")
    os.utime(tree, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert not grants.is_current()


@pytest.mark.parametrize("forbidden", ["unwritable", "unreadable"])
def test_no_directory_is_made_where_commands_may_not_write(forbidden: str, tree: Path) -> None:
    (tree / "link").symlink_to(tree / "docs")
    rules = FileRules(
        (), paths(tree / "secrets" / "new", tree / "link" / "new"), **{forbidden: paths(tree / "secrets")}
    )
    make_writable(rules)
    assert not (tree / "secrets" / "new").exists()
    assert not (tree / "docs" / "new").exists()
    make_writable(FileRules((), paths(tree / "secrets" / "new" / "deep")))
    assert (tree / "secrets" / "new" / "deep").is_dir()


def test_a_link_in_the_place_of_an_allowed_directory_grants_nothing(tree: Path) -> None:
    rules = FileRules(paths(tree / "src"))
    (tree / "src").rename(tree / "old")
    (tree / "src").symlink_to(tree / "secrets")
    assert run(Grants(rules), "cat src/key", tree) not in (0, 77)


def test_a_file_that_is_put_in_the_place_of_a_granted_one_is_not_granted(tree: Path) -> None:
    rules = FileRules(paths(tree), unreadable=paths(tree / "secrets"))
    grants = Grants(rules)
    # Between the look and the grant; afterwards all is as it was, but for the domain.
    for one, other in (("docs", "away"), ("secrets", "docs")):
        (tree / one).rename(tree / other)
    meant = [grants.is_meant(path, os.stat(path)) for path in paths(tree / "docs", tree / "src")]
    assert meant == [False, True]
    assert run(grants, "cat docs/key", tree) not in (0, 77)
    for one, other in (("docs", "secrets"), ("away", "docs")):
        (tree / one).rename(tree / other)
    assert not grants.is_current()


@pytest.mark.parametrize("unnamed", [True, False], ids=["O_TMPFILE", "without"])
def test_a_file_that_is_being_written_into_a_forbidden_directory_is_not_granted(
    tree: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    if not unnamed:
        monkeypatch.setattr(write_files.Replacement, "_open_unnamed", lambda _: -1)
    rules = FileRules(paths(tree), paths(tree), unreadable=paths(tree / "secrets"))
    with Place(str(tree / "secrets" / "key")) as place:
        replacement = write_files.Replacement(place, workspace=str(tree))
        assert len(list(tree.glob(".airlock-*.tmp"))) == (0 if unnamed else 1)
        running = start(Grants(rules), "until test -e go; do sleep 0.01; done; cat secrets/key", tree)
        replacement.write(b"new")
        replacement.commit()
        replacement.close()
        (tree / "go").touch()
    assert running.wait() not in (0, 77)
    assert run(None, "grep new secrets/key", tree) == 0


@pytest.mark.parametrize("written", ["{}/secrets/", "{}//secrets", "{}/./secrets/.", "{}/src/../secrets"])
def test_a_path_forbids_however_it_is_written(written: str, tree: Path) -> None:
    rules = FileRules(paths(tree), unreadable=(written.format(tree).encode(),))
    assert run(Grants(rules), "cat docs/page.md", tree) == 0
    assert run(Grants(rules), "cat secrets/key", tree) not in (0, 77)


def test_a_path_with_nul_is_no_path() -> None:
    with pytest.raises(ValueError, match="NUL"):
        FileRules((b"/workspace\0w/",))


def test_a_huge_directory_is_not_read_to_the_end(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(range(1_000_000))

    class Entry:
        def __init__(self, number: int) -> None:
            self.name = b"%d" % number

    scandir = os.scandir

    class Listing:
        def __enter__(self) -> Iterator[Entry]:
            return map(Entry, names)

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(os, "scandir", lambda path: Listing() if path == os.fsencode(tree) else scandir(path))
    with pytest.raises(TooManyFiles):
        Grants(FileRules(paths(tree), unreadable=paths(tree / "secrets")))
    assert next(names) < 10_000


def test_rules_are_read_as_they_were_written() -> None:
    rules = FileRules((b"/a", b"/b"), (b"/c",), (b"/d",), (b"/e\n",))
    read = FileRules.decode(rules.encode())
    assert (read.readable, read.writable, read.unreadable, read.unwritable) == (
        rules.readable,
        rules.writable,
        rules.unreadable,
        rules.unwritable,
    )
    assert FileRules.decode(b"").readable == ()


@pytest.mark.parametrize(
    "line, allowed",
    [
        ("cat docs/page.md", True),
        ("echo x > docs/page.md && truncate -s 0 docs/page.md", True),
        ("cat src/app.py", False),
        ("rm docs/page.md", False),
        ("mv docs/page.md docs/other", False),
        ("echo x > docs/new", False),
        ("cat secrets/key", False),
    ],
)
def test_a_single_file_is_granted_and_a_directory_in_its_place_is_not(line: str, allowed: bool, tree: Path) -> None:
    files = paths(tree / "docs/page.md", tree / "secrets")
    rules = FileRules(readable_files=files, writable_files=files)
    assert (run(Grants(rules), line, tree) == 0) is allowed
    assert run(None, line, tree) == 0


def test_a_directory_that_takes_the_place_of_a_file_gets_nothing(tree: Path) -> None:
    page = tree / "docs/page.md"
    grants = Grants(FileRules(readable_files=paths(page)))
    page.unlink()
    (tree / "secrets").rename(page)
    assert run(grants, "cat docs/page.md/key", tree) != 0
    assert not grants.is_current()
    assert run(Grants(FileRules(readable_files=paths(page))), "cat docs/page.md/key", tree) != 0


@pytest.mark.parametrize(
    "line, allowed",
    [
        ("cat docs/page.md", True),
        ("ls", False),
        ("cp docs/page.md src/copy", False),
        ("find docs -type f -exec cat {} +", False),
        ("./src/script", True),
        ("./src/other", False),
        ("cat docs/page.md | sh -c 'cat'", True),
        ("sh -c 'exec ls'", False),
        ("/lib64/ld-linux-*.so.2 /bin/ls || /lib/ld-linux-*.so.1 /bin/ls", False),
        ("cp /bin/ls src/ls || cat /bin/ls > src/ls", False),
        ("for file in /usr/bin/*; do echo $file; done | cat", True),
    ],
)
def test_only_named_programs_are_executed(line: str, allowed: bool, tree: Path) -> None:
    for name in ("script", "other"):
        (tree / "src" / name).write_text("#!/bin/sh\ncat docs/page.md\n")
        (tree / "src" / name).chmod(0o755)
    script = os.fsencode(tree / "src/script")
    rules = FileRules(paths(tree), paths(tree / "src"), programs=(b"cat", script, b"there-is-none"))
    assert (run(Grants(rules), line, tree) == 0) is allowed
    assert run(None, line, tree) == 0


def test_a_link_of_tool_code_names_no_program(tree: Path) -> None:
    link = tree / "src/run"
    link.symlink_to("/bin/ls")
    rules = FileRules(paths(tree), paths(tree / "src"), programs=(os.fsencode(link),))
    assert run(Grants(rules), "./src/run", tree) != 0
    assert run(None, "./src/run", tree) == 0


def test_rules_come_back_as_they_were_encoded() -> None:
    for programs in (None, (), (b"cat", b"/workspace/run")):
        rules = FileRules((b"/a",), (b"/b",), (b"/c",), (b"/d",), (b"/e",), (b"/f",), programs=programs)
        again = FileRules.decode(rules.encode())
        names = (*FileRules.LISTS, "programs")
        assert [getattr(again, name) for name in names] == [getattr(rules, name) for name in names]
