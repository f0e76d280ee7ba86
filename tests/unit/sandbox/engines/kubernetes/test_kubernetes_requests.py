"""What cannot be asked of a cluster says why, and what to do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from sandbox.engines.kubernetes import kubernetes_requests
from sandbox.engines.kubernetes.kubernetes_requests import KubernetesRequests
from sandbox.engines.kubernetes.resources import LEASES, SECRETS
from sandbox.errors import EngineUnavailable


async def _pause(_seconds: float) -> None: ...


async def test_without_a_cluster_the_configuration_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(EngineUnavailable, match=r"runs in none .* set sandbox.kubernetes.kubeconfig"):
        await KubernetesRequests().get(SECRETS, "n", "p")


async def test_a_kubeconfig_that_is_not_there_or_lacks_the_context_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"sandbox\.kubernetes\.kubeconfig"):
        await KubernetesRequests(tmp_path / "none").get(SECRETS, "n", "p")
    empty = tmp_path / "config"
    empty.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "contexts": [], "clusters": [], "users": []}))
    with pytest.raises(EngineUnavailable, match="context"):
        await KubernetesRequests(empty, "other").get(SECRETS, "n", "p")


def _kubeconfig(directory: Path, port: int) -> Path:
    config = directory / "config"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    whole = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}], "current-context": "x"}
    config.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **whole}))
    return config


async def test_a_watch_that_falls_silent_is_given_up_though_its_connection_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_requests, "WATCH_SILENCE_S", 0.3)
    given_up = asyncio.Event()
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}

    async def one_bookmark(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = json.dumps(bookmark).encode() + b"\n"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()
        given_up.set()

    async with await asyncio.start_server(one_bookmark, "127.0.0.1", 0) as server:
        requests = KubernetesRequests(_kubeconfig(tmp_path, server.sockets[0].getsockname()[1]))
        events = requests.watch(LEASES, "n", "", "1")
        assert await anext(events) == (bookmark["type"], bookmark["object"])
        with pytest.raises(EngineUnavailable, match="the watch of leases broke"):
            await anext(events)
        await requests.close()
        await given_up.wait()


async def test_an_api_that_does_not_answer_is_tried_again_and_then_named(tmp_path: Path) -> None:
    requests = KubernetesRequests(_kubeconfig(tmp_path, 1), pause=_pause)
    with pytest.raises(EngineUnavailable, match=r"127.0.0.1:1 does not answer: .* check that it runs"):
        await requests.get(SECRETS, "n", "p")
    await requests.close()
