"""A proxy that adds a key to each request, for programs that send none."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_OF_A_CONNECTION = {"connection", "transfer-encoding", "content-length", "keep-alive"}


@contextmanager
def key_proxy(address: str, key: str) -> Iterator[str]:
    """Yield the HOST:PORT of a proxy for the gateway at `address`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            with closing(http.client.HTTPConnection(address, timeout=60)) as upstream:
                self._pass_on(upstream, body)

        def _pass_on(self, upstream: http.client.HTTPConnection, body: bytes) -> None:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _OF_A_CONNECTION:
                    upstream.putheader(name, value)
            upstream.putheader("authorization", f"Bearer {key}")
            upstream.putheader("content-length", str(len(body)))
            upstream.endheaders(body)
            with upstream.getresponse() as answer:
                self._return(answer)

        def _return(self, answer: http.client.HTTPResponse) -> None:
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_A_CONNECTION:
                    self.send_header(name, value)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            while data := answer.read1(65_536):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST = do_DELETE = _forward  # noqa: N815 - as http.server calls them

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server names it
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore clients that leave."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
