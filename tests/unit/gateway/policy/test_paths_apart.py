"""Whether a policy treats two paths of one writable file system differently: then hard links must be refused."""

from __future__ import annotations

import pytest

from gateway.policy import load_policy

RULE = """\
version: 1
rules:
  - {id: a, tools: [read_file], effect: allow, reason: r, %s}
  - {id: b, tools: [execute], effect: allow, reason: r, argv: [[ls]]}
"""


@pytest.mark.parametrize(
    "paths",
    [
        "mode: enforce",
        "paths: [/workspace, /workspace/**]",
        "paths: [/workspace/**, /tmp/**]",
        "paths: [/**]",
        "paths: [/etc/**, /usr/lib/*.so]",
        "paths: [/]",
    ],
)
def test_whole_file_systems_are_not_distinguished(paths: str) -> None:
    assert not load_policy(RULE % paths, "p").tells_paths_apart


@pytest.mark.parametrize(
    "glob",
    [
        "/workspace/secret/**",
        "/workspace/*",
        "/workspace/**/.env",
        "/tmp/x",
        "/**/key",
        "/*/a",
        "/w*/**",
        "/dev/shm/a",
    ],
)
def test_a_glob_finer_than_a_file_system_tells_paths_apart(glob: str) -> None:
    assert load_policy(RULE % f"paths: [/workspace/**, '{glob}']", "p").tells_paths_apart
