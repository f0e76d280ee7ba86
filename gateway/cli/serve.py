"""`airlock serve`: the gateway."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal import DEFAULT_ADDRESS, EXIT_USAGE, Json, err, fail, print_json

if TYPE_CHECKING:
    from gateway.config import Config

_STOP_LIMIT_S = 30.0


def serve(
    *,
    config: Annotated[Path, typer.Option(help="Configuration file.")] = Path("airlock.yaml"),
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one.")] = DEFAULT_ADDRESS,
    ready_file: Annotated[Path | None, typer.Option(help="Gets the bound host:port once the gateway answers.")] = None,
    as_json: Json = False,
) -> None:
    """Run the gateway until SIGTERM or Ctrl-C; runs are then cancelled, sandboxes removed or kept (sandbox.on_stop)."""
    from gateway.config import Config
    from gateway.errors import AirlockError, from_sandbox
    from gateway.logging import set_up_logging
    from sandbox.errors import SandboxError

    set_up_logging()
    _raise_file_limit()
    try:
        asyncio.run(_serve(Config.load(config), listen, ready_file, as_json=as_json))
    except AirlockError as error:
        fail(str(error), EXIT_USAGE, as_json=as_json)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", EXIT_USAGE, as_json=as_json)
    except SandboxError as error:
        fail(str(from_sandbox(error)), EXIT_USAGE, as_json=as_json)


async def _serve(config: Config, listen: str, ready_file: Path | None, *, as_json: bool) -> None:
    from gateway.server import running_gateway

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, loop, stop)
    async with running_gateway(config, listen) as gateway:
        if ready_file is not None:
            await asyncio.to_thread(_write_atomically, ready_file, gateway.address)
        if as_json:
            print_json({"address": gateway.address})
        else:
            err.print(f"tenants: {len(gateway.tenants)}; their policies are read when they call", style="dim")
            err.print(f"[bold green]airlock[/] answers at [bold]{gateway.address}[/]; Ctrl-C stops it")
        await stop.wait()
        # Only the one that wrote it takes it away: a second gateway that did not start must leave it alone.
        if ready_file is not None:
            # Here and now: a thread of the pool may be busy with somebody's work, and stopping must not wait for that.
            ready_file.unlink(missing_ok=True)  # noqa: ASYNC240


def _raise_file_limit() -> None:
    """Take all the open files that the system grants: all tenants' connections and tool calls share them."""
    import structlog

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (OSError, ValueError) as error:  # some kernels take less than they say
        structlog.get_logger(__name__).warning("the limit of open files stays", limit=soft, error=str(error))
    structlog.get_logger(__name__).info("limit of open files", limit=soft)


def _stop(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Take a signal: the first one stops in order, within bounds; a second one stops at once."""
    if stop.is_set():
        _give_up()
    stop.set()
    loop.call_later(_STOP_LIMIT_S, _give_up)


def _give_up() -> None:
    err.print("stopped before everything was put away; the next start removes the sandboxes that were left")
    os._exit(1)


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
