"""A policy that lets a few programs run and a few files be reached: what the bypass attempts are up against."""

from __future__ import annotations

from gateway.policy import load_policy

STRICT = load_policy(
    """
version: 1
rules:
  - id: looking
    tools: [execute]
    argv: [[ls], [cat], [grep], [find], [wc], [head], [tail], [echo], [sort], [pwd], [cd], [git, [status, diff, log]]]
    effect: allow
    reason: looking changes nothing
  - id: tests
    tools: [execute]
    argv: [[python3, -m, pytest]]
    effect: allow
    reason: running the tests is the job
  - id: no-dumps
    tools: [execute]
    argv: [[git, log, -p], [git, diff, --ext-diff]]
    effect: deny
    reason: no whole histories, no programs in place of diff
  - id: read
    tools: [ls, read_file, glob, grep]
    paths: [/workspace/**]
    effect: allow
    reason: the workspace
  - id: write
    tools: [write_file, edit_file]
    paths: [/workspace/out/**, "/workspace/*.txt"]
    effect: allow
    reason: results
  - id: secrets
    tools: [ls, read_file, glob, grep, write_file, edit_file]
    paths: [/workspace/secret/**, "/workspace/**/.env"]
    effect: deny
    reason: not for agents
""",
    "strict.yaml",
)


def verdict(command: str) -> str:
    """The strict policy's verdict on a command line."""
    return STRICT.judge("execute", {"command": command}).verdict
