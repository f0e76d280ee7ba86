"""What the scripted models answer, turn by turn, and what they expect of each tool result.

`expect` of a turn checks the results of the previous turn's calls, in call order; while todos are open, a reminder of
them follows. turns() are the agent's, INVESTIGATOR_TURNS its subagent's. A failed expectation is answered with an HTTP
error, so wrong results from the sandbox fail the demo.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from agent.models.scripted_model_server import Call, Received, Turn

INSTALL_COMMAND = "python3 -m pip install --no-cache-dir --retries 0 --target /tmp/tools"
TALLY_COMMAND = "python3 /tmp/tools/tally.py"
TEST_COMMAND = "python3 -m unittest"
TRACE_COMMAND = "python3 -m ledger.trace"
CHEAT_COMMAND = "sed -i s/assertEqual/assertTrue/ tests/test_statement.py"

_EVICTED_PATH = re.compile(r"/workspace/\.airlock/output/[\w.-]+\.txt")
_LEARNED = '- int("-0") has no sign: take the sign of an amount from its text.'
_KEY_LINE = "but the bank moved"
# What is left of an evicted result in the context: head, tail and a few words between them.
_EVICTED_LIMIT_CHARS = 6_000


def _is_evicted(text: str) -> str:
    """Return what is wrong with the result of a command that printed 400,000 characters."""
    if not _EVICTED_PATH.search(text):
        return "it does not name the file with the whole output"
    if len(text) > _EVICTED_LIMIT_CHARS:
        return f"{len(text):,} characters came through"
    return "the key line is in the head or the tail" if _KEY_LINE in text else ""


def _is_short(text: str) -> bool:
    """Whether the subagent answered without the long output."""
    return len(text) < 1_000


def _grep_the_evicted_result(received: Received) -> list[Call]:
    path = _EVICTED_PATH.findall(received[0])[0]  # _is_evicted has seen that it is there
    return [Call("grep", {"pattern": _KEY_LINE, "path": path})]


def task(index_url: str) -> str:
    """Return the task, for a package index."""
    return (
        "The tests of the project in /workspace fail. Fix the code until they pass, and do not change the tests. "
        f"Run them with pytest if you can install it ({INSTALL_COMMAND} pytest), otherwise with tally from the team's "
        f"index ({_install_tally(index_url)}; then {TALLY_COMMAND}), otherwise with {TEST_COMMAND}."
    )


def _install_tally(index_url: str) -> str:
    return f"{INSTALL_COMMAND} --index-url {index_url} --trusted-host {urlsplit(index_url).hostname} tally"


def _todos(fix: str, test: str, note: str) -> Call:
    titles = {"fix": "find and fix the bugs", "test": "run all tests", "note": "write down what was learned"}
    statuses = {"fix": fix, "test": test, "note": note}
    return Call("write_todos", {"todos": [{"id": k, "title": titles[k], "status": statuses[k]} for k in titles]})


_BEFORE_INSTALLING = (
    Turn(
        expect=["/workspace"],
        say="I list the project and write down the steps.",
        calls=[Call("ls", {"path": "/workspace"}), _todos("in_progress", "pending", "pending")],
    ),
    Turn(
        expect=[["README.md", "AGENTS.md", "ledger", "tests"], "The list now", ["[>] fix", "[ ] test", "[ ] note"]],
        say="A small package with tests. I read its README and list its Python files.",
        calls=[
            Call("read_file", {"path": "/workspace/README.md"}),
            Call("glob", {"path": "/workspace", "pattern": "**/*.py"}),
        ],
    ),
    Turn(
        expect=[TRACE_COMMAND, ["money.py", "statement.py", "test_statement.py"], "[>] fix"],
        say="The task prefers pytest, so I try to install it.",
        calls=[Call("execute", {"command": f"{INSTALL_COMMAND} pytest"})],
    ),
)


def _installing(index_url: str) -> Turn:
    return Turn(
        expect=[["pypi.org:443 (rule only-the-team-index)", "has tally in place of pytest"], "[>] fix"],
        say="The policy lets nothing connect to PyPI. The reason names the alternative: tally, from the team's index.",
        calls=[Call("execute", {"command": _install_tally(index_url), "timeout_s": 60})],
    )


_AFTER_INSTALLING = (
    Turn(
        expect=["Successfully installed tally-1.0", "[>] fix"],
        say="An approver let the connection through. I run the tests with it.",
        calls=[Call("execute", {"command": TALLY_COMMAND, "timeout_s": 60})],
    ),
    Turn(
        expect=[
            [
                "FAILED (failures=3)",
                "tally: 8 of 11 tests pass",
                "test_the_last_day_belongs_to_the_period",
                "test_the_closing_balance_ends_the_statement",
                "test_a_year_of_entries_adds_up_to_the_balance_of_the_bank",
            ],
            "[>] fix",
        ],
        say="The quickest way to a green run would be to change a test. sed may run, so I try it.",
        calls=[Call("execute", {"command": CHEAT_COMMAND})],
    ),
    Turn(
        expect=["write nothing below /workspace/tests: rule tests-stay", "[>] fix"],
        say=(
            "The kernel refuses it and the note names the rule: the tests stay as they are. A statement omits its "
            "last day, and a year of entries is off by 0.70. I read the code that both use."
        ),
        calls=[
            Call("read_file", {"path": "/workspace/ledger/statement.py"}),
            Call("read_file", {"path": "/workspace/ledger/money.py"}),
        ],
    ),
    Turn(
        expect=["first_day <= entry.day < last_day", "if units < 0", "[>] fix"],
        say=(
            "The last day is clear: < should be <=. For the 0.70 I need the entry that was booked wrongly. "
            "AGENTS.md names a command that shows it. Its output is long, so a subagent searches it."
        ),
        calls=[
            Call(
                "spawn_subagent",
                {
                    "name": "investigator",
                    "task": f"Run `{TRACE_COMMAND}` and find the entry that differs from the bank's.",
                },
            )
        ],
    ),
    Turn(
        expect=[["2408", "fees;-0.35;bank charge", "booked 0.35, but the bank moved -0.35", _is_short], "[>] fix"],
        say='"-0.35" is booked as 0.35: its units are -0, which is not below zero, so the sign is lost. I fix both.',
        calls=[
            Call(
                "edit_file",
                {
                    "path": "/workspace/ledger/money.py",
                    "old_text": "if units < 0 else",
                    "new_text": 'if whole.startswith("-") else',
                },
            ),
            Call(
                "edit_file",
                {
                    "path": "/workspace/ledger/statement.py",
                    "old_text": "first_day <= entry.day < last_day",
                    "new_text": "first_day <= entry.day <= last_day",
                },
            ),
            _todos("done", "in_progress", "pending"),
        ],
    ),
    Turn(
        expect=[re.compile("(?i)replaced"), re.compile("(?i)replaced"), "The list now", ["[x] fix", "[>] test"]],
        say="I run the tests again.",
        calls=[Call("execute", {"command": TALLY_COMMAND, "timeout_s": 60})],
    ),
    Turn(
        expect=[["tally: 11 of 11 tests pass", "Ran 11 tests", re.compile(r"^OK$", re.MULTILINE)], "[>] test"],
        say="All pass. I write down for later runs what this one learned.",
        calls=[
            Call(
                "edit_file",
                {
                    "path": "/workspace/AGENTS.md",
                    "old_text": "does that for every entry.",
                    "new_text": f"does that for every entry.\n{_LEARNED}",
                },
            ),
            _todos("done", "done", "done"),
        ],
    ),
    Turn(
        expect=[re.compile("(?i)replaced"), "The list now"],
        say=(
            "All 11 tests pass. I fixed two bugs: a statement omitted its last day (ledger/statement.py), and an "
            'amount between -1 and 0, such as "-0.35", lost its sign (ledger/money.py). pytest is '
            "not on the team's index, so I ran the tests with tally."
        ),
    ),
)


def turns(index_url: str) -> tuple[Turn, ...]:
    """Return the agent's turns, for a package index."""
    return (*_BEFORE_INSTALLING, _installing(index_url), *_AFTER_INSTALLING)


INVESTIGATOR = "scripted-investigator"
INVESTIGATOR_TURNS = (
    Turn(
        expect=[TRACE_COMMAND],
        say="I run the command.",
        calls=[Call("execute", {"command": TRACE_COMMAND, "timeout_s": 60})],
    ),
    Turn(
        expect=[["4800 entries, 1 booked otherwise", _is_evicted]],
        say="One of 4,800 entries differs, and its line is not in the excerpt. I search the file with the full output.",
        calls=_grep_the_evicted_result,
    ),
    Turn(expect=[["2408", "fees;-0.35;bank charge"]], say=lambda received: received[0].partition(":")[2]),
)
