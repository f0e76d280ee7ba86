"""What a simple command does: the files it uses, the commands it runs; and a call while that is found out."""

import re
from collections.abc import Callable, Sequence

from gateway.policy.programs.paths import NO_FILES, Access, FileUse, located
from gateway.policy.shell_line import Directories, SimpleCommand
from gateway.policy.words import Opaque, Word, names

LIMIT_USES = 1024
"""How many files a command may name, and all commands of a line together."""
TOO_MANY = f"it names more files than {LIMIT_USES}; name fewer at a time"
UNREAD_REASON = "a line does not say which files it uses; use enforcement: kernel, or allow execute without argv"

_GO_BELOW = names("diff du find rg rsync tar tree zip")
_RECURSIVE = re.compile(r"-[A-Za-z]*[rR]|--recursive")
_RECURSIVE_LS = re.compile(r"-[A-Za-z0-9]*R|--recursive")


def any_file(why: str, *kinds: Access) -> tuple[FileUse, ...]:
    """Return the uses of a command that may read, list or write any file; all three where no kind is named."""
    return tuple(FileUse(None, kind, why=why) for kind in kinds or ("read", "list", "write"))


class Call:
    """A simple command, and what was found out about it so far.

    `name` is its program's without the directory, `words` are those after it, and it runs in one of `directories`.

    `opaque` says why it might run something that the line does not name, and is None where that is known. A program
    that is not described uses nothing: what it may do is the business of the argv rules. A wrapper runs `commands`, or
    the `script` of a shell; where it `replaces` itself by these it does nothing besides.
    """

    def __init__(self, words: Sequence[Word], directories: Directories) -> None:
        self.program = words[0]
        self.name = self.program.text.rpartition("/")[2]
        self.words = tuple(words[1:])
        self.directories = directories
        self.uses: dict[FileUse, None] = {}
        self.opaque: str | None = None
        self.commands: list[SimpleCommand] = []
        self.script: str | None = None
        self.replaces = False

    def check(self) -> None:
        """Raise Opaque if the call was refused."""
        if self.opaque is not None:
            raise Opaque(self.opaque)

    def run(self, words: Sequence[Word], *, anywhere: bool = False) -> None:
        """Take in a command that the call runs, where it runs itself or `anywhere`."""
        self.commands.append(SimpleCommand(tuple(words), None if anywhere else self.directories))

    def refuse(self, reason: str) -> None:
        """Say why the call might run another program. The first reason counts."""
        self.opaque = self.opaque or reason

    def lose(self, why: str, *kinds: Access) -> None:
        """Say why it is not known which files the call reads, lists or writes; all three where no kind is named.

        What its words may name is still seen, for rules that forbid it. With `kinds` these are its options: the caller
        takes in what else it names.
        """
        lost = [use for use in any_file(why, *kinds) if use not in self.uses]
        self.uses |= dict.fromkeys(lost)
        below = bool(lost) and self.goes_below
        for word in dict.fromkeys(self.words) if lost else ():
            is_option = word.text.startswith("-")
            text = word.text.partition("=")[2] or word.text[2:] if is_option else word.text
            if text and word.kind in ("literal", "glob") and (is_option or not kinds):
                for use in lost:
                    self.file(Word(text, word.kind), use.access, below=below, possible=True)

    @property
    def goes_below(self) -> bool:
        """Whether the program looks into the directories that it is given."""
        recursive = _RECURSIVE_LS if self.name in ("dir", "ls", "vdir") else _RECURSIVE
        return self.name in _GO_BELOW or any(recursive.match(word.text) for word in self.words)

    def file(
        self, word: Word, access: Access, *, below: bool = False, dash: bool = True, possible: bool = False
    ) -> None:
        """Take in a file. With `dash` the word `-` is the program's input or output and no file."""
        if word.kind == "literal" and ((dash and word.text == "-") or word.text in NO_FILES):
            return
        if len(self.uses) > LIMIT_USES:  # what is not looked at may be anything
            self.uses |= dict.fromkeys(any_file(TOO_MANY))
            return
        self.uses |= dict.fromkeys(located(word, self.directories, access, below=below, possible=possible))

    def files(self, words: Sequence[Word], access: Access, *, below: bool = False, dash: bool = True) -> None:
        """Take in words that are all used in one way."""
        for word in words:
            self.file(word, access, below=below, dash=dash)


Describe = Callable[[Call], None]
"""What looks at a call of one program."""
