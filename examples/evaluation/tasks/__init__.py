"""The tasks, one module for each kind. `TASKS` has all of them, in the order of the table."""

from examples.evaluation.tasks.code import CODE
from examples.evaluation.tasks.data import DATA
from examples.evaluation.tasks.files import FILES
from examples.evaluation.tasks.large import LARGE
from examples.evaluation.tasks.refusals import REFUSALS

TASKS = (*CODE, *FILES, *DATA, *LARGE, *REFUSALS)
