"""A real gateway for tests and benchmarks: `airlock init`, then `airlock serve` as a process of its own."""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests import warm_interpreter
from tests.made_instances import record_instance

if TYPE_CHECKING:
    from sqlalchemy import Engine, Executable, Row

T = TypeVar("T")
GatewayProcess = subprocess.Popen[bytes] | warm_interpreter.WarmProcess
_READY_S = 120
_STOP_S = 60
_UNCHANGED = (sys.executable, "-m", "gateway.cli")
AIRLOCK = _UNCHANGED


@functools.cache
def _compile_once() -> None:
    """Compile the gateway, whose every process else does so anew where PYTHONDONTWRITEBYTECODE is set."""
    for package in ("agent", "clients/python/airlock", "sandbox", "gateway"):
        compileall.compile_dir(Path(__file__).parents[1] / package, quiet=1)


def airlock(
    *arguments: str, env: Mapping[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run the CLI in this process, which saves the second that a cold interpreter needs, and return what it printed."""
    from typer.testing import CliRunner

    from gateway.cli.main import app

    with ThreadPoolExecutor(1) as thread:  # a command runs its own event loop
        result = thread.submit(CliRunner().invoke, app, arguments, env=env).result(120)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    done = subprocess.CompletedProcess([*AIRLOCK, *arguments], result.exit_code, result.stdout, result.stderr)
    if check:
        done.check_returncode()
    return done


def airlock_process(
    *arguments: str, env: Mapping[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run the CLI as a process of its own, as a shell does, and return what it printed."""
    _compile_once()
    return subprocess.run(
        [*AIRLOCK, *arguments],
        capture_output=True,
        text=True,
        check=check,
        timeout=120,
        env={**os.environ, **(env or {})},
    )


@dataclass(frozen=True)
class Home:
    """A directory made by `airlock init`, and its first key."""

    config: Path
    key: str

    @property
    def instance(self) -> str:
        """The id that labels this gateway's containers."""
        return (self.config.parent / "state" / "instance").read_text(encoding="ascii")

    @property
    def database_url(self) -> str:
        """Where the gateway keeps its state."""
        from gateway.config.config import Config

        return Config.load(self.config).resolved_database_url()

    def store_in(self, url: str) -> None:
        """Have it keep its state in another database, a migrated one, which gets the keys that `init` has made."""
        from sqlalchemy import insert, select

        from gateway.storage.tables import api_keys

        made = self._selected(select(api_keys))
        with _connected(url) as engine, engine.begin() as connection:
            connection.execute(insert(api_keys), [dict(row._mapping) for row in made])
        self.configure(database_url=url)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return what a query finds in its database, whichever that is."""
        from sqlalchemy import text

        return [tuple(row) for row in self._selected(text(query))]

    def write(self, statement: str, **values: Any) -> None:
        """Change a row behind the gateway's back; `values` are bound by their names."""
        from sqlalchemy import text

        with _connected(self.database_url) as engine, engine.begin() as connection:
            connection.execute(text(statement), values)

    def _selected(self, query: Executable) -> Sequence[Row[Any]]:
        with _connected(self.database_url) as engine, engine.connect() as connection:
            return connection.execute(query).all()

    def add_tenant(self, name: str, policy: str | None = None) -> str:
        """Configure another tenant and return a key of it."""
        import yaml

        document = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        path = self.config.parent / "policies" / f"{name}.yaml"
        path.write_text(policy or (path.parent / "default.yaml").read_text(encoding="utf-8"), encoding="utf-8")
        document["tenants"][name] = {"policy": f"policies/{name}.yaml"}
        self.config.write_text(yaml.safe_dump(document), encoding="utf-8")
        return self.make_key(name)

    def make_key(self, tenant: str, *scopes: str) -> str:
        """Make a key of a tenant, or of an operator for "", in this process: `airlock key create` takes a second."""
        from gateway.cli.local_admin import local_admin
        from gateway.config.config import Config

        async def make() -> str:
            async with local_admin(Config.load(self.config), "test") as admin:
                return (await admin.create_key(tenant, scopes=scopes, name="test")).secret

        return _in_a_loop_of_its_own(make)

    def configure(self, **sections: Any) -> None:
        """Merge sections into the configuration."""
        import yaml

        document = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        for name, section in sections.items():
            document[name] = {**document.get(name, {}), **section} if isinstance(section, dict) else section
        self.config.write_text(yaml.safe_dump(document), encoding="utf-8")


@contextlib.contextmanager
def _connected(url: str) -> Iterator[Engine]:
    from gateway.storage.connecting import connect

    engine = connect(url)
    try:
        yield engine
    finally:
        engine.dispose()


def _in_a_loop_of_its_own(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end, also where this thread has a loop that runs."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result(120)


def make_home(directory: Path) -> Home:
    """Do in a directory what `airlock init` does."""
    from gateway.cli.init import make_starter

    made = _in_a_loop_of_its_own(lambda: make_starter(directory))
    home = Home(made.config, made.key)
    # No pool: what a test counts is what it asked for. No HTTP: most tests need none.
    home.configure(sandbox={"keep_workspaces": False, "pool_limit": 0}, http={"listen": None})
    return home


@dataclass(frozen=True)
class Served:
    """A gateway process that answers."""

    address: str
    process: GatewayProcess

    def kill(self) -> None:
        """Kill it without a chance to clean up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(_STOP_S)


@contextlib.contextmanager
def served(
    home: Home, env: Mapping[str, str] | None = None, *options: str, within: Sequence[str] = ()
) -> Iterator[Served]:
    """Run `airlock serve` until the block ends, then stop it with SIGTERM and see that it exits 0.

    `within` is a command that execs the one that follows it.
    """
    ready = home.config.parent / "ready"
    ready.unlink(missing_ok=True)
    _compile_once()
    log_path = home.config.parent / "serve.log"
    words = ["serve", "--config", str(home.config), "--listen", "127.0.0.1:0", "--ready-file", str(ready), *options]
    environment = {**os.environ, **(env or {})}
    process: GatewayProcess
    with log_path.open("ab") as log:
        # A benchmark measures a cold one, and what changes a gateway does so before it is imported.
        if within or AIRLOCK != _UNCHANGED or "PYTEST_VERSION" not in os.environ:
            process = subprocess.Popen([*within, *AIRLOCK, *words], stdout=log, stderr=log, env=environment)
        else:
            process = warm_interpreter.start("gateway.cli", words, output=log.fileno(), environment=environment)
    try:
        deadline = time.monotonic() + _READY_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the gateway did not start:\n{log_path.read_text(encoding='utf-8')}")
            time.sleep(0.02)
        record_instance(home.instance)
        yield Served(ready.read_text(encoding="utf-8"), process)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                code = process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            if code:
                raise RuntimeError(f"the gateway exited {code}:\n{log_path.read_text(encoding='utf-8')}")
