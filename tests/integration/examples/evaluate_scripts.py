"""`python -m tests.integration.examples.evaluate_scripts ADDRESS LOGS`: evaluate the scripts at a gateway.

A process of its own, because inspect-ai leaves streams open, which pytest takes for a failure. The keys of the tenants
come as JSON by EVALUATION_KEYS.
"""

from __future__ import annotations

import json
import os
import sys

from inspect_ai import eval as evaluate

from examples.evaluation.inspect_task import Attempt, Place, inspect_task
from examples.evaluation.tasks import TASKS
from tests.integration.examples.evaluation_scripts import SCRIPTS

if __name__ == "__main__":
    tasks = {task.name: task for task in TASKS}
    place = Place(sys.argv[1], json.loads(os.environ["EVALUATION_KEYS"]))
    attempts = [Attempt(tasks[script.task], agent) for agent, script in SCRIPTS.items()]
    evaluate(
        inspect_task(place, attempts),
        model=None,
        max_samples=4,
        fail_on_error=False,
        display="none",
        log_dir=sys.argv[2],
        log_format="json",
    )
