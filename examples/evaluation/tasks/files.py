"""Tasks on files: edit one place exactly, keep line ends, rename files with unusual names, search a tree."""

from __future__ import annotations

from examples.evaluation.evaluation_task import EvaluationTask, Files, Finished, encoded

_DEPLOY = """\
# Where the service listens.  8080 is the port of all environments, for now.
[development]
host = localhost
port = 8080

[staging]
host = staging.internal
port = 8080   ; behind the proxy
timeout = 8080

[production]
host = production.internal
port = 8080
"""


def _one_port_is_changed(done: Finished) -> str:
    expected = _DEPLOY.replace("port = 8080   ; behind", "port = 9090   ; behind")
    return done.differs("deploy.ini", expected, exactly=True)


_LETTER = (
    "To: Anna Maier\r\n"
    "\r\n"
    "Dear Anna Maier,\r\n"
    "\tAnna Maier's order of 12 March has left our house.  It arrives on Monday.\r\n"
    "Your contact: Joanna Maierhofer\r\n"
    "\r\n"
    "cc: A. Maier, Anna Maier"
)


def _line_ends_are_kept(done: Finished) -> str:
    if b"\n" in done.after.get("letter.txt", b"").replace(b"\r\n", b""):
        return "letter.txt does not keep its line ends, CR LF"
    return done.differs("letter.txt", _LETTER.replace("Anna Maier", "Eva Huber"), exactly=True)


_INBOX = {
    "plain.txt": "0",
    "to do.txt": "1",
    "two  spaces.txt": "2",
    "-draft v2.txt": "3",
    "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}\N{LATIN SMALL LETTER SHARP S}e an alle.txt": "4",
    "\u8a08\u753b \u6771\u4eac.md": "5",
    "it's $HOME; a *.txt": "6",
    "sub folder/a b.txt": "7",
}


def _names_are_right(done: Finished) -> str:
    expected = {f"inbox/{name.replace(' ', '_')}": content.encode() for name, content in _INBOX.items()}
    if done.after == expected:
        return ""
    missing, more = sorted(expected.keys() - done.after.keys()), sorted(done.after.keys() - expected.keys())
    return f"names that are missing: {missing}, that should not be there: {more}" if missing or more else done.changed()


def _services() -> Files:
    files = {}
    for number in range(48):
        # Some have it as a comment, with another number that begins with 0, or under another name.
        line = {7: "retries: 0", 23: "  retries:   0  # never", 41: "retries: 0"}.get(
            number, f"retries: {number % 5 + 1}"
        )
        decoy = {11: "# retries: 0", 31: "max_retries: 0", 47: "retries: 05"}.get(number, "")
        group = ("billing", "catalog", "search")[number % 3]
        text = f"name: service-{number}\ntimeout_s: {number}\n{decoy}\n{line if number != 47 else ''}\n"
        files[f"services/{group}/service-{number:02}/config.yaml"] = text
    files["services/README.md"] = "Set `retries: 0` in config.yaml to switch retries off.\n"
    return encoded(files)


def _found_are_right(done: Finished) -> str:
    wanted = {7: "catalog", 23: "search", 41: "search"}
    expected = sorted(f"services/{group}/service-{number:02}/config.yaml" for number, group in wanted.items())
    return done.differs("found.txt", "\n".join(expected)) or done.changed()


FILES = (
    EvaluationTask(
        "edit-one-place",
        "In /workspace/deploy.ini, set the port of staging to 9090. Every other byte stays as it is.",
        lambda: encoded({"deploy.ini": _DEPLOY}),
        _one_port_is_changed,
    ),
    EvaluationTask(
        "keep-line-ends",
        "In /workspace/letter.txt, replace the name Anna Maier by Eva Huber wherever it stands. Every other byte stays "
        "as it is, also the line ends.",
        lambda: encoded({"letter.txt": _LETTER}),
        _line_ends_are_kept,
    ),
    EvaluationTask(
        "rename-files",
        "Rename the files and directories below /workspace/inbox so that each space in a name becomes one underscore. "
        "Change nothing else of the names, and no content.",
        lambda: encoded({f"inbox/{name}": content for name, content in _INBOX.items()}),
        _names_are_right,
    ),
    EvaluationTask(
        "search-tree",
        "Some of the config.yaml files below /workspace/services set retries to 0. Write their paths to "
        "/workspace/found.txt, relative to /workspace, one in a line, sorted. A comment sets nothing. Change no other "
        "file.",
        _services,
        _found_are_right,
    ),
)
