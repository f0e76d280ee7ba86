"""What one decision of a policy costs among 1,000 rules, with and without the shell line to read.

Beside it a judge as one would write it first: it goes through all rules, one after the other, with `fnmatch` for paths
and `str.split` for commands. It knows far less, and is here for scale. How long such a policy takes to load, and how
much memory each of many tenants' policies keeps, comes along.
"""

from __future__ import annotations

import fnmatch
import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from gateway.policy import STARTER_POLICY, Policy, PolicyDocument, load_policy

RULES = 1000
_CALLS = 3000
_TENANTS = 300

CASES: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("read_file", "read_file", {"path": "/workspace/a/b/name4/x.py"}),
    ("grep of everything", "grep", {"path": "/workspace", "pattern": "x"}),
    ("execute, one command", "execute", {"command": "make sub4 --flag 'a b'"}),
    ("execute, its files judged", "execute", {"command": "cat a/b | grep -n x > dir4/out && git diff --stat"}),
    ("execute, a loop", "execute", {"command": 'for f in src/*.py; do grep -n "$PATTERN" src/a.py; done'}),
    ("read_file with when", "read_file", {"path": "/workspace/when/x"}),
)


def thousand_rules() -> PolicyDocument:
    """Return a policy of that many rules, as a large operator's might be: half about paths, half about commands."""
    rules: list[dict[str, Any]] = [
        {"id": "read-all", "tools": ["read"], "paths": ["/workspace/**"], "effect": "allow"},
        {
            "id": "look",
            "tools": ["execute"],
            "argv": [["cat"], ["grep"], ["git", ["status", "diff"]]],
            "effect": "allow",
        },
        {
            "id": "when",
            "tools": ["read"],
            "paths": ["/workspace/when/**"],
            "when": "path.startsWith('/workspace/') && tenant != 'x'",
            "effect": "allow",
        },
    ]
    for place in range((RULES - len(rules)) // 2):
        paths = [f"/workspace/dir{place}/**", f"/workspace/**/name{place}/*.py"]
        rules.append({"id": f"p{place}", "tools": ["read", "write"], "paths": paths, "effect": "allow"})
        argv = [["make", f"sub{place}"], [f"program{place}"]]
        effect = "deny" if place % 10 == 9 else "allow"
        rules.append({"id": f"c{place}", "tools": ["execute"], "argv": argv, "effect": effect})
    written = [{"reason": "r", **rule} for rule in rules]
    return PolicyDocument.model_validate_json(json.dumps({"version": 1, "rules": written}))


class _RuleByRule:
    """The plain judge: every rule, every time."""

    def __init__(self, document: PolicyDocument) -> None:
        self._rules = document.rules

    def judge(self, tool: str, arguments: Mapping[str, object]) -> str:
        verdict = "deny"
        path, words = str(arguments.get("path", "")), str(arguments.get("command", "")).split()
        for rule in self._rules:
            if tool not in rule.tools:
                continue
            by_path = any(fnmatch.fnmatchcase(path, glob) for glob in rule.paths or ())
            by_argv = any(words[: len(argv)] == list(argv) for argv in rule.argv or ())
            if by_path or by_argv:
                if rule.effect == "deny":
                    return "deny"
                verdict = "allow"
        return verdict


@dataclass(frozen=True)
class _Percentiles:
    p50_us: float
    p99_us: float


def _percentiles(call: Callable[[], object], calls: int) -> _Percentiles:
    for _ in range(20):
        call()
    taken_us: list[float] = []
    for _ in range(calls):
        started_ns = time.perf_counter_ns()
        call()
        taken_us.append((time.perf_counter_ns() - started_ns) / 1000)
    cuts = statistics.quantiles(taken_us, n=100)
    return _Percentiles(cuts[49], cuts[98])


async def tables() -> list[Table]:
    """Measure, and return what to print."""
    document = thousand_rules()
    policy, plain = Policy(document), _RuleByRule(document)
    decisions = Table(title=f"one policy decision among {RULES:,} rules, shell parse included")
    for column in ("call", "p50 us", "p99 us", "rule by rule p50 us", "p99 us", "verdict"):
        decisions.add_column(column, justify="left" if column in ("call", "verdict") else "right")
    for name, tool, arguments in CASES:
        ours = _percentiles(lambda tool=tool, arguments=arguments: policy.judge(tool, arguments), _CALLS)  # type: ignore[misc]
        theirs = _percentiles(lambda tool=tool, arguments=arguments: plain.judge(tool, arguments), _CALLS // 10)  # type: ignore[misc]
        numbers = (ours.p50_us, ours.p99_us, theirs.p50_us, theirs.p99_us)
        decisions.add_row(name, *(f"{number:,.0f}" for number in numbers), policy.judge(tool, arguments).verdict)
    return [decisions, _keeping(document)]


def _keeping(document: PolicyDocument) -> Table:
    text = document.model_dump_json(exclude_unset=True)  # JSON is YAML too
    started_s = time.perf_counter()
    load_policy(text, "bench")
    load_s = time.perf_counter() - started_s
    gc.collect()
    tracemalloc.start()
    kept = [load_policy(STARTER_POLICY, "bench") for _ in range(_TENANTS)]
    each_bytes = tracemalloc.get_traced_memory()[0] / len(kept)
    tracemalloc.stop()
    table = Table(title="keeping policies")
    table.add_column("what")
    table.add_column("", justify="right")
    table.add_row(f"loading {RULES:,} rules", f"{load_s * 1000:,.0f} ms")
    table.add_row("memory of a loaded starter policy", f"{each_bytes / 1024:,.0f} KiB")
    return table
