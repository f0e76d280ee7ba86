"""The entry point: `python3 -m sandbox.daemon [--socket PATH] [--workspace PATH] [--tool-uid N] ...`.

Started as root with the capabilities CHOWN, SETUID, SETGID and KILL, it creates the listening socket, gives the
workspace to the tool user and forks: this process stays root and becomes init; the child drops its privileges and
becomes the server.
"""

import gc
import os
import socket
import stat
import sys

from sandbox.daemon import lazy_module
from sandbox.daemon.settings import Settings, read_settings


class CannotStart(Exception):
    """The environment is unsuitable; str() says what to fix."""


def main(arguments: list[str]) -> int:
    """Run init in this process; return the exit status of the sandbox."""
    try:
        settings = read_settings(arguments, dict(os.environ))
        if os.geteuid() != 0:
            raise CannotStart(
                f"it must start as root to become other users, not as uid {os.geteuid()}; start the container with "
                "user 0 and the capabilities CHOWN, SETUID, SETGID and KILL"
            )
        lazy_module.install()
        _limit_processes(settings.process_limits)
        _prepare_workspace(settings)
        listener = _listen(settings)
    except (CannotStart, ValueError, OSError) as error:
        return _refused(error)
    return run(listener, settings)


def run(listener: socket.socket, settings: Settings) -> int:
    """Fork the server and be init; return the exit status of the sandbox."""
    from sandbox.daemon.supervisor.init import Init
    from sandbox.daemon.supervisor.launch import ToolIdentity, become_server

    try:
        control_init, control_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gc.freeze()  # keeps the collector from dirtying pages that init and server share
        server_pid = os.fork()
    except OSError as error:
        return _refused(error)
    if server_pid == 0:
        control_init.close()
        if settings.contained:
            become_server(settings)
        # After the fork: init must stay small, as each start forks.
        from sandbox.daemon.serving.server import serve

        serve(listener, control_server, settings)
        os._exit(1)
    control_server.close()
    listener.close()
    tool = ToolIdentity(
        settings.tool_uid,
        settings.tool_gid,
        own_filters=bool(settings.seccomp_filters),
        attributes=bool(settings.extended_attributes),
    )
    return Init(control_init, server_pid, tool).run()


def _refused(error: Exception) -> int:
    print(f"airlock daemon: cannot start: {error}", file=sys.stderr)
    return 78


def _limit_processes(limits: dict[str, int]) -> None:
    """Limit this process and all that it starts: by user where the kernel counts by user. No core is dumped then."""
    if not any(limits.values()):
        return
    import resource

    for name, wanted in {**limits, "CORE": 0}.items():
        if wanted or name == "CORE":
            kind = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(kind)[1]
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(kind, (most, most))


def _prepare_workspace(settings: Settings) -> None:
    try:
        state = os.lstat(settings.workspace)
        if not stat.S_ISDIR(state.st_mode):
            raise CannotStart(f"{settings.workspace} is not a directory; mount the workspace there")
        if (state.st_uid, state.st_gid) != (settings.tool_uid, settings.tool_gid):
            os.chown(settings.workspace, settings.tool_uid, settings.tool_gid)
    except OSError as error:
        raise CannotStart(
            f"{settings.workspace} cannot be given to the tool user: {error.strerror}; mount a writable volume there "
            "and leave the container the capability CHOWN"
        ) from error


def _listen(settings: Settings) -> socket.socket:
    directory = os.path.dirname(settings.socket)
    state = os.stat(directory)
    if state.st_mode & 0o007 or state.st_gid == settings.tool_gid or state.st_uid == settings.tool_uid:
        raise CannotStart(
            f"{directory} can be entered by tool code (mode {stat.S_IMODE(state.st_mode):o}, uid {state.st_uid}, gid "
            f"{state.st_gid}); make it mode 770 and owned by root and the gateway's group"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.unlink(settings.socket)
    except FileNotFoundError:
        pass
    mask = os.umask(0o117)
    try:
        listener.bind(settings.socket)
    finally:
        os.umask(mask)
    listener.listen(512)
    return listener


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
