"""What one decision of a policy costs among 1,000 rules, with and without the shell line to read.

Beside it a judge as one would write it first: it goes through all rules, one after the other, with `fnmatch` for paths
and `str.split` for commands. It knows far less, and is here for scale. How long such a policy takes to load, and how
much memory each of many tenants' policies keeps, comes along.
"""

from __future__ import annotations

import asyncio
import fnmatch
import gc
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.policy import STARTER_POLICY, Policy, PolicyDocument, load_policy

RULES = 1000
_CALLS = 3000
_TENANTS = 300

Call = tuple[str, dict[str, object]]

CASES: dict[str, Callable[[int], Call]] = {
    "read_file": lambda n: ("read_file", {"path": f"/workspace/libs/team3/part{n % 900}/src/a{n}.py"}),
    "write_file": lambda n: ("write_file", {"path": f"/workspace/libs/team3/part{n % 900}/a{n}.py", "content": "x"}),
    "grep below one team": lambda n: ("grep", {"path": f"/workspace/libs/team{n % 40}", "pattern": "x"}),
    "grep of everything": lambda n: ("grep", {"path": "/workspace", "pattern": f"x{n}"}),
    "connect": lambda n: ("connect", {"host": f"api{n % 900}.vendor{n % 100}.com", "port": 443}),
    "execute, one command": lambda n: ("execute", {"command": f"make target{n % 900} --flag 'a b{n}'"}),
    "execute, a wildcard": lambda n: ("execute", {"command": f"wc -l src{n}/*.py"}),
    "execute, three commands": lambda n: ("execute", {"command": f"cat a/b{n} | grep -n x > out{n} && git diff"}),
    "execute, a loop": lambda n: (
        "execute",
        {"command": f'for f in src/*.py; do grep -n "$PATTERN" src/a{n}.py; done'},
    ),
    "execute, judged before": lambda _: ("execute", {"command": "cat a | grep -n x > out && wc -l *.py"}),
    "write_file with when": lambda n: (
        "write_file",
        {"path": f"/workspace/secret{19 + 20 * (n % 40)}/a", "content": ""},
    ),
}
"""A call that is another one each time: what was read of a command before is kept, and would hide the parse."""


def thousand_rules() -> PolicyDocument:
    """Return a policy of that many rules, as a large operator might have: paths, commands and hosts of many teams."""
    chosen = random.Random(1)
    rules: list[dict[str, Any]] = [
        {"id": "read", "tools": ["read"], "paths": ["/workspace/**"], "effect": "allow"},
        {"id": "write", "tools": ["write"], "paths": ["/workspace/**"], "effect": "allow"},
        {"id": "keys", "tools": ["read", "write"], "paths": ["/workspace/**/*.pem"], "effect": "deny"},
        {
            "id": "look",
            "tools": ["execute"],
            "argv": [["cat"], ["grep"], ["wc"], ["git", ["status", "diff"]]],
            "effect": "allow",
        },
    ]
    for place in range(len(rules), RULES):
        rule = _rule(place, chosen)
        if place % 20 == 0:
            rule["when"] = "tenant != 'x'"
        rules.append({"id": f"rule{place}", **rule})
    written = [{"reason": "r", **rule} for rule in rules]
    return PolicyDocument.model_validate_json(json.dumps({"version": 1, "rules": written}))


def _rule(place: int, chosen: random.Random) -> dict[str, Any]:
    kind = place % 10
    effect = chosen.choice(["allow", "allow", "ask", "deny"])
    if kind < 4:
        root = f"/workspace/{chosen.choice(['libs', 'apps', 'services'])}/team{chosen.randrange(40)}/part{place}"
        paths = chosen.choice([[f"{root}/**"], [f"{root}/src/**/*.py", f"{root}/tests/**"], [f"{root}/*.md"]])
        return {"tools": [chosen.choice(["read", "write"])], "paths": paths, "effect": effect}
    if kind < 7:
        program = chosen.choice(["make", "cargo", "npm", "go", "docker", "kubectl", "uv", "mvn"])
        return {"tools": ["execute"], "argv": [[program, f"target{place}"]], "effect": effect}
    if kind < 9:
        hosts = [f"api{place}.vendor{chosen.randrange(100)}.com", f"*.team{place}.internal:443"]
        return {"tools": ["connect"], "hosts": hosts, "effect": effect}
    more: dict[str, Any] = {"unless": {"paths": ["/workspace/tests/**"]}}
    if place % 20 == 19:
        more = {"when": "path.startsWith('/workspace')"}
    return {"tools": ["write"], "paths": [f"/workspace/**/secret{place}/**"], "effect": "deny", **more}


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
class _Taken:
    """How long calls took: in CPU time, which other processes do not add to, and by the clock."""

    cpu_us: list[float]
    clock_us: list[float]

    def shown(self) -> tuple[str, ...]:
        """Return p50, p99 and the longest in CPU time, and p99 by the clock."""
        cpu, clock = statistics.quantiles(self.cpu_us, n=100), statistics.quantiles(self.clock_us, n=100)
        return tuple(f"{number:,.0f}" for number in (cpu[49], cpu[98], max(self.cpu_us), clock[98]))


def _taken(judge: Callable[[str, dict[str, object]], object], case: Callable[[int], Call], calls: int) -> _Taken:
    taken = _Taken([], [])
    for number in range(-20, calls):
        tool, arguments = case(number % 1_000_000)
        clock_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        judge(tool, arguments)
        cpu_ns, clock_ns = time.thread_time_ns() - cpu_ns, time.perf_counter_ns() - clock_ns
        if number >= 0:
            taken.cpu_us.append(cpu_ns / 1000)
            taken.clock_us.append(clock_ns / 1000)
    return taken


async def tables() -> list[Table]:
    """Measure, and return what to print."""
    document = thousand_rules()
    policy, plain = Policy(document), _RuleByRule(document)
    decisions = Table(title=f"one policy decision among {RULES:,} rules, shell parse included; us")
    columns = ("call", "p50", "p99", "max", "p99 by the clock", "rule by rule p50", "p99", "verdict")
    for column in columns:
        decisions.add_column(column, justify="left" if column in ("call", "verdict") else "right")
    for name, case in CASES.items():
        ours = _taken(policy.judge, case, _CALLS).shown()
        theirs = _taken(plain.judge, case, _CALLS // 10).shown()
        decisions.add_row(name, *ours, *theirs[:2], policy.judge(*case(1)).verdict)
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


if __name__ == "__main__":
    for one in asyncio.run(tables()):
        Console(width=110).print(one)
