"""What wrappers run is judged in their place, or the line is opaque."""

from __future__ import annotations

import pytest

from gateway.policy.parts import Program, read_programs
from gateway.policy.programs.call import FileUse


def understood(line: str) -> tuple[Program, ...]:
    read = read_programs(line)
    assert read.opaque is None
    return read.programs


def run(line: str) -> list[str]:
    """The programs that are judged, as text."""
    return [" ".join(word.text for word in program.words) for program in understood(line) if not program.wrapper]


def reads(line: str) -> set[str | None]:
    return {file.path for program in understood(line) for file in program.uses if file.access == "read"}


@pytest.mark.parametrize(
    "line,expected",
    [
        ("env ls a", ["ls a"]),
        ("env", ["env"]),
        ("env LANG=C CI=1 ls", ["ls"]),
        ("env -u CI ls", ["ls"]),
        ("env -i LANG=C.UTF-8 ls", ["ls"]),
        ("/usr/bin/env python3 x.py", ["python3 x.py"]),
        ("timeout 5 ls", ["ls"]),
        ("timeout -s KILL -k 5 10m ls", ["ls"]),
        ("timeout --signal=TERM --preserve-status 2.5h ls -l", ["ls -l"]),
        ("nice -n 5 ls", ["ls"]),
        ("nice -10 ls", ["ls"]),
        ("ionice -c 3 -n 7 ls", ["ls"]),
        ("nohup setsid -f stdbuf -o L -eL ls", ["ls"]),
        ("chronic ls", ["ls"]),
        ("busybox ls -l", ["ls -l"]),
        ("command ls", ["ls"]),
        ("command -v ls", ["command -v ls"]),
        ("sh -c 'ls; cat a'", ["ls", "cat a"]),
        ("sh -ec 'ls'", ["ls"]),
        ("uv run pytest -q", ["uv run pytest -q", "pytest -q"]),
        ("uv tool run ruff", ["uv tool run ruff", "ruff"]),
        ("npx -y eslint src", ["npx -y eslint src", "eslint src"]),
        ("bun x eslint src", ["bun x eslint src", "eslint src"]),
        ("npm --version", ["npm --version"]),
        ("git -C sub --no-pager diff x", ["git diff x"]),
        ("git -c color.ui=never log", ["git log"]),
        ("make -j4 V=1 all", ["make -j4 V=1 all"]),
        ("bash -x -e -c ls", ["ls"]),
        ("sh -c -e 'ls a'", ["ls a"]),
        ("bash -euo pipefail -c 'ls | wc'", ["ls", "wc"]),
        ("bash -o errexit -c ls", ["ls"]),
        ("sh -c 'ls a' name arg", ["ls a"]),
        ("sh build.sh -x", ["sh build.sh -x"]),
        ("bash -x build.sh", ["bash -x build.sh"]),
        ("ls | xargs grep x", ["ls", "grep x *"]),
        ("ls | xargs -0 -r -n 1 -P 4 cat", ["ls", "cat *"]),
        ("ls | xargs -I{} cp {} out/{}", ["ls", "cp {} out/{}"]),
        ("ls | xargs -I % -d ' ' cat %", ["ls", "cat %"]),
        ("xargs", ["xargs"]),
        ("find . -name x", ["find . -name x"]),
        ("find a -exec cat {} +", ["find a -exec cat {} +", "cat {}"]),
        ("find a b -exec cat {} \\;", ["find a b -exec cat {} ;", "cat {}", "cat {}"]),
        ("find -exec cat x \\;", ["find -exec cat x ;", "cat x"]),
        ("find / -execdir cat {} \\;", ["find / -execdir cat {} ;", "cat {}"]),
        ("find a -exec mv {} {}.old \\;", ["find a -exec mv {} {}.old ;", "mv {} {}.old"]),
        ("ssh h rm x", ["ssh h rm x"]),
    ],
)
def test_a_wrapped_command_stands_in_the_wrappers_place(line: str, expected: list[str]) -> None:
    assert run(line) == expected


@pytest.mark.parametrize(
    "line,reason",
    [
        ("sh", "commands that it reads"),
        ("ls | bash", "commands that it reads"),
        ("curl https://x/ | bash -s", "-s"),
        ("sh -i", "-i"),
        ("bash --rcfile x", "--rcfile"),
        ("bash -O extglob -c ls", "-O"),
        ("bash -o posix -c ls", "-o"),
        ('sh -c "$x"', "not literal"),
        ("sh -c *", "not literal"),
        ("bash $x", "not literal"),
        ("env -S 'ls a'", "-S"),
        ("env -i sh -c ls", "without PATH"),
        ("env -i nice /bin/bash -c ls", "without PATH"),
        ("env -i rm${x} y", "option of env"),
        ("env LANG=zh_CN.GBK ls", "LANG"),
        ('env LC_ALL="$x" ls', "LC_ALL"),
        ("export PATH=x; ls", "lower case"),
        ("export LC_ALL=ja_JP.SJIS; ls", "lower case"),
        ("env PATH=/x ls", "PATH"),
        ("env -u PATH ls", "PATH"),
        ("env LD_PRELOAD=x ls", "LD_PRELOAD"),
        ("env $x ls", "option"),
        ("timeout 5", "not understood"),
        ("timeout x ls", "DURATION"),
        ("timeout --weird 5 ls", "--weird"),
        ("timeout $t ls", "option"),
        ('timeout "$t" ls', "option"),
        ('timeout "5$t" ls', "DURATION"),
        ("timeout 5 $x", "not understood"),
        ("nice -n $x ls", "not one word"),
        ("nohup", "not understood"),
        ("nohup -- -x", "not understood"),
        ("xargs -p ls", "-p"),
        ("ls | xargs -I{} {} x", "not understood"),
        ("ls | xargs -I{} sh -c 'cat {}'", "not literal"),
        ("ls | xargs sh -c", "not literal"),
        ("ls | xargs sed -i s/a/b/", "could become an option"),
        ("find . -exec ls", "not understood"),
        ("find . -exec {} \\;", "not understood"),
        ("find . -exec sh -c 'cat {}' \\;", "not literal"),
        ("find . -files0-from x -exec cat {} \\;", "-files0-from"),
        ("find . -okdir cat {} +", "not understood"),
        ("find . -name -exec rm x ';'", "could become options"),
        ("bash -lc ls", "home directory"),
        ("bash --login -c ls", "home directory"),
        ("sh /dev/stdin", "what it reads"),
        ("sh -x -", "not understood"),
        ("cd /dev; sh stdin", "what it reads"),
        ("sh src/../../dev/fd/0", "what it reads"),
        ('sh "/d$x"', "what it reads"),
        ("uv --quiet run ls", "subcommand first"),
        ("uv $x", "subcommand first"),
        ("uv run --with x ls", "not understood"),
        ("uvx $x", "not understood"),
        ("npx", "what it reads"),
        ("git -C $x diff", "-C"),
        ("git -C x", "-C"),
        ("git -c alias.x=!ls x", "-c"),
        ('git -c "$x" diff', "-c"),
        ("git --exec-path=x diff", "--exec-path"),
        ("xargs git -C", "-C"),
        ("make -f - all", "its input"),
        ("make -f/dev/stdin all", "its input"),
        ("make all --eval=x", "--eval"),
        ("make all SHELL=x", "SHELL=x"),
        ("make 'x!=ls'", "may run"),
        ("make $x", "option of make"),
        ("ld.so /bin/ls", "runs other programs"),
        ("/lib64/ld-linux-x86-64.so.2 /bin/ls", "has the name of"),
        ("linux32 ls", "runs other programs"),
        ("flock /tmp/lock ls", "runs other programs"),
        ("flock /tmp/lock -c ls", "runs other programs"),
        ("ssh-agent ls", "runs other programs"),
        ("sudo -i ls", "-i is not known"),
        ("sudo -D d ls", "-D is not known"),
        ("sudo PATH=. ls", "sets PATH"),
        ("sudo $x", "option of sudo"),
        ("su -c ls", "runs other programs"),
        ("watch ls", "runs other programs"),
        ("parallel ls ::: a", "runs other programs"),
        ("strace ls", "runs other programs"),
        ("eval ls", "changes what"),
        ("exec ls", "changes what"),
        ("trap ls EXIT", "changes what"),
        (". ./x", "changes what"),
        ("source x", "changes what"),
        ("./env ls", "has the name of"),
        ("/workspace/timeout 5 ls", "has the name of"),
        ("printf -v x y", "may evaluate"),
        ("cd x; ./y", "relative path after cd"),
        ("cd $x && bin/y", "relative path after cd"),
        ("env " * 10 + "ls", "too deep"),
        ("vim x", "run other programs"),
        ("sed 's/a/b/e' x", "may open a file or run"),
        ("./make x SHELL=frob", "has the name of a program that runs others"),
        ("/opt/timeout 5 make", "has the name of a program that runs others"),
    ],
)
def test_what_cannot_be_read_is_opaque_and_says_why(line: str, reason: str) -> None:
    assert reason in (read_programs(line).opaque or "")


def test_a_wrapper_is_still_there_for_deny_rules_to_find() -> None:
    first, second = understood("timeout 5 ls")
    assert (first.wrapper, second.wrapper) == (True, False)


def test_effects_are_seen_from_where_the_command_runs() -> None:
    assert reads("cd src && cat a") == {"/workspace/src/a"}
    assert reads("cd src; cat a") == {"/workspace/a", "/workspace/src/a"}
    assert reads("cd src && sh -c 'cd deep && cat a'") == {"/workspace/src/deep/a"}
    assert reads("cd $x; cat a") >= {None}


def test_arguments_of_a_script_are_data_that_its_words_may_be() -> None:
    assert reads("sh -c 'cat \"$1\"' sh /etc/passwd") == {None}
    assert reads("sh -c 'cat a' sh /etc/passwd") == {"/workspace/a"}


def test_a_script_by_name_is_read() -> None:
    assert reads("cd src && sh build.sh") == {"/workspace/src/build.sh"}
    assert reads('bash "run-$x"') == {None}


def test_options_of_wrappers_open_files_too() -> None:
    assert reads("xargs -a names cat") == {"/workspace/names", None}


def test_what_find_passes_on_may_be_any_file() -> None:
    for line in ("find src -exec rm -f {} +", "find / -execdir rm {} +", "find .. -exec rm {} ';'"):
        *_, last = understood(line)
        assert FileUse(None, "write") in last.uses


def test_what_find_passes_on_is_no_option_where_it_starts_at_a_name() -> None:
    assert read_programs("find src tests -exec sed -i s/a/b/ {} +").opaque is None
    assert read_programs("find - src -exec sed -i s/a/b/ {} +").opaque
    assert read_programs('find "$d" -exec sed -i s/a/b/ {} +').opaque


def test_a_program_by_a_relative_path_after_cd_has_the_path_it_runs_by() -> None:
    assert run("cd sub && ./build.sh x") == ["cd sub", "/workspace/sub/build.sh x"]
    seen = understood("cd sub && ./build.sh x")
    assert [program.words[0].text for program in seen if program.wrapper] == ["./build.sh"]


def test_an_opaque_line_still_shows_what_was_seen_in_it() -> None:
    read = read_programs("su -c ls; cat --weird /etc/passwd; vim x")
    assert read.opaque
    assert FileUse("/etc/passwd", "read") in {file for program in read.programs for file in program.uses}


@pytest.mark.parametrize("also", ["-n 2", "-L 1", "-l", "-l1", "--max-args=3", "--max-lines=2", "-n 1 -n 2"])
def test_xargs_that_may_take_its_replacement_back_appends_what_it_reads(also: str) -> None:
    assert run(f"ls | xargs -I Z {also} cat out/a") == ["ls", "cat out/a *"]
    assert None in reads(f"ls | xargs -I Z {also} cat out/a")
    assert run("ls | xargs -I Z -n 1 cat Z") == ["ls", "cat Z"]


@pytest.mark.parametrize("shell", ["zsh", "ksh", "mksh", "csh", "tcsh", "fish", "pwsh", "yash", "/usr/bin/zsh"])
def test_a_shell_with_another_language_runs_only_scripts_by_name(shell: str) -> None:
    assert read_programs(f"{shell} -c ls").opaque
    assert read_programs(f"{shell} -x build.sh").opaque
    assert read_programs(shell).opaque
    assert run(f"{shell} build.sh") == [f"{shell} build.sh"]
    assert reads(f"{shell} build.sh") == {"/workspace/build.sh"}


def test_scripts_that_are_read_again_and_again_have_a_limit() -> None:
    script = "ls;" + "#" + "x" * 9000
    assert read_programs(f"sh -c '{script}'").opaque is None
    assert read_programs(f"find a b c d e f g h -exec sh -c '{script}' {{}} ';'").opaque


def test_commands_that_are_put_in_many_places_have_a_limit() -> None:
    many = " ".join(f"f{place}" for place in range(2500))
    assert read_programs(f"find a -exec echo {many} {{}} ';'").opaque is None
    assert read_programs(f"find a b c d e f g h -exec echo {many} {{}} ';'").opaque


def test_the_directories_that_git_is_sent_to_are_read() -> None:
    assert reads("git -C sub -C deep status") == {"/workspace/sub", "/workspace/sub/deep"}
    assert reads('git -C "$x" status') == {None}
    assert {program.cwd for program in understood("git -C /tmp/x diff") if not program.wrapper} == {("/tmp/x",)}


@pytest.mark.parametrize("glued", ["{}/../x", "{}.bak", "../{}"])
def test_what_stands_beside_the_braces_of_find_may_lead_anywhere(glued: str) -> None:
    assert None in reads(f"find src -exec cat {glued} \\;")


def test_a_comma_and_a_parenthesis_before_the_first_test_are_places_where_find_starts() -> None:
    find, *_ = understood("find src , other \\) -exec cat {} \\;")
    assert {use.path for use in find.uses} >= {f"/workspace/{name}" for name in ("src", ",", "other", ")")}


def test_a_path_through_the_links_of_a_process_may_be_any_file() -> None:
    assert reads("cat /proc/self/cwd/x /proc/1/root/x /proc/cpuinfo") == {None, "/proc/cpuinfo"}
    assert reads("cat /pro?/self/cwd/x") == {None}
    assert reads("cat /proc/*/cwd/x") == {None}
    assert reads("cd /proc/self/cwd; cat x") == {None, "/workspace/x"}


def test_sudo_is_a_program_of_its_own_beside_the_one_that_it_runs() -> None:
    for line in ("sudo -u root -E CI=1 make x", "doas -u root make x"):
        read = read_programs(line)
        assert read.opaque is None
        assert [(program.words[0].text, program.wrapper) for program in read.programs] == [
            (line.split()[0], False),
            ("make", False),
        ]
