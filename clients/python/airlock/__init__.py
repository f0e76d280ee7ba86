"""Airlock's Python client.

    async with Client("127.0.0.1:7443", api_key) as airlock:
        result = await airlock.call_tool("execute", {"command": "true", "timeout_s": 5}, thread="t1")
        await airlock.write_file("t1", "/workspace/a.bin", data)
        result = await airlock.run_program(["wc", "-c"], thread="t1", stdin=data)
        async for event in airlock.run("fix the tests", thread="t1"):
            ...

Every failure is a class of airlock.errors: NotFound, PermissionDenied, IsADirectory, InvalidPath, Unauthenticated, ...
A tool call that was refused or failed is a result, not an exception.

Start at `client.py`. Imports grpcio and protobuf alone; `v1/` has the messages of the public contract.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airlock.exports import *  # noqa: F403 - it lists them

_EXPORTS = "airlock.exports"


def __getattr__(name: str) -> Any:
    """Return a name of the package: who needs only `airlock.errors` does not wait for grpc and protobuf."""
    found = None if name.startswith("_") else getattr(importlib.import_module(_EXPORTS), name, None)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


def __dir__() -> list[str]:
    return [name for name in dir(importlib.import_module(_EXPORTS)) if not name.startswith("_")]
