"""The real daemon in a Pod of the cluster for tests, over the real TLS channel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes_asyncio.client import ApiClient, CoreV1Api

from sandbox.client.channel import Channel
from sandbox.client.channel_authority import ChannelAuthority
from sandbox.client.tls_address import TlsAddress
from sandbox.tls.identity import gateway_name, sandbox_name
from tests.kubernetes import images
from tests.kubernetes.calls import pod
from tests.kubernetes.cluster import Cluster, running_cluster
from tests.kubernetes.test_pods import _ADDRESS, claim, gone, ready, seen

_NAME = sandbox_name("test", "s1", ("a1", "b2"), 7)
_RELAY = {
    "name": "relay",
    "image": "relay:1",
    "command": ["python3", "-m", "sandbox.tls"],
    "args": [
        *("--listen", "$(POD_IP):7600", "--socket", images.SOCKET, "--gateway", gateway_name("test")),
        *("--identity", "/keys/identity.pem", "--authority", "/keys/ca.pem", "--serve-own-network"),
    ],
    "env": [_ADDRESS],
    "volumeMounts": [{"name": "channel", "mountPath": "/run/airlock"}, {"name": "keys", "mountPath": "/keys"}],
    "readinessProbe": {"tcpSocket": {"port": 7600}, "periodSeconds": 1},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster({"daemon:1": images.daemon, "relay:1": images.python_module}) as found:
        yield found


async def test_a_pod_is_reached_over_tls_at_its_address(
    cluster: Cluster, api: ApiClient, space: str, tmp_path: Path
) -> None:
    authority = ChannelAuthority.open(tmp_path / "keys" / "ca.pem", "test")
    core = CoreV1Api(api)
    keys = {"identity.pem": authority.sandbox_identity(_NAME).decode(), "ca.pem": authority.ca_pem}
    await core.create_namespaced_secret(space, {"metadata": {"name": "keys"}, "stringData": keys})
    await core.create_namespaced_persistent_volume_claim(space, claim("w"))
    mounts = [{"name": "w", "mountPath": "/workspace"}, {"name": "channel", "mountPath": "/run/airlock"}]
    volumes = [
        {"name": "w", "persistentVolumeClaim": {"claimName": "w"}},
        {"name": "channel", "emptyDir": {}},
        {"name": "keys", "secret": {"secretName": "keys"}},
    ]
    main = {"name": "main", "image": "daemon:1", "volumeMounts": mounts}
    await core.create_namespaced_pod(space, pod(containers=[main, _RELAY], volumes=volumes))
    made = seen(cluster, space, "p", ready)
    channel = Channel(TlsAddress(made["status"]["podIP"], 7600, _NAME, authority.contexts))
    await channel.connect()
    assert (await channel.hello(timeout_s=30)).protocol_version == 1
    channel.close()
    await core.delete_namespaced_pod("p", space)
    gone(cluster, space, "p")
