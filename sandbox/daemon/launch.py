"""Making one tool process. Runs in init, which is single-threaded.

subprocess does the fork, the switch of user and the exec in C, and reports the errno of whatever failed. Its books on
children are closed at once: init reaps by waitpid(-1), and a late waitpid of subprocess could take another child's end.
"""

import os
import signal
import subprocess

# Tool code dies first when the sandbox runs out of memory, the server and init last. A child inherits the score at the
# fork, and afterwards init could not write it: it owns no tool process and has no capability to override that.
_TOOL_OOM_SCORE_ADJ = b"800"
TOOL_UMASK = 0o022


class ToolIdentity:
    """As whom tool code runs."""

    __slots__ = ("gid", "uid")

    def __init__(self, uid: int, gid: int) -> None:
        self.uid = uid
        self.gid = gid


class Launcher:
    """Starts programs as the tool user."""

    def __init__(self, tool: ToolIdentity) -> None:
        self._tool = tool
        self._oom_score = _open_oom_score()
        self._own_oom_score_adj = os.pread(self._oom_score, 32, 0).strip() if self._oom_score >= 0 else b"0"

    def start(self, argv: list[bytes], env: list[bytes], cwd: bytes, stdio: tuple[int, int, int], gid: int) -> int:
        """Start a program in a new session and return its pid. OSError has the errno of whatever failed, exec included.

        `gid` is the supplementary group that marks the call.
        """
        stdin, stdout, stderr = stdio
        self._set_oom_score(_TOOL_OOM_SCORE_ADJ)
        try:
            process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd,
                env=dict(item.split(b"=", 1) for item in env),
                start_new_session=True,
                user=self._tool.uid,
                group=self._tool.gid,
                extra_groups=[gid],
                umask=TOOL_UMASK,
            )
        finally:
            self._set_oom_score(self._own_oom_score_adj)
        process.returncode = 0  # subprocess never waits for it again
        return process.pid

    def _set_oom_score(self, value: bytes) -> None:
        if self._oom_score >= 0:
            try:
                os.pwrite(self._oom_score, value, 0)
            except OSError:
                self._oom_score = -1  # the limits of the sandbox hold all the same


def _open_oom_score() -> int:
    try:
        return os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1  # gVisor has none


def drop_to_tool(tool: ToolIdentity, gid: int) -> None:
    """Make this process the tool user for good, as Launcher does, without executing anything."""
    signal.set_wakeup_fd(-1)
    os.umask(TOOL_UMASK)
    os.setgroups([gid])
    os.setresgid(tool.gid, tool.gid, tool.gid)
    os.setresuid(tool.uid, tool.uid, tool.uid)
