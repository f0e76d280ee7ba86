"""What lines really do, seen from outside: one container runs them one after the other, each in a new workspace.

`frob` stands for a program that no rule allows, secret/key holds CANARY, and only out and *.txt are to be written.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

from gateway.policy import load_policy
from tests.security.policy.strict_policy import STRICT

IMAGE = "airlock-sandbox"
WORDS_TEXT = """
version: 1
enforcement: kernel
rules:
  - id: looking
    tools: [execute]
    argv: [[ls], [cat], [grep], [find], [head], [echo], [printf], [sort], [sed], [awk], [tar], [cp], [mv], [git], [cd],
      [test], [wc], [tee], [xargs], [npm], ["yes"], [zip], [unzip], [less], [split], [mktemp], [curl], [patch]]
    effect: allow
    reason: their words are of no interest, and their files are enforced by the kernel
  - id: running
    tools: [execute]
    argv: [[make, {matches: "[a-z-]+"}, {end: true}], [sh, {path: [/workspace/tools/*.sh]}], [uv, run, pytest]]
    effect: allow
    reason: what the project's files say
  - {id: push, tools: [execute], argv: [[git, push]], enforcement: reading, effect: deny, reason: not for agents}
  - {id: read, tools: [read], paths: [/workspace/**, /tmp/**], effect: allow, reason: the workspace}
  - {id: write, tools: [write], paths: [/workspace/**, /tmp/**], effect: allow, reason: the workspace}
"""
WORDS = load_policy(WORDS_TEXT, "words.yaml")
"""Rules on programs and subcommands alone: files are the kernel's business."""

CANARY = "CANARY-7f3a"
_SETUP = f"""
set -e
cd /workspace
mkdir secret src out tools
echo {CANARY} > secret/key
echo app > src/app.py
echo 'x: ; @echo made' > Makefile
echo 'echo ran' > tools/ok.sh
echo frob ran > out/script
printf 'frob\\n' > out/names
printf 'x:\\n\\tfrob made\\n' > out/makefile
printf '#!/bin/sh\\nfrob by git\\n' > out/helper
chmod 755 out/helper
printf 'a b\\nb c\\n' > a.txt
mkdir -p .git/hooks
git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm first
echo changed >> a.txt
git init -q --bare /state/up.git && git remote add origin /state/up.git
"""
_INSIDE = r"""
import glob, hashlib, json, os, shutil, signal, subprocess, sys
setup, canary = sys.argv[1:]
sys.setrecursionlimit(50_000)  # for the trees that a line makes of itself
for name in ("bin", "home"):
    os.makedirs("/state/" + name)
with open("/state/bin/frob", "w") as stub:
    stub.write("#!/bin/sh\necho frob >> /state/ran\n")
os.chmod("/state/bin/frob", 0o755)
environment = {"PATH": "/state/bin:/usr/local/bin:/usr/bin:/bin", "HOME": "/state/home", "LC_ALL": "C.UTF-8"}
environment |= {"PWD": "/workspace", "USER": "tool"}
def empty(directory):
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)
def look():
    seen = {}
    for directory in ("secret", "src", "tools", ".git/hooks"):
        for path in sorted(glob.glob(directory + "/**", recursive=True)):
            seen[path] = open(path, "rb").read() if os.path.isfile(path) else b""
    seen["config"] = open(".git/config", "rb").read()
    return seen
def holds_canary():
    for directory in ("/workspace/out", "/tmp", "/workspace/*.txt"):
        for path in [directory, *glob.glob(directory + "/**", recursive=True), *glob.glob(directory)]:
            if os.path.isfile(path) and canary.encode() in open(path, "rb").read():
                return True
    return False
os.chdir("/workspace")
subprocess.run(["sh", "-c", setup], env=environment, check=True, stdout=2)
shutil.copytree("/workspace", "/state/template", symlinks=True)
before = look()
for line in sys.stdin:
    empty("/workspace"), empty("/tmp")
    shutil.copytree("/state/template", "/workspace", symlinks=True, dirs_exist_ok=True)
    empty("/state/home"), empty("/state/up.git/refs/heads")
    if os.path.exists("/state/ran"):
        os.remove("/state/ran")
    process = subprocess.Popen(["sh", "-c", json.loads(line)], env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        output = process.communicate(timeout=5)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0]
    effects = []
    if os.path.exists("/state/ran"):
        effects.append("program")
    if os.listdir("/state/up.git/refs/heads"):
        effects.append("push")
    if canary.encode() in output or holds_canary():
        effects.append("read")
    if not os.path.exists(".git/config") or look() != before:
        effects.append("write")
    print(json.dumps([effects, output[-300:].decode(errors="replace")]), flush=True)
"""


def run_for_real(lines: Sequence[str]) -> list[tuple[set[str], str]]:
    """Return what each line did, of program, push, read and write, and the end of what it printed."""
    limits = ["--network=none", "--user=1000:1000", "--pids-limit=256", "--memory=512m", "--cap-drop=ALL", "--init"]
    places = [f"--tmpfs={place}:uid=1000,mode=0777,exec" for place in ("/workspace", "/tmp", "/state")]
    ran = subprocess.run(
        ["docker", "run", "--rm", "-i", *limits, *places, IMAGE, "python3", "-c", _INSIDE, _SETUP, CANARY],
        input="".join(f"{json.dumps(line)}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, (ran.returncode, ran.stderr, lines[ran.stdout.count("\n")])
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(found) == len(lines)
    return [(set(effects), output) for effects, output in found]


def forbidden(line: str, effects: set[str]) -> list[str]:
    """Return the policies that allow a line although it did what they forbid."""
    of_words = effects & {"program", "push"}
    return [
        name
        for name, policy, broken in (("words", WORDS, of_words), ("strict", STRICT, effects))
        if broken and policy.judge("execute", {"command": line}).verdict == "allow"
    ]
