"""Which rule a command is told of when the kernel kept it from a file."""

from __future__ import annotations

import time

import pytest

from gateway.policy import load_policy
from gateway.tool_calls.refusal_note import refusal_note


def rules(*lines: str) -> str:
    head = "version: 1\nenforcement: kernel\nrules:\n"
    return head + "".join(f"  - {{{line}, reason: r}}\n" for line in lines)


@pytest.mark.parametrize(
    "output, note",
    [
        ("cat: secrets/key: Permission denied", "read nothing below /workspace/secrets: rule secrets"),
        ("sh: 1: cannot open secrets/key: Permission denied", "read nothing below /workspace/secrets: rule secrets"),
        (
            "PermissionError: [Errno 13] Permission denied: '/workspace/.git/x'",
            "write nothing below /workspace/.git: rule git",
        ),
        ("mv: cannot move 'a' to '.git/a': Permission denied", "write nothing below /workspace/.git: rule git"),
        ("tar: .git/x: Cannot open: Permission denied", "write nothing below /workspace/.git: rule git"),
        (
            "touch: cannot touch 'top': Permission denied",
            "write only below /workspace/src, and read only below /workspace",
        ),
        (
            "bash: /workspace/../etc/x: Permission denied",
            "write only below /workspace/src, and read only below /workspace",
        ),
        ("cat: //workspace//secrets/key: Permission denied", "read nothing below /workspace/secrets: rule secrets"),
        ("ls: //: Permission denied", "write only below /workspace/src, and read only below /workspace"),
        ("no such file", ""),
        ("cat: secrets/key: Permission denied\n" + 30 * "a line\n", ""),
    ],
)
def test_a_refusal_names_the_rule(output: str, note: str) -> None:
    policy = load_policy(
        rules(
            "id: look, tools: [read], paths: [/workspace/**], effect: allow",
            "id: change, tools: [write], paths: [/workspace/src/**], effect: allow",
            "id: secrets, tools: [read], paths: [/workspace/secrets/**], effect: deny",
            "id: git, tools: [write], paths: [/workspace/.git/**], effect: ask",
        ),
        "p",
    )
    assert refusal_note(policy, output, "/workspace") == (f"the policy lets commands {note}" if note else "")


@pytest.mark.parametrize(
    "output",
    [
        "'a'" * 1300 + " Permission denied",
        "a" * 4000 + " Permission denied",
        ("':'a'" * 40 + "Permission denied\n") * 20,
    ],
)
def test_no_output_makes_its_note_slow(output: str) -> None:
    denied = (f"id: d{n}, tools: [read, write], paths: [/workspace/d{n}/**], effect: deny" for n in range(200))
    policy = load_policy(rules(*denied), "p")
    refusal_note(policy, "cat: d1/x: Permission denied", "/workspace")
    started = time.process_time()
    assert refusal_note(policy, output, "/workspace") == "the policy lets commands write nothing, and read nothing"
    assert time.process_time() - started < 0.05
