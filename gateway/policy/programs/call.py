"""What a simple command does: the files it uses, the commands it runs; and a call while that is found out."""

from collections.abc import Callable, Sequence
from typing import cast

from gateway.policy.programs.paths import NO_FILES, Access, FileUse, located
from gateway.policy.shell_line import Directories, SimpleCommand
from gateway.policy.words import Opaque, Word

_WILD = frozenset("*?[")
LIMIT_USES = 1024
"""How many files a command may name, and all commands of a line together."""
TOO_MANY = f"it names more files than {LIMIT_USES}; name fewer at a time"
UNREAD_REASON = "a line does not say which files it uses; use enforcement: kernel, or allow execute without argv"


ANY_FILE = (FileUse(None, "read"), FileUse(None, "write"))


class Call:
    """A simple command, and what was found out about it so far.

    `name` is its program's without the directory, `words` are those after it, and it runs in one of `directories`.

    `opaque` says why it might run something that the line does not name; `files_unknown` why files might be missing in
    `uses`, which matters only where the line is read for these. Both are None where all is known. A program that is
    not described uses nothing: what it may do is the business of the argv rules. A wrapper runs `commands`, or the
    `script` of a shell; where it `replaces` itself by these it does nothing besides.
    """

    def __init__(self, words: Sequence[Word], directories: Directories) -> None:
        self.program = words[0]
        self.name = self.program.text.rpartition("/")[2]
        self.words = tuple(words[1:])
        self.directories = directories
        self.uses: dict[FileUse, None] = {}
        self.opaque: str | None = None
        self.files_unknown: str | None = None
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

    def lose(self, reason: str) -> None:
        """Say why it is not known which files the call uses. The first reason counts."""
        self.files_unknown = self.files_unknown or f"{self.name}: {reason}"

    def file(self, word: Word, role: str, *, dash: bool = True, possible: bool = False) -> None:
        """Take in a word in its role. With `dash` the word `-` is the program's input or output and no file."""
        if role in ("", "names"):
            self.unknown(role)
            return
        if word.kind == "literal" and ((dash and word.text == "-") or word.text in NO_FILES):
            return
        if self._is_full():
            return
        access, below = _access(role), role.endswith("_below")
        for use in located(word, self.directories, access, below=below, possible=possible):
            self.uses[use] = None

    def files(self, words: Sequence[Word], role: str, *, dash: bool = True) -> None:
        """Take in words that all have one role."""
        for word in words:
            self.file(word, role, dash=dash)

    def inside(self, directory: Word, word: Word, role: str, *, possible: bool) -> None:
        """Take in what has the name of `word` in a directory, which `possible` says may also be none."""
        name = word.text.rstrip("/").rpartition("/")[2]
        kind = word.kind
        # Of a pattern the last part says the name, unless a bracket goes over slashes.
        wild = kind == "glob" and "]" not in name and not _WILD & set(directory.text)
        if directory.kind != "literal" or not (kind == "literal" or wild) or name in ("", ".", ".."):
            self.file(directory, f"{role.removesuffix('_below')}_below", dash=False, possible=possible)
        else:
            self.file(Word(f"{directory.text}/{name}", kind), role, dash=False, possible=possible)

    def unknown(self, role: str) -> None:
        """Take in a use of which nothing but its role is known."""
        if role == "names":
            self.lose("it takes the names of files out of a file")
        elif role:
            self.uses[FileUse(None, _access(role))] = None

    def _is_full(self) -> bool:
        """Return whether more is named than is worth judging one by one: what is not looked at may be anything."""
        if len(self.uses) <= LIMIT_USES:
            return False
        self.lose(TOO_MANY)
        self.unknown("read")
        self.unknown("write")
        return True


def _access(role: str) -> Access:
    return cast(Access, role.removesuffix("_below"))


Describe = Callable[[Call], None]
"""What looks at a call of one program."""
