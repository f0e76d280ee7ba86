"""The client of network.py, run in a sandbox and in a container on a bridge: standard library only.

    network_client.py times HOST:PORT HOW CA COUNT   milliseconds of COUNT requests, each on a new connection
    network_client.py rate HOST:PORT HOW CA BYTES    MiB/s of one download
    network_client.py hold HOST:PORT HOW CA COUNT    keep COUNT connections open until the file `stop` is there

HOW is tls or http. With HTTP_PROXY in the environment a request goes there: by CONNECT for tls, else in absolute form.
Prints JSON. CA is the file of the authorities to trust; `$NAME` is that of an environment variable.
"""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import ssl
import sys
import time

_WARMUP = 2
_HELD_AT_MOST_S = 120


def _proxy() -> tuple[str, int] | None:
    host, _, port = os.environ.get("HTTP_PROXY", "").removeprefix("http://").partition(":")
    return (host, int(port)) if port else None


class Client:
    """Makes connections to one server, through the proxy where there is one."""

    def __init__(self, address: str, how: str, ca_file: str) -> None:
        self._address = address
        host, port = address.split(":")
        self._server = host, int(port)
        path = os.environ[ca_file[1:]] if ca_file.startswith("$") else ca_file
        self._tls = ssl.create_default_context(cafile=path) if how == "tls" else None

    def connect(self) -> tuple[http.client.HTTPConnection, str]:
        """Return a connection, not yet open, and what goes before the path of a request on it."""
        proxy = _proxy()
        host, port = proxy or self._server
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=60), f"http://{self._address}" if proxy else ""
        connection = http.client.HTTPSConnection(host, port, timeout=60, context=self._tls)
        if proxy:
            connection.set_tunnel(*self._server)
        return connection, ""

    def get(self, size: int) -> float:
        """Download so many bytes on a new connection; return how long that took, in seconds."""
        buffer = memoryview(bytearray(256 * 1024))
        started = time.perf_counter()
        connection, prefix = self.connect()
        connection.request("GET", f"{prefix}/{size}", headers={"Connection": "close"})
        answer = connection.getresponse()
        received = 0
        while count := answer.readinto(buffer):
            received += count
        connection.close()
        took_s = time.perf_counter() - started
        if (answer.status, received) != (200, size):
            raise SystemExit(f"{answer.status}, {received} of {size} bytes")
        return took_s


def _hold(client: Client, count: int) -> None:
    held = []
    for _ in range(count):
        connection, _ = client.connect()
        connection.connect()
        held.append(connection)
    pathlib.Path("held").write_text(str(len(held)), encoding="ascii")
    ends = time.monotonic() + _HELD_AT_MOST_S
    while not pathlib.Path("stop").exists() and time.monotonic() < ends:
        time.sleep(0.1)


def main() -> None:
    """Do what the arguments say."""
    what, address, how, ca_file, number = sys.argv[1:]
    client = Client(address, how, ca_file)
    if what == "times":
        taken_s = [client.get(100) for _ in range(_WARMUP + int(number))][_WARMUP:]
        print(json.dumps([took_s * 1000 for took_s in taken_s]))
    elif what == "rate":
        print(json.dumps(int(number) / 2**20 / client.get(int(number))))
    else:
        _hold(client, int(number))


if __name__ == "__main__":
    main()
