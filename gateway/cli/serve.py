"""`airlock serve`: run the gateway, in one process or several."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from gateway.cli.command import Cli
from gateway.cli.terminal import DEFAULT_ADDRESS, err, fail, print_json
from gateway.support.version import airlock_version

if TYPE_CHECKING:
    from gateway.config.config import Config
    from gateway.serving.workers import Worker

# The time that a stop takes in addition to drain_s.
_STOP_LIMIT_S = 25.0
# Of the banner: the most names in a line, and the width of its first column.
_SHOWN, _NAME_CHARS = 6, 11


def serve(  # noqa: PLR0913 - one parameter per option of the command
    cli: Cli,
    *,
    config: Annotated[Path, typer.Option(help="Configuration file.")] = Path("airlock.yaml"),
    listen: Annotated[
        str, typer.Option(help="Address to listen on, as HOST:PORT; port 0 picks a free port.")
    ] = DEFAULT_ADDRESS,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Number of processes that serve the port.")] = 1,
    insecure_plaintext: Annotated[
        bool, typer.Option(help="Allow a non-loopback address without TLS, behind a proxy that encrypts.")
    ] = False,
    ready_file: Annotated[
        Path | None, typer.Option(help="File to write HOST:PORT to when the gateway is ready.")
    ] = None,
    http: Annotated[
        str,
        typer.Option(help="Address of the HTTP listener, as HOST:PORT, instead of the configuration's http.listen."),
    ] = "",
    http_ready_file: Annotated[
        Path | None, typer.Option(help="File to write the HTTP listener's HOST:PORT to when the gateway is ready.")
    ] = None,
    worker: Annotated[str, typer.Option(hidden=True)] = "",
    ready_fd: Annotated[int, typer.Option(hidden=True)] = -1,
) -> None:
    """Run the gateway until SIGTERM, SIGHUP or Ctrl-C.

    It then refuses new calls, gives active calls drain_s to finish, and removes or keeps sandboxes (sandbox.on_stop).
    """
    gc.disable()  # until the gateway is ready: what is imported stays, and looking for garbage takes 0.1 s
    files = _ReadyFiles(ready_file, http_ready_file)
    files.check()
    from gateway.config.config import Config
    from gateway.serving.listening import refuse_open_files, refuse_plaintext, refuse_taken, refuse_unconfined
    from gateway.telemetry.logging import set_up_logging

    set_up_logging()
    if worker:
        from gateway.serving.workers import supervised_worker

        this = supervised_worker(worker)
        _raise_file_limit()
        asyncio.run(_serve_as_worker(Config.load(config).with_http(http), listen, this, ready_fd))
        return
    loaded = Config.load(config)
    if not http and loaded.http.listen is not None and listen.endswith(":0"):
        http = f"{loaded.http.listen.rpartition(':')[0]}:0"  # several gateways can be started from one configuration
    loaded = loaded.with_http(http)
    for option, address in (("--listen", listen), ("--http", loaded.http.listen)):
        if address is not None:
            refuse_plaintext(loaded, address, insecure=insecure_plaintext, option=option)
            refuse_unconfined(loaded, address, workers=workers, option=option)
            refuse_taken(address, option)
    refuse_open_files(loaded)
    if workers > 1:
        options = ["--insecure-plaintext"] if insecure_plaintext else []
        asyncio.run(_supervise(cli, loaded, config, listen, workers, files, options))
    else:
        _raise_file_limit()
        asyncio.run(_serve(cli, loaded, listen, files))


async def _serve(cli: Cli, config: Config, listen: str, files: _ReadyFiles) -> None:
    from gateway.server import running_gateway

    stop = _stop_on_signals(config)
    async with running_gateway(config, listen) as gateway:
        metrics = [gateway.metrics] if gateway.metrics else []
        async with _ready(cli, config, Serving(gateway.address, gateway.http, metrics), files):
            await stop.wait()


async def _serve_as_worker(config: Config, listen: str, worker: Worker, ready_fd: int) -> None:
    """Serve as one of several workers; the parent reports readiness."""
    from gateway.server import running_gateway
    from gateway.serving.workers import PARENT_DIED

    stop = _stop_on_signals(config, PARENT_DIED)
    async with running_gateway(config, listen, worker) as gateway:
        os.write(ready_fd, f"{gateway.metrics or ''}\n".encode())
        os.close(ready_fd)
        await stop.wait()


async def _supervise(
    cli: Cli, config: Config, path: Path, listen: str, count: int, files: _ReadyFiles, options: list[str]
) -> None:
    """Run workers until a signal arrives; a second signal stops them immediately."""
    from gateway.serving.directory_locks import locked_state
    from gateway.serving.listening import reserved
    from gateway.serving.workers import Workers, worker_command

    with contextlib.ExitStack() as stack:
        stack.enter_context(locked_state(config.path(config.state_dir)))
        address, http = stack.enter_context(reserved(listen)), None
        if config.http.listen is not None:
            http = stack.enter_context(reserved(config.http.listen, "--http"))
            options = [*options, "--http", http]
        workers = Workers(worker_command(path, address, count, options), count)
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()

        def stop_them() -> None:
            stop.set()
            workers.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop_them)
        _on_hang_up(lambda: None if stop.is_set() else stop_them())
        try:
            await workers.start()
            gc.enable()
            if not stop.is_set():
                async with _ready(cli, config, Serving(address, http, workers.metrics, count), files):
                    await stop.wait()
        finally:
            await workers.stopped()


@dataclass(frozen=True)
class Serving:
    """What serves: the address of gRPC, that of HTTP if any, and the metrics addresses of the workers."""

    address: str
    http: str | None = None
    metrics: Sequence[str] = ()
    workers: int = 1


@dataclass(frozen=True)
class _ReadyFiles:
    """Where the addresses are written once the gateway serves."""

    address: Path | None
    http: Path | None

    def check(self) -> None:
        for option, path in (("--ready-file", self.address), ("--http-ready-file", self.http)):
            if path is not None and not os.access(path.absolute().parent, os.W_OK | os.X_OK):
                fail(f"{option} {path}: its directory does not exist or is not writable")

    @contextlib.contextmanager
    def written(self, serving: Serving) -> Iterator[None]:
        """Keep the files until the block ends; a second gateway that failed to start removes none."""
        given = [(self.http, serving.http), (self.address, serving.address)]
        wanted = [(path, address) for path, address in given if path is not None and address is not None]
        for path, address in wanted:
            _write_atomically(path, address)
        yield
        for path, _ in wanted:
            path.unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def _ready(cli: Cli, config: Config, serving: Serving, files: _ReadyFiles) -> AsyncIterator[None]:
    """Report that the gateway is ready, until the block ends."""
    with files.written(serving):
        if cli.as_json:
            print_json(
                {
                    "address": serving.address,
                    "http": serving.http,
                    "version": airlock_version(),
                    "workers": serving.workers,
                    "metrics": list(serving.metrics),
                }
            )
        else:
            err.print(banner(config, serving))
        yield


def _raise_file_limit() -> None:
    """Raise the limit of open files to its maximum; all tenants' connections and tool calls share it."""
    import structlog

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (OSError, ValueError) as error:  # some kernels accept less than they report
        structlog.get_logger(__name__).warning(
            "the limit of open files could not be raised", limit=soft, error=str(error)
        )
    structlog.get_logger(__name__).info("limit of open files", limit=soft)


def _stop_on_signals(config: Config, *repeatable: signal.Signals) -> asyncio.Event:
    """Return an event that the first signal sets; a second one, or a stop that takes too long, exits immediately.

    A `repeatable` signal may arrive again.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def begin() -> None:
        if not stop.is_set():
            stop.set()
            loop.call_later(_STOP_LIMIT_S + config.drain_s, _give_up)

    def begin_or_give_up() -> None:
        if stop.is_set():
            _give_up()
        begin()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, begin_or_give_up)
    for number in repeatable:
        loop.add_signal_handler(number, begin)
    _on_hang_up(begin)
    return stop


def _on_hang_up(begin: Callable[[], None]) -> None:
    """Stop in an orderly way when the terminal closes, however often it signals; under nohup, SIGHUP is ignored."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, begin)


def _give_up() -> None:
    err.print("stopped before cleanup was complete; the next start removes the remaining sandboxes")
    os._exit(1)


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def banner(config: Config, serving: Serving) -> Text:
    """Return what is printed when the gateway is ready."""
    from gateway.serving.listening import is_loopback
    from gateway.storage.connecting import shown

    engine = f"Docker at {config.sandbox.engine_url or 'DOCKER_HOST or the default socket'}"
    if config.sandbox.engine == "kubernetes":
        engine = f"Kubernetes, namespace {config.sandbox.kubernetes.namespace}"
    if config.sandbox.engine == "memory":
        engine = "memory: commands run unconfined on this machine"
    if config.tls is not None:
        transport = "TLS with client certificates" if config.tls.requires_certificates else "TLS"
    elif is_loopback(serving.address):
        transport = "plain text, loopback only"
    else:
        transport = "plain text beyond loopback: use a proxy that encrypts"
    lines = {
        "tenants": _few(list(config.tenants)),
        "database": shown(config.resolved_database_url()),
        "engine": engine,
        "workers": str(serving.workers),
        "transport": transport,
        "http": serving.http or "off",
        "metrics": _few(serving.metrics),
    }
    said = Text.assemble(("airlock", "bold green"), f" {airlock_version()} is listening on ", (serving.address, "bold"))
    said.append("; press Ctrl-C to stop")
    for name, value in lines.items():
        said.append("\n").append(f"{name:<{_NAME_CHARS}}", "dim").append(value)
    return said


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}" if names else "off"
