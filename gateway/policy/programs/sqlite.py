"""sqlite3: SQL that only reads the database. The program has functions and commands that open files and run others."""

from __future__ import annotations

import re

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.paths import leads_with_dash
from gateway.policy.words import Word

_FLAGS = frozenset(
    """-header -noheader -csv -json -column -line -list -markdown -table -box -html -tabs -quote -ascii -bail -batch
    -readonly -echo -stats -safe -version -help""".split()  # noqa: SIM905 - one name a line would take twenty
)
_TEXTS = frozenset({"-separator", "-nullvalue", "-newline"})
_LOOKS = re.compile(r"\.(tables|schema|headers?|mode|dump|indexes|databases|width|show)( [A-Za-z0-9_%*. -]+)?")
_READS = re.compile(r"\s*(select|values|explain|with)\b", re.IGNORECASE)
_PRAGMA = re.compile(
    r"\s*pragma\s+(main\s*\.\s*)?(table_x?info|table_list|index_list|index_x?info|foreign_key_list|database_list"
    r"|user_version|integrity_check|quick_check|page_count|page_size|encoding|journal_mode)"
    r"\s*(\(\s*(~|[A-Za-z0-9_]+)\s*\)\s*)?",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|--|/\*""")
_TOKEN = re.compile(r"[A-Za-z0-9_$\x80-\U0010ffff]+|[^\s]")
_SOMETHING = "~"  # what stands for anything quoted
# Tables and functions of the program, not of the language, that reach files; a table is one without brackets too.
_FILES = re.compile(r"readfile|writefile|load_extension|fts3_tokenizer|zipfile|fsdir|sqlite_dbpage", re.IGNORECASE)
_CHANGES = re.compile(r"\b(attach|into|insert|update|delete)\b", re.IGNORECASE)
_FUNCTIONS = frozenset(
    """abs avg cast changes char coalesce concat concat_ws count cume_dist date datetime dense_rank exists filter
    first_value format glob group_concat hex ifnull iif instr json json_array json_array_length json_each json_extract
    json_group_array json_group_object json_object json_tree json_type json_valid julianday lag last_insert_rowid
    last_value lead length like lower ltrim max min nth_value ntile nullif over percent_rank printf quote random rank
    replace round row_number rtrim sign sqlite_version strftime string_agg substr substring sum time timediff total trim
    typeof unicode unixepoch upper

    all and as between by case distinct else except from group having in intersect is join key limit not null offset on
    or order partition select then union using values when where with""".split()  # noqa: SIM905 - as above
)


def _sqlite(call: Call) -> None:  # noqa: C901 - one case per argument form of sqlite3
    operands: list[Word] = []
    words = iter(call.words)
    for word in words:
        option = "-" + word.text.lstrip("-")
        if word.kind != "literal" and leads_with_dash(word):
            call.refuse(f"{word.text} could become an option of sqlite3; write ./ before it")
        if word.kind != "literal" or not word.text.startswith("-"):
            operands.append(word)
        elif option in _TEXTS:
            value = next(words, None)
            if value is None or not value.one_word:
                call.refuse(f"sqlite3 {option} has an argument that is not one word")
        elif option not in _FLAGS:
            call.refuse(f"sqlite3 is used with {word.text}, which may open a file or run a program")
    for role in ("read", "write"):
        for word in operands[:1]:
            if word.text not in ("", ":memory:"):
                call.file(word, role, dash=False)
    for word in operands[1:]:
        if word.kind != "literal":
            call.refuse("sqlite3 runs SQL that is not literal")
        elif not _LOOKS.fullmatch(word.text) and (problem := sql_problem(word.text)) is not None:
            call.refuse(f"sqlite3 runs SQL that may open a file or run a program: {problem}")
    if len(operands) < 2:
        call.refuse("sqlite3 takes its commands from its input, which can run programs")
    if any(word.kind == "literal" and word.text.startswith("file:") for word in operands[:1]):
        call.refuse("sqlite3 opens a file by a URI")


def sql_problem(sql: str) -> str | None:
    """Return why SQL may do more than read the database, None when it does not."""
    if sql.rfind("[") > sql.rfind("]"):
        return "a bracket is not closed"
    if re.search(r"^\s*\.", sql, re.MULTILINE):
        return "a line of it begins with a dot"
    plain = _QUOTED.sub(lambda match: match.group() if match.group() in ("--", "/*") else _SOMETHING, sql)
    if any(mark in plain for mark in ("--", "/*", "'", '"', "`", "[")) or _SOMETHING in _QUOTED.sub("", sql):
        return "it has a comment, a ~, or a quote that is not closed"
    found = _FILES.search(sql) or _CHANGES.search(plain)
    if found:
        return f"{found.group()!r} is in it"
    for statement in plain.split(";"):
        if not statement.strip() or _PRAGMA.fullmatch(statement):
            continue
        if not _READS.match(statement):
            return f"{statement.strip()[:20]!r} is not known as a statement that only reads"
        if (name := _unknown_function(statement)) is not None:
            return f"the function {name[:30]!r} is not known here"
    return None


def _unknown_function(statement: str) -> str | None:
    """Return a name before a bracket that is no known function. `with name(columns) as (...)` is none."""
    before, last = "", ""
    for piece in _TOKEN.findall(statement):
        named = last == _SOMETHING or last[-1:].isalnum() or last[-1:] in ("_", "$")
        if piece == "(" and named and last.lower() not in _FUNCTIONS and before.lower() not in ("with", "recursive"):
            return last
        before, last = last, piece
    return None


PROGRAMS: dict[str, Describe] = {"sqlite3": _sqlite}
