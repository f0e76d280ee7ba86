"""Usage of models in words: tokens, cost, time to the first text. An amount is a client's Usage or an event's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.cli.printable import one_line


def tokens_in(usage: Any) -> str:
    """Return the input, and how much of it was cached."""
    return _with_part(usage, "input_tokens", "cached_input_tokens")


def tokens_out(usage: Any) -> str:
    """Return the output, and how much of it was reasoning."""
    return _with_part(usage, "output_tokens", "reasoning_tokens")


def dollars(usage: Any) -> str:
    """Return the cost; "-" if it is unknown, for a model without prices, or nothing."""
    cost_usd = float(_of(usage, "cost_usd") or 0)
    digits = 2 if cost_usd >= 1 else 4 if cost_usd >= 0.01 else 6
    return f"${cost_usd:,.{digits}f}" if cost_usd else "-"


def milliseconds(first_token_ms: float | None) -> str:
    """Return a time, "-" for none."""
    return "-" if first_token_ms is None else f"{first_token_ms:,.0f} ms"


def amount_line(usage: Any, requests: int) -> str:
    """Return an amount on one line."""
    parts = [
        f"{requests:,} request{'' if requests == 1 else 's'}",
        f"{_with_part(usage, 'input_tokens', 'cached_input_tokens', ' cached')} tokens in",
        f"{_with_part(usage, 'output_tokens', 'reasoning_tokens', ' reasoning')} out",
    ]
    if estimated := _of(usage, "estimated_tokens"):
        parts.append(f"{estimated:,} of them estimated")
    if (cost := dollars(usage)) != "-":
        parts.append(cost)
    return ", ".join(parts)


def run_line(run: Any) -> str:
    """Return what a run used, on one line: its model, steps, tokens, cost and the time to the first text."""
    own = next((use for use in run.models if use.agent == run.agent), None)
    if own is None:
        return "-"
    parts = [
        f"{run.steps:,} step{'' if run.steps == 1 else 's'}",
        f"{_with_part(run.usage, 'input_tokens', 'cached_input_tokens', ' cached')} tokens in",
        f"{_with_part(run.usage, 'output_tokens', 'reasoning_tokens', ' reasoning')} out",
    ]
    if (cost := dollars(run.usage)) != "-":
        parts.append(cost)
    if own.first_token_ms:
        parts.append(f"first text after {milliseconds(own.first_token_ms)}")
    return f"{one_line(own.model, 40)}: {', '.join(parts)}"


def use_line(use: Any) -> str:
    """Return what an agent used of a model, on one line."""
    usage: Any = _of(use, "usage") or {}
    first_token_ms = _of(use, "first_token_ms")
    requests = _of(use if isinstance(use, Mapping) else usage, "requests")
    first = f", first text after {milliseconds(first_token_ms)}" if first_token_ms else ""
    agent, model = one_line(_of(use, "agent"), 40), one_line(_of(use, "model"), 80)
    return f"{agent} with {model}: {amount_line(usage, int(requests))}{first}"


def _with_part(usage: Any, whole: str, part: str, word: str = "") -> str:
    of_which = _of(usage, part)
    return f"{_of(usage, whole):,}{f' ({of_which:,}{word})' if of_which else ''}"


def _of(source: Any, name: str) -> Any:
    return (source.get(name) if isinstance(source, Mapping) else getattr(source, name)) or 0
