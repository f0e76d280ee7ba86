"""Real programs under strace: every file that they open, make or remove is among the effects that were told before."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.policy.globs import compile_glob
from gateway.policy.parts import read_programs
from gateway.policy.programs.call import FileUse
from tests.strace import needs_strace

_CALLS = (
    "open,openat,openat2,creat,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,symlink,symlinkat,link,"
    "linkat,truncate,chmod,fchmodat,chown,fchownat,lchown,utimensat,mknod,mknodat,getdents64,"
    "chdir,fchdir"
)
_CALL = re.compile(r"^\d+\s+(\w+)\((.*)\)\s+= (?!-1|\?)")
# A path after the directory it is relative to, which strace -y shows: AT_FDCWD</tmp/x>, "a".
_PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
_TREE = {
    "a.txt": "one\ntwo\nthree\n",
    "b.txt": "two\nfour\n",
    "pats": "two\n",
    "data.json": '{"a": 1}\n',
    "src/m.py": "import os\nprint(os.name)\n",
    "src/deep/n.py": "x = 1\n",
    "secret/key": "hidden\n",
    "fix.patch": "--- a.txt\n+++ a.txt\n@@ -1,3 +1,3 @@\n-one\n+ONE\n two\n three\n",
    "out/.keep": "",
}
COMMANDS = """
cat a.txt b.txt
cat -n -- a.txt
tac a.txt
head -n 1 a.txt b.txt
head -2 a.txt
tail -n +2 a.txt
wc -l a.txt src/m.py
nl a.txt
od -c a.txt
cut -d, -f1 a.txt
paste a.txt b.txt
diff a.txt b.txt
diff -r src out
diff -u a.txt src
cmp a.txt b.txt
uniq a.txt
uniq -c a.txt out/uniq
sort a.txt
sort -o out/sorted a.txt b.txt
sort --output=out/sorted -u a.txt
tee out/tee < a.txt
tee -a out/one out/two < a.txt
grep two a.txt
grep -f pats a.txt b.txt
grep -rn print src
grep -r print
grep -e two -e one a.txt
grep -A1 -in --color=never two -- a.txt
sed -n 1,2p a.txt
sed -i s/one/1/ a.txt
sed -i.bak -e s/one/1/ a.txt b.txt
sed 's/one/1/;s/two/2/' a.txt
awk '{print $1}' a.txt
awk -F, -v n=1 'NR>n {print}' a.txt b.txt
md5sum a.txt b.txt
sha256sum -- a.txt
base64 a.txt
ls
ls -la src out
ls -R src
du -sh src
stat a.txt
file a.txt
readlink -f a.txt
find src -name '*.py'
find src -name '*.py' -delete
find . -newer a.txt -fprint out/new
find src -name '*.py' -exec cat {} +
find src -name '*.py' -exec rm {} \\;
find src -type f -exec cp {} out/ \\;
cp a.txt c.txt
cp a.txt b.txt out/
cp -r src out
cp -a src copy
cp -t out a.txt b.txt
cp --target-directory=out a.txt
cp -T a.txt out/x
mv a.txt c.txt
mv a.txt b.txt out
mv src out/
mv -t out a.txt
rm a.txt
rm -rf src out
rmdir secret/none
mkdir -p out/x/y
touch new a.txt
chmod 600 a.txt
chmod -R u+w src
truncate -s 1 a.txt
make -f pats -n
python3 src/m.py
sh src/m.py
git init -q repo
git init -q && git add -A && git stash list
git init -q && git add a.txt && git status --short && git diff --cached -- a.txt
git init -q && git add . && git ls-files && git rm -q --cached a.txt && git clean -fdq
curl -s file://ROOT/a.txt -o out/curl
cat *.txt
cat src/*.py
cat s*/[lm]?py */deep/n.py
cat [[:alpha:]].txt ?.txt
rm -f *.txt
cp ./*.txt out
mv ./*.txt out/
grep -rn print ./s*
rm -r ./s*
touch ./*.none src/[xy]z
ls src | xargs -I{} cat src/{}
env LANG=C timeout 5 nice cat a.txt
cd src && cat m.py && cp m.py ../out/
""".strip().splitlines()


pytestmark = needs_strace


@pytest.mark.parametrize("line", COMMANDS)
def test_every_file_that_a_program_opens_was_read_from_the_line(line: str, tmp_path: Path) -> None:
    line = f"cd {tmp_path} && {line.replace('ROOT', str(tmp_path))}"
    read = read_programs(line)
    for program in read.programs:
        if shutil.which(program.words[0].text) is None and program.words[0].text != "cd":
            pytest.skip(f"{program.words[0].text} is not installed: apt-get install it")
    if read.opaque:
        return
    _grow(tmp_path)
    uses = [use for program in read.programs for use in program.uses]
    uses += [
        FileUse(str(tmp_path / redirect.target), "write" if redirect.writes else "read")
        for redirect in read.redirects
        if redirect.target
    ]
    missed = [used for used in _run(line, tmp_path) if not any(_covers(use, *used) for use in uses)]
    assert not missed, uses


def test_nearly_all_of_the_commands_are_understood() -> None:
    """Else the test above would hold by saying nothing."""
    opaque = {line for line in COMMANDS if read_programs(line).opaque}
    assert len(COMMANDS) >= 80
    assert len(opaque) <= 3, opaque


def _grow(root: Path) -> None:
    for name, text in _TREE.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _run(line: str, root: Path) -> list[tuple[str, str]]:
    """Run a line and return the (access, path) of all that it touched below `root`."""
    log = root.parent / f"{root.name}.strace"
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    subprocess.run(
        ["strace", "-f", "-y", "-s", "4096", "-e", f"trace={_CALLS}", "-o", str(log), "sh", "-c", line],
        check=False,
        capture_output=True,
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=30,
    )
    used: list[tuple[str, str]] = []
    directories: dict[str, str] = {}  # of each process; a new one is taken to start in `root`
    for text in log.read_text(errors="replace").splitlines():
        call = _CALL.match(text)
        if call is None:
            continue
        process = text.split()[0]
        directory = directories.get(process, str(root))
        if call.group(1) in ("chdir", "fchdir"):
            shown = _PATH.search(call.group(2))
            target = shown.group(2) if shown else call.group(2).partition("<")[2].partition(">")[0]
            directories[process] = os.path.normpath(os.path.join(directory, target))
            continue
        for access, path in _uses(call.group(1), call.group(2), directory):
            inside = path == str(root) or path.startswith(f"{root}/")
            # A repository's own files and temporary ones are no effects: nobody names them.
            if inside and "/.git" not in path and not _is_passing(call.group(2), path):
                used.append((access, path))
    return used


def _uses(name: str, arguments: str, directory: str) -> Iterator[tuple[str, str]]:
    if name == "getdents64":
        yield "list", arguments.partition("<")[2].partition(">")[0]
        return
    for place, match in enumerate(_PATH.finditer(arguments)):
        base, text = match.groups()
        path = os.path.normpath(os.path.join(base or directory, text))
        if name.startswith("symlink") and place == 0:
            continue  # what a link says is text to the kernel
        if not name.startswith(("open", "creat")):
            yield ("make" if name.startswith("mkdir") else "write"), path
        elif "O_PATH" in arguments or "O_DIRECTORY" in arguments or os.path.isdir(path):
            continue  # opened to name something in it, or else getdents64 follows
        else:
            yield ("write" if re.search("O_WRONLY|O_RDWR|O_CREAT|^creat", f"{name} {arguments}") else "read"), path


def _is_passing(arguments: str, path: str) -> bool:
    """Whether a file was made under a name of its own and is gone, or was moved to where it belongs."""
    return not os.path.lexists(path) and bool(
        re.fullmatch(
            r"(sed|zi|part|po|pi|pr|st|\.)?[A-Za-z0-9]{6,}|.*[-.](journal|wal|shm)|core.*", os.path.basename(path)
        )
    )


def _covers(use: FileUse, access: str, path: str) -> bool:
    if access == "make" and use.access == "write" and (use.path or "").startswith(path + "/"):
        return True  # write_file makes parents too
    if access in ("write", "make") and use.access != "write":
        return False
    if access == "read" and use.access == "list":
        return False
    if use.glob is not None:
        globs = [f"{use.glob}/**" if use.below else use.glob]
        if access == "list":
            # The shell looks for the names itself; that is nothing the program does.
            parts = use.glob.split("/")
            globs += ["/".join(parts[:place]) for place in range(2, len(parts))]
        return any(compile_glob(glob).matches(path) for glob in globs)
    if use.path is None or use.path == path:
        return use.path is None or access != "read" or use.access == "read"
    return use.below and path.startswith(use.path.rstrip("/") + "/")
