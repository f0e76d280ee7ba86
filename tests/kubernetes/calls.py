"""What the tests of the cluster for tests ask the API, and what they are refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
from kubernetes_asyncio import client, config
from kubernetes_asyncio.client import ApiClient, ApiException

from tests.kubernetes.cluster import Cluster


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    whole = {"containers": [{"name": "main", "image": "tool:1"}], "automountServiceAccountToken": False, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}


def config_map(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "data": {"key": "value"}}


async def refusal(call: Awaitable[Any]) -> dict[str, Any]:
    """Return the Status that a call is refused with."""
    with pytest.raises(ApiException) as caught:
        await call
    status = json.loads(caught.value.body)
    assert status["kind"] == "Status"
    assert status["code"] == caught.value.status
    return status  # type: ignore[no-any-return]


@contextlib.asynccontextmanager
async def connected(cluster: Cluster, token: str = "") -> AsyncIterator[ApiClient]:
    """Give the real client, as the administrator if no token is given."""
    settings = client.Configuration()
    await config.load_kube_config_from_dict(cluster.kubeconfig(token), client_configuration=settings)
    async with ApiClient(settings) as api:
        yield api
    await asyncio.sleep(0.05)  # aiohttp closes connections in TLS after the session that had them
