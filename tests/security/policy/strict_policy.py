"""A policy that lets a few programs run and a few files be reached: what the bypass attempts are up against."""

from __future__ import annotations

from gateway.policy import load_policy

STRICT_TEXT = """
version: 1
rules:
  - id: looking
    tools: [execute]
    argv: [[ls], [cat], [grep], [find], [wc], [head], [tail], [echo], [printf], [sort], [pwd], [cd],
      [test], ["["], [wait]]
    effect: allow
    reason: looking changes nothing
  - id: git
    tools: [execute]
    argv: [[git, [status, diff, log, show, grep]]]
    effect: allow
    reason: looking at the history changes nothing
  - id: shaping
    tools: [execute]
    argv: [[sed], [awk], [tar], [cp], [mv], [ln], [tee], [dd], [gzip], [gunzip], [zip], [unzip], [mktemp],
      [less], [split], [csplit], [install], [patch], [truncate], [shuf], [curl]]
    effect: allow
    reason: where they read and write is for the rules about files
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
    tools: [write]
    paths: [/workspace/out/**, "/workspace/*.txt"]
    effect: allow
    reason: results
  - id: secrets
    tools: [read, write]
    paths: [/workspace/secret/**, "/workspace/**/.env"]
    effect: deny
    reason: not for agents
"""
STRICT = load_policy(STRICT_TEXT, "strict.yaml")


def verdict(command: str) -> str:
    """The strict policy's verdict on a command line."""
    return STRICT.judge("execute", {"command": command}).verdict
