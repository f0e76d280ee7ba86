"""The daemon's settings: `--name=value` arguments, each also available as the variable AIRLOCK_NAME."""

DEFAULTS = {
    "socket": "/run/airlock/daemon.sock",
    "workspace": "/workspace",
    "tool-uid": "10001",
    "tool-gid": "10001",
    "daemon-uid": "10002",
    # Limits of the workspace, and what must stay free on its disk; 0 is no limit.
    "workspace-bytes": "0",
    "workspace-files": "0",
    "disk-reserve-bytes": "0",
    # 1 lets tool code install seccomp filters.
    "seccomp-filters": "0",
    # 0 keeps tool code from setting extended attributes, for an engine that cannot limit the files of a tmpfs.
    "extended-attributes": "1",
    # Limits of each process, for an engine that cannot set them from outside; 0 leaves what it has.
    "open-files": "0",
    "processes": "0",
    "file-bytes": "0",
}


_AMOUNTS = ("workspace-bytes", "workspace-files", "disk-reserve-bytes", "seccomp-filters", "extended-attributes")
_PROCESS_LIMITS = {"open-files": "NOFILE", "processes": "NPROC", "file-bytes": "FSIZE"}


class Settings:
    """The socket, the users of tool code and server, and the limits of the workspace; 0 is no limit.

    `users` are the tool user's uid and gid, and the server's uid.
    """

    def __init__(
        self,
        socket: str,
        workspace: str,
        users: tuple[int, int, int],
        *,
        workspace_bytes: int = 0,
        workspace_files: int = 0,
        disk_reserve_bytes: int = 0,
        seccomp_filters: int = 0,
    ) -> None:
        self.socket = socket
        self.workspace = workspace
        self.tool_uid, self.tool_gid, self.daemon_uid = users
        self.workspace_bytes = workspace_bytes
        self.workspace_files = workspace_files
        self.disk_reserve_bytes = disk_reserve_bytes
        self.seccomp_filters = seccomp_filters
        self.extended_attributes = 1
        self.process_limits: dict[str, int] = {}  # by the names of RLIMIT_*; 0 leaves one as it is

    @property
    def contained(self) -> bool:
        """Whether tool code has a user of its own; false only in engines/local, whose ids are -1."""
        return self.tool_uid >= 0


def read_settings(arguments: list[str], environment: dict[str, str]) -> Settings:
    """Return the settings; arguments override the environment, which overrides defaults. ValueError if invalid."""
    variables = {name: "AIRLOCK_" + name.upper().replace("-", "_") for name in DEFAULTS}
    values = {name: environment.get(variables[name], default) for name, default in DEFAULTS.items()}
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).removeprefix("--").partition("=")
        if name not in DEFAULTS:
            raise ValueError(f"unknown argument --{name}; there are " + ", ".join("--" + known for known in DEFAULTS))
        if not equals:
            if not rest:
                raise ValueError(f"--{name} needs a value, such as --{name} {DEFAULTS[name]}")
            value = rest.pop(0)
        values[name] = value
    ids = []
    for name in ("tool-uid", "tool-gid", "daemon-uid"):
        if not values[name].isdecimal() or not 0 < int(values[name]) < 2**30:
            raise ValueError(f"--{name} must be a number from 1 to {2**30 - 1}, not {values[name]!r}: never root")
        ids.append(int(values[name]))
    tool_uid, tool_gid, daemon_uid = ids
    if tool_uid == daemon_uid:
        raise ValueError("--tool-uid and --daemon-uid must differ, or tool code could kill and read the daemon")
    amounts = {}
    for name in (*_AMOUNTS, *_PROCESS_LIMITS):
        if not values[name].isdecimal() or int(values[name]) >= 2**62:
            raise ValueError(f"--{name} must be a number from 0 (no limit) to {2**62 - 1}, not {values[name]!r}")
        amounts[name.replace("-", "_")] = int(values[name])
    for name in ("socket", "workspace"):
        if not values[name].startswith("/"):
            raise ValueError(f"--{name} must be an absolute path, not {values[name]!r}")
    workspace = values["workspace"].rstrip("/") or "/"
    limits = {limit: amounts.pop(name.replace("-", "_")) for name, limit in _PROCESS_LIMITS.items()}
    attributes = amounts.pop("extended_attributes")
    settings = Settings(values["socket"], workspace, (tool_uid, tool_gid, daemon_uid), **amounts)
    settings.process_limits = limits
    settings.extended_attributes = attributes
    return settings
