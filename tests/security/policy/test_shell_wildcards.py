"""What a real shell makes of a wildcard is never outside the glob that it is judged as."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.policy.globs import compile_glob
from gateway.policy.programs.call import FileUse, located
from gateway.policy.shell import parse_line

_NAMES = ["a", "b", "ab", "ba", "a.py", "b.py", ".env", ".a", "*", "[ab]", "a*b", "é", "aé", "-a", "!a", "^a", "]", "?"]
_PIECES = ["a", "b", ".", "*", "*", "?", "[ab]", "[!a]", "[[:alpha:]]", "[a-z.]", "'*'", "'['", "']'", '"."', "\\*"]
_PIECES += ["'é'", "/", ".py", "-", "!", "^", "**", "''"]
_PATTERNS = 1500


@pytest.mark.parametrize("shell", ["bash", "dash", "sh"])
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_what_a_shell_expands_is_in_the_glob(shell: str, locale: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: apt-get install it")
    for directory in (tmp_path, *(tmp_path / name for name in ("a", ".a", "b.py", "*"))):
        directory.mkdir(exist_ok=True)
        for name in _NAMES:
            if not (directory / name).exists() and (directory != tmp_path or name not in ("a", ".a", "b.py", "*")):
                (directory / name).write_text("")
    chosen = random.Random(5)  # the same patterns each time
    patterns = {"".join(chosen.choices(_PIECES, k=chosen.randint(1, 5))) for _ in range(_PATTERNS)}
    read = {pattern: parse_line(f"cat ./{pattern}") for pattern in sorted(patterns)}
    known = [pattern for pattern, line in read.items() if line.opaque is None and line.commands[0].words[1:]]
    script = "\n".join(f"printf '%s\\n' ./{pattern}; echo =" for pattern in known)
    options = ["-o", "no_nomatch"] if shell == "zsh" else []
    done = subprocess.run(
        [shell, *options, "-c", script], check=False, capture_output=True, cwd=tmp_path, env={"LC_ALL": locale}
    )
    answers = done.stdout.decode().split("=\n")
    assert len(answers) == len(known) + 1
    checked = 0
    for pattern, answer in zip(known, answers, strict=False):
        places = located(read[pattern].commands[0].words[1], (str(tmp_path),), "read")
        for name in answer.splitlines():
            parts = [part for part in name.split("/") if part not in ("", ".")]
            if ".." in parts:
                assert places == (FileUse(None, "read"),), pattern
                continue
            path = "/".join([str(tmp_path), *parts])
            checked += 1
            assert any(_holds(place.path, place.glob, path, below=place.below) for place in places), (pattern, name)
    assert checked > _PATTERNS / 4


def _holds(known: str | None, glob: str | None, path: str, *, below: bool) -> bool:
    if glob is not None:
        return compile_glob(glob).matches(path)
    return known is None or path == known or (below and path.startswith(known.rstrip("/") + "/"))
