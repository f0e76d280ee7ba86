"""A pseudo-terminal: the program's stdin, stdout and stderr in one, with a size.

The file system user of the server is the tool user, so the kernel makes the tool user the owner of the terminal. It
never becomes the server's controlling terminal: O_NOCTTY, and the server leads no session.
"""

import fcntl
import os
import struct
import termios

from sandbox.daemon.programs.pipes import Source
from sandbox.daemon.programs.process_io import ProcessInput, RateLimit, StreamOutput

_END_OF_FILE = b"\x04"


class TerminalInput(ProcessInput):
    """Typed input. It shares the terminal's descriptor, so a failed write does not close it."""

    def close(self) -> None:
        self.release()


class Terminal(Source):
    """Both ends of a pseudo-terminal; the program gets the slave."""

    def __init__(self, output: StreamOutput, rows: int, columns: int, rate_limit: RateLimit) -> None:
        fd, self._slave = os.openpty()
        super().__init__(fd)
        self._output = output
        self._rate_limit = rate_limit
        self.input = TerminalInput(fd)
        self.resize(rows, columns)

    def stdio(self) -> list[int]:
        return [self._slave]

    def close_tool_ends(self) -> None:
        """Let the terminal close with the last process that has it open."""
        # Called when the first process has ended: until then a program that closed its terminal may open /dev/tty.
        if self._slave >= 0:
            os.close(self._slave)
            self._slave = -1

    def resize(self, rows: int, columns: int) -> None:
        """Change the size; the kernel sends SIGWINCH to the foreground process group."""
        if self._fd >= 0:
            fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))  # and the pixels

    def end_of_file(self) -> bytes:
        """Return the character that ends the input: ^D unless the program chose another."""
        try:
            character = termios.tcgetattr(self._fd)[6][termios.VEOF]
        except (termios.error, ValueError):
            return _END_OF_FILE
        return character if isinstance(character, bytes) and character != b"\0" else _END_OF_FILE

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, 64 * 1024)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # EIO: no process has it open any more
        if data:
            self._output.add(data, len(data))
            self._rate_limit.took(self, len(data))
        else:
            self.close()

    def close(self) -> None:
        """Close both ends; the remaining processes get SIGHUP."""
        self.close_tool_ends()
        self.input.close()
        fd = self._release()
        if fd >= 0:
            os.close(fd)
            self._output.end()
