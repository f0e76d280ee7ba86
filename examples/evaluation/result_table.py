"""The results of an evaluation as a table, from inspect's log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from inspect_ai.log import EvalLog, EvalSample
from inspect_ai.scorer import CORRECT
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Result:
    """An attempt: whether it passed, and if not, why; `steps` is None if there was no run."""

    name: str
    passed: bool
    reason: str
    steps: int | None = None
    seconds: float = 0.0
    usage: dict[str, Any] = field(default_factory=dict)

    def amount(self, kind: str) -> float:
        """Return an amount of the usage."""
        return float(self.usage.get(kind) or 0)


def results(log: EvalLog) -> list[Result]:
    """Return the results of an evaluation, in the order of its samples."""
    order = {name: position for position, name in enumerate(log.eval.dataset.sample_ids or ())}
    return sorted(map(_result, log.samples or ()), key=lambda result: order.get(result.name, len(order)))


def _result(sample: EvalSample) -> Result:
    name = str(sample.id)
    if sample.error is not None:
        return Result(name, passed=False, reason=f"error: {sample.error.message}")
    score = (sample.scores or {}).get("result")
    if score is None:
        return Result(name, passed=False, reason="it was not scored")
    metadata = score.metadata or {}
    return Result(
        name,
        passed=score.value == CORRECT,
        reason=score.explanation or "",
        steps=metadata.get("steps"),
        seconds=float(metadata.get("seconds") or 0),
        usage=metadata.get("usage") or {},
    )


def result_table(results: Sequence[Result]) -> Table:
    """Return a table with a row for each result, and one with the sums."""
    table = Table(show_footer=True, box=None, padding=(0, 1))
    passed = sum(result.passed for result in results)
    steps = sum(result.steps or 0 for result in results)
    costs = sum(result.amount("cost_usd") for result in results)
    table.add_column("task", f"{passed} of {len(results)} passed", no_wrap=True)
    table.add_column("passed")
    table.add_column("steps", str(steps), justify="right")
    for kind in ("input", "output"):
        tokens = sum(result.amount(f"{kind}_tokens") for result in results)
        table.add_column(f"{kind} tokens", f"{tokens:,.0f}", justify="right")
    table.add_column("cost", _dollars(costs), justify="right")
    table.add_column("seconds", f"{sum(result.seconds for result in results):.1f}", justify="right")
    table.add_column("reason", overflow="fold")
    for result in results:
        table.add_row(
            result.name,
            Text("yes", "green") if result.passed else Text("no", "red"),
            "-" if result.steps is None else str(result.steps),
            f"{result.amount('input_tokens'):,.0f}",
            f"{result.amount('output_tokens'):,.0f}",
            _dollars(result.amount("cost_usd")),
            f"{result.seconds:.1f}",
            Text(" ".join(result.reason.split())[:300]),
        )
    return table


def _dollars(cost_usd: float) -> str:
    """Return a cost; "-" where the model has no prices."""
    return f"${cost_usd:.4f}" if cost_usd else "-"
