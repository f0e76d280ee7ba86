"""The server of network.py: GET /N is answered with N bytes, then the connection is closed.

network_server.py HOST CERTIFICATE   a plain port and two with TLS, printed as JSON; serves until its input ends
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import sys
import threading

_PIECE = bytes(256 * 1024)


def _serve(connection: socket.socket, tls: ssl.SSLContext | None) -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        stack.enter_context(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            connection = stack.enter_context(tls.wrap_socket(connection, server_side=True))
        head = b""
        while b"\r\n\r\n" not in head:
            piece = connection.recv(16 * 1024)
            if not piece:
                return
            head += piece
        left = int(head.split()[1].rpartition(b"/")[2])
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % left)
        while left:
            sending = min(left, len(_PIECE))
            connection.sendall(_PIECE[:sending] if sending < len(_PIECE) else _PIECE)
            left -= sending


def _accept(listener: socket.socket, tls: ssl.SSLContext | None) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve, args=(connection, tls), daemon=True).start()


def main() -> None:
    """Serve."""
    host, certificate = sys.argv[1:]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    ports = []
    for tls in (None, context, context):
        listener = socket.create_server((host, 0), backlog=256)
        ports.append(listener.getsockname()[1])
        threading.Thread(target=_accept, args=(listener, tls), daemon=True).start()
    print(json.dumps(ports), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
