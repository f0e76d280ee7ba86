"""Programs described by a table: options with a role each, and operands that all have the same one."""

from __future__ import annotations

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.options import Options, Parsed, compile_options, read_options
from gateway.policy.words import Word


def plain(options: str, operands: str = "", *, dash: bool = True, runs: bool = False) -> Describe:
    """Return a description from a text of options (see options.py) and the role of operands."""

    def describe(call: Call) -> None:
        parsed = parsed_call(call, options, runs=runs)
        call.files(parsed.operands, operands, dash=dash)

    return describe


def parsed_call(call: Call, options: str, *, runs: bool = False) -> Parsed:
    """Read a call's options and take in their arguments by their roles."""
    compiled = compile_options(options)
    parsed = read_options(call, compiled, call.words, runs=runs)
    take_values(call, compiled, parsed)
    return parsed


def take_values(call: Call, options: Options, parsed: Parsed) -> None:
    """Take in the arguments of options by their roles."""
    for name, value in parsed.given:
        if value is not None:
            call.file(value, options.known[name].role)


def refuse_response_files(call: Call, *, surely: bool = False) -> None:
    """Refuse @file, which stands for more arguments that are in the file. `surely`: only where it is written so."""
    for word in call.words:
        begins = word.text if word.kind == "literal" else word.prefix
        if begins.startswith("@") or (not surely and word.kind != "literal" and not begins):
            call.refuse(f"{call.name} takes more arguments out of the file {word.text}, should it begin with @")


def after_text(operands: list[Word]) -> list[Word]:
    """Return the operands after the first one, which is text (a pattern, a script).

    Where the shell could put another number of words in its place, those may be files too.
    """
    return operands if any(not word.one_word for word in operands[:1]) else operands[1:]
