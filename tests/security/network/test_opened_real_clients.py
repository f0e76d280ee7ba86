"""curl and gRPC through TLS that the gateway opens to judge their requests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import trustme

from gateway.network.opening import Opening
from tests.security.network.loopback_door import WAIT_S, LoopbackDoor, allow, policy
from tests.security.network.test_opened import GET_ONLY, opened, trust_in
from tests.security.network.test_opened_http2 import serve_http1, serve_http2


@contextlib.asynccontextmanager
async def proxy(door: LoopbackDoor) -> AsyncIterator[str]:
    """Yield the address of a port that leads to the door."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)

    async def accept() -> None:
        while True:
            door.sandbox.network.queue.put_nowait((await asyncio.get_running_loop().sock_accept(listening))[0])

    accepting = asyncio.create_task(accept())
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        listening.close()


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_curl(door: LoopbackDoor, tmp_path: Path, protocol: str) -> None:
    handler = serve_http2 if protocol == "h2" else serve_http1
    server = await opened(door, tmp_path, handler, GET_ONLY, alpn=[protocol])
    (tmp_path / "ca.pem").write_text(door.door.opening.authority.ca_pem)
    url, written = f"https://a.test:{server.port}", " %{http_code} %{http_version}\n"
    async with proxy(door) as address:
        for version in ("2", "2" if protocol == "h2" else "1.1"):  # then it is known what the server speaks
            options = ["-sS", "--http2", "-x", address, "--cacert", str(tmp_path / "ca.pem"), "-w", written]
            command = ["curl", *options, f"{url}/a", "--next", *options, "-d", "x", f"{url}/b"]
            running = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            said = (await asyncio.wait_for(running.communicate(), WAIT_S))[0].decode()
            assert running.returncode == 0, said
            assert f" 200 {version}\n" in said
            assert " 403 " in said
    assert sorted({one[0] for one in door.records.seen()}) == ["allow", "deny"]


async def test_grpc(door: LoopbackDoor, tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("a.test")

    class Echo(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            if details.method.endswith("/Count"):
                return grpc.unary_stream_rpc_method_handler(_count)
            return grpc.unary_unary_rpc_method_handler(_echo)

    async def _echo(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        context.set_trailing_metadata((("x-sum", str(len(data))),))
        return data

    async def _count(data: bytes, _context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        for number in range(3):
            yield data + str(number).encode()

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    pairs = [(leaf.private_key_pem.bytes(), leaf.cert_chain_pems[0].bytes())]
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pairs))
    await server.start()
    door.names["a.test"] = [["127.0.0.1"]]
    door.door.opening = Opening("acme", (), b"secret", trust_in(authority))
    door.policy = policy(allow("a.test", methods=["POST"], url_paths=["/echo.Echo/**"]))
    async with proxy(door) as address:
        credentials = grpc.ssl_channel_credentials(door.door.opening.authority.ca_pem.encode())
        options = [("grpc.http_proxy", address), ("grpc.enable_http_proxy", 1)]
        async with grpc.aio.secure_channel(f"a.test:{port}", credentials, options) as channel:
            call = channel.unary_unary("/echo.Echo/Say")(b"x" * 100_000, timeout=WAIT_S)
            assert await call == b"x" * 100_000
            assert dict(await call.trailing_metadata())["x-sum"] == "100000"
            counted = channel.unary_stream("/echo.Echo/Count")(b"n", timeout=WAIT_S)
            assert [one async for one in counted] == [b"n0", b"n1", b"n2"]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary("/other.Other/Say")(b"x", timeout=WAIT_S)
            assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
            assert await channel.unary_unary("/echo.Echo/Say")(b"y", timeout=WAIT_S) == b"y"
    await server.stop(None)
    assert [one[0] for one in await door.recorded(2)] == ["deny", "allow"]
