"""`python -m examples.evaluation MODEL [TASK...]`: evaluate the default agent with a model, and print a table.

MODEL is the name of a model at OPENAI_BASE_URL, with the key OPENAI_API_KEY, or a YAML file with its settings. The log
of inspect-ai stays in .build/evaluation. Exit code 0: each task was tried; 1: one could not be; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from anyio.from_thread import start_blocking_portal
from inspect_ai import eval as evaluate
from inspect_ai.log import EvalLog

from examples.evaluation.evaluation_gateway import TENANTS, BadModel, configure, model_settings
from examples.evaluation.inspect_task import Attempt, Place, inspect_task
from examples.evaluation.result_table import result_table, results
from examples.evaluation.tasks import TASKS
from examples.own_gateway import REPOSITORY, GatewayFailed, own_gateway
from gateway.cli.terminal import SafeConsole

LOGS = REPOSITORY / ".build" / "evaluation"
_INTERRUPTED = 130
_USAGE = 2


def main(arguments: Sequence[str], console: SafeConsole) -> int:
    """Evaluate and return the exit code."""
    given = _parser().parse_intermixed_args(arguments)
    try:
        settings = model_settings(given.model)
    except BadModel as error:
        console.print(str(error), style="red")
        return _USAGE
    attempts = [Attempt(task) for task in TASKS if not given.tasks or task.name in given.tasks]
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    made = own_gateway("evaluation", partial(configure, model=settings), tenants=TENANTS[1:])
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(made) as gateway:
        place = Place(gateway.address, {TENANTS[0]: gateway.api_key, **gateway.tenant_keys})
        log = evaluated(place, attempts, given.at_once, {"model": settings.get("name")}, console)
    found = results(log)
    console.print()
    console.print(result_table(found))
    console.print(f"\ninspect's log: {log.location}", style="dim", soft_wrap=True)
    for thing in gateway.left_behind:
        console.print(f"✗ the gateway left a {thing}", style="red")
    return int(any(result.steps is None for result in found) or bool(gateway.left_behind))


def evaluated(
    place: Place, attempts: Sequence[Attempt], at_once: int, metadata: dict[str, Any], console: SafeConsole
) -> EvalLog:
    """Try the attempts, `at_once` of them at a time, and return inspect's log. Raises KeyboardInterrupt."""

    def show(name: str, problem: str) -> None:
        console.print(f"✗ {name}: {problem}" if problem else f"✓ {name}", style="red" if problem else "green")

    logs = evaluate(
        inspect_task(place, attempts, show),
        model=None,  # inspect asks none
        metadata=metadata,
        max_samples=at_once,
        fail_on_error=False,
        display="none",
        log_dir=str(LOGS),
    )
    if not logs:  # inspect takes Ctrl-C for itself
        raise KeyboardInterrupt
    return logs[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.evaluation", description="Evaluate the default agent with a model."
    )
    parser.add_argument("model", metavar="MODEL", help="the name of a model, or a YAML file with its settings")
    parser.add_argument(
        "tasks", metavar="TASK", nargs="*", choices=[*(task.name for task in TASKS), []], help="all unless given"
    )
    parser.add_argument("--at-once", type=int, choices=range(1, 17), default=4, help="tasks at a time (default: 4)")
    return parser


if __name__ == "__main__":
    terminal = SafeConsole()
    try:
        sys.exit(main(sys.argv[1:], terminal))
    except KeyboardInterrupt:
        terminal.print("interrupted; the gateway is stopped and its sandboxes are gone", style="yellow")
        sys.exit(_INTERRUPTED)
    except GatewayFailed as error:
        terminal.print(f"✗ {error}", style="red")
        sys.exit(1)
