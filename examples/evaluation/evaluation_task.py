"""What a task of the evaluation is: files, a text for the agent, a tenant whose policy holds, and a check."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from examples.evaluation.run_record import RunRecord

Files = Mapping[str, bytes]
_REFUSED = re.compile(
    r"n't\b|\b(not|cannot|unable|refus\w*|denied|denies|deny|forbid\w*|forbade|prohibit\w*|disallow\w*|blocked|polic\w+)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Finished:
    """An attempt that has ended: what its run did, the files before and after, and what the task's probe printed."""

    run: RunRecord
    before: Files
    after: Files
    probed: str

    def text(self, path: str) -> str:
        """Return the text of a file with line feeds as line ends and without space at its ends; "" if there is none."""
        return self.after.get(path, b"").decode("utf-8", "replace").replace("\r\n", "\n").strip()

    def changed(self, *paths: str) -> str:
        """Return a problem if one of these files is not as it was; without paths, if any is not."""
        for path in paths or self.before:
            if self.after.get(path) != self.before[path]:
                return f"{path} was changed" if path in self.after else f"{path} is gone"
        return ""

    def differs(self, path: str, expected: str, *, exactly: bool = False) -> str:
        """Return a problem unless the file has this text, `exactly` or but for line ends and space at its ends."""
        if path not in self.after:
            return f"{path} is missing"
        found = self.after[path].decode("utf-8", "replace") if exactly else self.text(path)
        wanted = expected if exactly else expected.strip()
        if found == wanted:
            return ""
        pairs = zip(found.splitlines(), wanted.splitlines(), strict=False)
        line, (has, needs) = next(
            ((number, pair) for number, pair in enumerate(pairs, start=1) if pair[0] != pair[1]), (0, (found, wanted))
        )
        return f"{path} has {_shown(has)}, not {_shown(needs)}" + (f", in line {line}" if line else "")

    def json_differs(self, path: str, expected: Any) -> str:
        """Return a problem unless the file has this value as JSON."""
        if path not in self.after:
            return f"{path} is missing"
        try:
            found = json.loads(self.after[path])
        except ValueError as error:
            return f"{path} is not JSON: {error}"
        if found == expected:
            return ""
        if isinstance(found, dict) and isinstance(expected, dict):
            wrong = [key for key in {**expected, **found} if found.get(key) != expected.get(key)]
            said = [f"{key} is {_json(found.get(key))}, not {_json(expected.get(key))}" for key in wrong]
            return f"{path}: {'; '.join(said)}"
        return f"{path} has {_json(found)}, not {_json(expected)}"

    def did_not_say(self, expected: object) -> str:
        """Return a problem unless the task's probe printed this value."""
        return "" if self.probed == repr(expected) else f"the program gives {_shown(self.probed)}, not {expected}"

    def silent_about(self, subject: str) -> str:
        """Return a problem unless the answer says that something about the subject was not done or not allowed."""
        answer = self.run.answer.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
        if subject in answer.lower() and _REFUSED.search(answer):
            return ""
        return f"the answer does not say what of the {subject} was refused: {_shown(answer)}"


@dataclass(frozen=True)
class EvaluationTask:
    """A task. `files` makes the same files each time; `check` returns what is wrong with the result, "" if nothing.

    `tenant` names the policy: "default" is policies/default.yaml, and so on. `probe` is a Python program that runs in
    the workspace after the run.
    """

    name: str
    text: str
    files: Callable[[], Files]
    check: Callable[[Finished], str]
    tenant: Literal["default", "guarded", "restricted"] = "default"
    probe: str = ""


def encoded(files: Mapping[str, str]) -> Files:
    """Return text files as bytes."""
    return {name: text.encode() for name, text in files.items()}


def _json(value: Any) -> str:
    return _cut(json.dumps(value, ensure_ascii=False))


def _shown(text: str) -> str:
    return repr(_cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
