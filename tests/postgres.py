"""A PostgreSQL server of the tests' own, and migrated databases on it that are empty whenever they are had.

Its programs are those of the machine (`deploy/test-tools` installs them), run as the user `postgres` where the tests
are root's, which PostgreSQL refuses to be; otherwise as the tests' user. It listens on a Unix socket in its own
directory, and ends with the tests. Where there are no programs a container stands in for it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from gateway.storage.connecting import connect
from gateway.storage.migration import NEWEST, upgrade

_START_S: Final = 30
_TEMPLATE: Final = "airlock_template"
_NUMBERS: Final = itertools.count(1)
# What a crash of the machine would cost is no loss here.
_SETTINGS: Final = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "shared_buffers": "64MB",
    "max_connections": "200",
    "autovacuum": "off",
}
_IMAGE: Final = "postgres:16-alpine"
# Making a database and dropping it takes a third of a second, emptying one that is unused a hundredth.
_EMPTY: Final = f"""
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid();
DO $$
DECLARE name text;
BEGIN
    IF (SELECT array_agg(version_num::text) FROM alembic_version) IS DISTINCT FROM ARRAY['{NEWEST}'] THEN
        RAISE EXCEPTION 'a test has changed the schema: it is to have a database of its own, with migrated=False';
    END IF;
    -- No trigger, and so no reference, stands in the way.
    SET LOCAL session_replication_role = replica;
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version' LOOP
        EXECUTE format('DELETE FROM %I', name);
    END LOOP;
    -- An attacker's work.
    FOR name IN SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE tgenabled = 'D' LOOP
        EXECUTE format('ALTER TABLE %s ENABLE TRIGGER ALL', name);
    END LOOP;
    FOR name IN SELECT sequencename FROM pg_sequences WHERE schemaname = 'public' LOOP
        EXECUTE format('ALTER SEQUENCE %I RESTART', name);
    END LOOP;
END $$
"""


class NoPostgres(Exception):
    """There is no PostgreSQL to be had; the text says what was missing."""


class PostgresServer:
    """A server that may be stopped and started again under its users, by the thread that the tests run in."""

    def __init__(self, address: str, start: Callable[[], None], stop: Callable[[], None]) -> None:
        self._address = address
        self.start = start
        self.stop = stop
        """Ends all sessions at once, and returns when it no longer answers."""
        self._unused: list[str] = []

    def url(self, database: str) -> str:
        """Return the URL of a database."""
        return self._address.format(database=database)

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Execute one statement outside of a transaction."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement.encode())

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + _START_S
        while True:
            try:
                return self.execute("SELECT 1")
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def make_template(self) -> None:
        """Migrate the database that the tests' databases are copies of."""
        self.execute(f"CREATE DATABASE {_TEMPLATE}")
        engine = connect(self.url(_TEMPLATE))
        upgrade(engine)
        engine.dispose()

    @contextlib.contextmanager
    def database(self, *, migrated: bool = True) -> Iterator[str]:
        """Have a database of its own until the block ends; gives its URL.

        A migrated one has its tables and no row in them, and is emptied for the next who wants one.
        """
        name = self._unused.pop() if migrated and self._unused else self._made(migrated=migrated)
        yield self.url(name)
        if migrated:
            self.execute(_EMPTY, name)
            self._unused.append(name)
        else:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _made(self, *, migrated: bool) -> str:
        name = f"airlock_{os.getpid()}_{next(_NUMBERS)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE if migrated else 'template0'}")
        return name


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Run a server until the block ends. Raises NoPostgres."""
    programs = _programs()
    with _cluster(programs) if programs else _container() as server:
        server.make_template()
        yield server


def _programs() -> Path | None:
    """Return the directory of the newest PostgreSQL of this machine."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


@contextlib.contextmanager
def _cluster(programs: Path) -> Iterator[PostgresServer]:
    # Not in pytest's directory, which is closed to other users; and a socket's path must be short.
    directory = Path(tempfile.mkdtemp(prefix="airlock-postgres-"))
    as_user: dict[str, Any] = {"cwd": directory}
    if os.geteuid() == 0:
        user = _unprivileged_user()
        os.chown(directory, user.pw_uid, user.pw_gid)
        as_user |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    process: subprocess.Popen[bytes] | None = None
    options = {**_SETTINGS, "unix_socket_directories": str(directory)}

    def start() -> None:
        nonlocal process
        with (directory / "log").open("ab") as log:
            argv = [str(programs / "postgres"), "-D", str(directory / "data"), *_flags(options)]
            # It ends with the thread that starts it, also when the tests are killed.
            guard = ["setpriv", "--pdeathsig", "INT"] if shutil.which("setpriv") else []
            process = subprocess.Popen([*guard, *argv], stdout=log, stderr=log, **as_user)
        server.wait()

    def stop() -> None:
        nonlocal process
        if process is not None:
            process.send_signal(2)  # SIGINT: its "fast" shutdown
            process.wait(_START_S)
            process = None

    server = PostgresServer(f"postgresql://postgres@/{{database}}?host={directory}", start, stop)
    try:
        subprocess.run(
            [programs / "initdb", "-D", "data", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-sync"],
            **as_user,
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            check=True,
            capture_output=True,
            timeout=120,
        )
        start()
        yield server
    finally:
        stop()
        shutil.rmtree(directory, ignore_errors=True)


def _flags(options: Mapping[str, str]) -> list[str]:
    return [flag for name, value in options.items() for flag in ("-c", f"{name}={value}")]


def _unprivileged_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise NoPostgres("PostgreSQL does not run as root, and there is no user postgres or nobody")


@contextlib.contextmanager
def _container() -> Iterator[PostgresServer]:
    """Have testcontainers start one; `stop` pauses nothing but ends it, `start` gives it the same data and port."""
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer

    testcontainers_config.ryuk_disabled = True  # one image less to pull: the block's end removes the container
    container = (
        DockerContainer(_IMAGE)
        .with_env("POSTGRES_HOST_AUTH_METHOD", "trust")
        .with_command(["postgres", *_flags({**_SETTINGS, "listen_addresses": "*"})])
        .with_bind_ports(5432, _free_port())
        .with_kwargs(labels={"airlock.test": "postgres"})
    )
    try:
        container.start()
    except Exception as error:
        raise NoPostgres(
            f"no PostgreSQL is installed (make test installs it as root), and {_IMAGE}: {error}"
        ) from error
    try:
        address = f"postgresql://postgres@{container.get_container_host_ip()}:{container.get_exposed_port(5432)}"
        wrapped: Any = container.get_wrapped_container()

        def start() -> None:
            wrapped.start()
            server.wait()

        server = PostgresServer(address + "/{database}", start, wrapped.stop)
        server.wait()
        yield server
    finally:
        container.stop()


def _free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server for all tests: who stops it starts it again."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running_postgres())
        except NoPostgres as missing:
            pytest.skip(str(missing))
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database with all tables, and nothing in them."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture(scope="session")
def _migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "airlock.db"
    engine = connect(f"sqlite:///{path}")
    upgrade(engine)
    engine.dispose()
    return path


@pytest.fixture
def sqlite_url(_migrated_file: Path, tmp_path: Path) -> str:
    """A file with all tables, and nothing in them."""
    return f"sqlite:///{shutil.copy(_migrated_file, tmp_path)}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A database with all tables and nothing in them, in turn of each kind: for what must be true of both."""
    if request.param == "sqlite":
        file: str = request.getfixturevalue("sqlite_url")
        return file
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables, in turn of each kind: for what changes the schema."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/empty.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.database(migrated=False) as url:
        yield url
