"""A model's text on a terminal, as it arrives."""

from __future__ import annotations

import re

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gateway.support.printable_text import printable


class Prose:
    """Prints text that arrives in pieces, wrapped between words at the console's width."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._word = ""
        self._column = 0
        self.empty = True

    def add(self, text: str) -> None:
        """Print all but the last word, which may continue in the next piece."""
        self.empty = False
        *words, self._word = re.split(r"(?<=\s)", self._word + printable(text).expandtabs(4))
        if len(self._word) > self._console.width:
            words, self._word = [*words, self._word], ""
        self._print("".join(self._broken(word) for word in words))

    def end(self) -> None:
        """Print the last word and end a line that was begun."""
        if self._word or self._column:
            self._print(self._broken(self._word))
            self._print("\n" if self._column else "")
            self._word, self._column = "", 0

    def _broken(self, word: str) -> str:
        breaks = self._column > 0 and self._column + cell_len(word.rstrip()) > self._console.width
        start = 0 if breaks else self._column
        self._column = 0 if word.endswith("\n") else start + cell_len(word)
        return f"\n{word}" if breaks else word

    def _print(self, text: str) -> None:
        self._console.print(Text(text), end="", soft_wrap=True)
