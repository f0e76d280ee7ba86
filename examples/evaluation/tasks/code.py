"""Tasks on Python code: fix a test, find a bug, write a function, rename one."""

from __future__ import annotations

import ast

from examples.evaluation.evaluation_task import EvaluationTask, Files, Finished, encoded

_PRICING = '''\
"""Prices in cents."""


def discounted(price_cents: int, percent: int) -> int:
    """Return the price after a discount, rounded to the nearest cent; half a cent is rounded up."""
    return price_cents - price_cents * percent // 100


def total(prices_cents: list[int], percent: int) -> int:
    """Return the sum of the prices, each one discounted."""
    return sum(discounted(price, percent) for price in prices_cents)
'''
_TEST_PRICING = """\
import unittest

from shop.pricing import discounted, total


class PricingTest(unittest.TestCase):
    def test_a_discount_is_taken_off(self):
        self.assertEqual(discounted(1000, 25), 750)

    def test_the_price_is_rounded_to_the_nearest_cent(self):
        self.assertEqual(discounted(999, 15), 849)

    def test_each_price_of_a_total_is_rounded(self):
        self.assertEqual(total([999, 999], 15), 1698)


if __name__ == "__main__":
    unittest.main()
"""


def _shop() -> Files:
    return encoded(
        {
            "shop/__init__.py": "",
            "shop/pricing.py": _PRICING,
            "tests/__init__.py": "",
            "tests/test_pricing.py": _TEST_PRICING,
        }
    )


_PRICES = {(999, 15): 849, (1, 50): 1, (5, 30): 4, (333, 10): 300, (1000, 0): 1000, (1000, 100): 0}


def _prices_are_right(done: Finished) -> str:
    return done.changed("tests/test_pricing.py") or done.did_not_say(list(_PRICES.values()))


_STATS = '''\
"""Statistics of a list of numbers that is not empty."""


def mean(values):
    """Return the arithmetic mean."""
    return sum(values) / len(values)


def median(values):
    """Return the middle value, the mean of the two in the middle if there are two."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def value_range(values):
    """Return the difference between the largest and the smallest value."""
    return max(values) - min(values)


def mode(values):
    """Return the commonest value; of several, the one that comes first."""
    return max(values, key=values.count)


def weighted_mean(values, weights):
    """Return the mean of the values, each counted as often as its weight says."""
    return sum(v * w for v, w in zip(values, weights)) / sum(weights)


def quantile(values, share):
    """Return the smallest value that at least this share (0 < share <= 1) of the values do not exceed."""
    ordered = sorted(values)
    return next(v for i, v in enumerate(ordered, start=1) if i >= share * len(ordered))


def moving_mean(values, width):
    """Return the mean of each `width` values in a row, from the first ones to the last ones."""
    return [mean(values[i : i + width]) for i in range(len(values) - width)]


def deviations(values):
    """Return how far each value is from the mean."""
    middle = mean(values)
    return [v - middle for v in values]
'''


def _bug_is_named(done: Finished) -> str:
    return done.differs("answer.txt", "moving_mean") or done.changed("stats.py")


_SLUGS = '''\
"""Names in URLs."""


def slug(title: str) -> str:
    """Return the name of a title in a URL.

    Letters become lower case. Each run of characters that are not ASCII letters or digits becomes one hyphen, and there
    is no hyphen at the start or the end. A title of which nothing is left is "untitled".

    "Hello World" -> "hello-world"
    "Release 2.0" -> "release-2-0"
    """
    raise NotImplementedError
'''
_SLUG_CASES = {
    "Hello World": "hello-world",
    "Release 2.0": "release-2-0",
    "  What,  now?! ": "what-now",
    "a---b": "a-b",
    "": "untitled",
    "...": "untitled",
    "Caf\N{LATIN SMALL LETTER E WITH ACUTE} 7\N{SUPERSCRIPT TWO}": "caf-7",
}


def _slugs_are_right(done: Finished) -> str:
    return done.did_not_say(list(_SLUG_CASES.values()))


# LOAD stands for the name of the function.
_APP = {
    "app/rows.py": '''\
"""Rows of a table in a file."""

import json


def LOAD(path):
    """Load the rows of one file."""
    with open(path) as file:
        return json.load(file)


def load_all(paths):
    """Load the rows of several files."""
    return [row for path in paths for row in LOAD(path)]


def reload(path, rows):
    """Replace rows by those of a file: load it again."""
    rows[:] = LOAD(path)
''',
    "app/report.py": '''\
"""Prints a report."""

from app import rows
from app.rows import LOAD as read

READERS = {"load": rows.LOAD, "all": rows.load_all}


def report(path):
    """Return a line for a file."""
    return f"{path}: {len(rows.LOAD(path))} rows, first {read(path)[0]}"
''',
    "app/main.py": """\
from app.report import READERS, report
from app.rows import LOAD, load_all, reload

if __name__ == "__main__":
    found = LOAD("data/a.json")
    reload("data/b.json", found)
    print(report("data/a.json"), len(load_all(["data/a.json", "data/b.json"])), found, sorted(READERS))
""",
}


def _app() -> Files:
    sources = {path: source.replace("LOAD", "load") for path, source in _APP.items()}
    return encoded({**sources, "app/__init__.py": "", "data/a.json": "[1, 2]\n", "data/b.json": "[3]\n"})


def _function_is_renamed(done: Finished) -> str:
    for path, source in _APP.items():
        try:
            written = ast.dump(ast.parse(done.text(path)))
        except (SyntaxError, ValueError) as error:
            return f"{path} is not Python: {error}"
        # Layout and comments may differ.
        if written != ast.dump(ast.parse(source.replace("LOAD", "load_rows"))):
            return f"{path} is not as it was with load renamed"
    return done.changed("data/a.json", "data/b.json")


CODE = (
    EvaluationTask(
        "fix-test",
        "In /workspace, `python3 -m unittest` fails. Fix the code in shop/ so that it passes and does what its "
        "docstrings say. Do not change the tests.",
        _shop,
        _prices_are_right,
        probe=f"from shop.pricing import discounted; print([discounted(*case) for case in {list(_PRICES)}])",
    ),
    EvaluationTask(
        "find-bug",
        "One function in /workspace/stats.py does not do what its docstring says. Write its name, and nothing else, to "
        "/workspace/answer.txt. Do not change stats.py.",
        lambda: encoded({"stats.py": _STATS}),
        _bug_is_named,
    ),
    EvaluationTask(
        "write-function",
        "Write the body of the function in /workspace/slugs.py, as its docstring says.",
        lambda: encoded({"slugs.py": _SLUGS}),
        _slugs_are_right,
        probe=f"from slugs import slug; print([slug(title) for title in {list(_SLUG_CASES)}])",
    ),
    EvaluationTask(
        "rename-function",
        "In /workspace, rename the function `load` of app/rows.py to `load_rows`, in its definition and wherever it is "
        "used. Change nothing else: other names, docstrings and texts stay as they are.",
        _app,
        _function_is_renamed,
    ),
)
