"""A process that waits for an order to start a program, which is then one message and one exec.

It is the program start_tool of the bundle (deploy/start_tool.c), started with vfork: to fork the tool spawner itself
takes longer than a small program runs. It already has the spawner's OOM score, nice value, domain and filter, a session
of its own, and tool code's umask. It waits as root, so tool code can neither signal nor trace it, nor open its files in
/proc; it takes the call's group and the tool user with its order. It holds nothing but its end of a line and of a pipe,
and serves one order, so it shares nothing with the call before.
"""

import os
import socket
import sys
from _posixsubprocess import fork_exec
from array import array

from sandbox.daemon.supervisor.control_wire import CALL_GID_BASE
from sandbox.daemon.supervisor.launch import TOOL_UMASK, ToolIdentity, error_number

START_TOOL = os.fsencode(sys.prefix) + b"/bin/start_tool"


def can_wait(tool: ToolIdentity) -> bool:
    """Return whether there is such a program, and a user to become; launch.start() does without either."""
    return tool.contained and os.access(START_TOOL, os.X_OK)


class WaitingProcess:
    """The tool spawner's end. OSError if it cannot be started."""

    def __init__(self, tool: ToolIdentity, null: int) -> None:
        """`null` is a descriptor of /dev/null."""
        reading, writing = os.pipe()
        self._outcome = reading
        try:
            self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._pid = fork_exec(
                    [b"start_tool", b"%d" % tool.uid, b"%d" % tool.gid, b"%d" % CALL_GID_BASE],
                    [START_TOOL],
                    True,  # close all other descriptors
                    (writing,),
                    None,  # type: ignore[arg-type]  # the spawner's directory
                    [],
                    *(theirs.fileno(), -1, -1, writing, -1, null),  # the child's ends; the parent's are elsewhere
                    *(reading, writing),
                    True,  # restore the signals that Python ignores
                    True,  # new session
                    -1,
                    *(None, None, None),  # no other group or user yet
                    TOOL_UMASK,
                    None,  # type: ignore[arg-type]
                    True,  # with vfork
                )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)

    def take(self, order: bytes, fds: list[int]) -> tuple[int, int]:
        """Give it its order; return what launch.start() returns. OSError if it is gone, or could not be executed."""
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))
        try:
            with self._line:
                self._line.sendmsg([order], [rights], socket.MSG_DONTWAIT)
        except OSError as error:
            if failure := self.end():
                raise OSError(error_number(failure), "start_tool cannot be executed") from error
            raise
        return self._pid, self._outcome

    def end(self) -> bytes:
        """End it, and return why it could not be executed, if so."""
        self._line.close()
        os.waitpid(self._pid, 0)  # without its line it ends at once
        with open(self._outcome, "rb") as outcome:
            return outcome.read()
