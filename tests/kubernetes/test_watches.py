"""Lists and watches of the API server for tests, and its disturbances."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubernetes_asyncio import watch
from kubernetes_asyncio.client import ApiClient, ApiException, CoreV1Api

from sandbox.engines.kubernetes.kubernetes_requests import KubernetesRequests
from sandbox.engines.kubernetes.resources import LEASES
from tests.kubernetes.calls import config_map, pod, refusal
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.faults import Fault
from tests.kubernetes.statuses import internal, too_many_requests


class TestListAndWatch:
    async def test_a_list_is_read_in_pages_of_one_version(self, cluster: Cluster, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        for number in range(5):
            await core.create_namespaced_config_map(space, config_map(f"c{number}"))
        first = await core.list_namespaced_config_map(space, limit=2)
        await core.delete_namespaced_config_map("c4", space)
        second = await core.list_namespaced_config_map(space, limit=2, _continue=first.metadata._continue)
        third = await core.list_namespaced_config_map(space, limit=2, _continue=second.metadata._continue)
        assert [len(page.items) for page in (first, second, third)] == [2, 2, 1]
        assert first.metadata.resource_version == third.metadata.resource_version
        again = await core.list_namespaced_config_map(space, limit=2)
        await core.create_namespaced_config_map(space, config_map("c9"))
        cluster.compact()
        status = await refusal(core.list_namespaced_config_map(space, limit=2, _continue=again.metadata._continue))
        assert (status["code"], status["reason"]) == (410, "Expired")

    async def test_fields_select(self, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        for name in ("a", "b"):
            await core.create_namespaced_pod(space, pod(name, nodeSelector={"none": "such"}))
        found = await core.list_namespaced_pod(space, field_selector="metadata.name=b,status.phase!=Running")
        assert [item.metadata.name for item in found.items] == ["b"]
        status = await refusal(core.list_namespaced_pod(space, field_selector="spec.hostNetwork=true"))
        assert status["message"] == "field label not supported: spec.hostNetwork"

    async def test_a_watch_goes_on_from_a_list(self, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        await core.create_namespaced_config_map(space, config_map("before"))
        version = (await core.list_namespaced_config_map(space)).metadata.resource_version
        await core.create_namespaced_config_map(space, config_map("c", labels={"mine": "yes"}))
        merge = {"_content_type": "application/merge-patch+json"}
        await core.patch_namespaced_config_map("c", space, {"metadata": {"labels": {"mine": "no"}}}, **merge)
        await core.delete_namespaced_config_map("c", space)
        assert await _first(3, _events(core, space, version)) == ["ADDED", "MODIFIED", "DELETED"]
        assert await _first(2, _events(core, space, version, label_selector="mine=yes")) == ["ADDED", "DELETED"]

    async def test_a_watch_from_before_a_compaction_is_gone(self, cluster: Cluster, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        version = (await core.list_namespaced_config_map(space)).metadata.resource_version
        await core.create_namespaced_config_map(space, config_map("c"))
        cluster.compact()
        with pytest.raises(ApiException) as caught:
            _ = [event async for event in _events(core, space, version)]
        assert caught.value.status == 410

    async def test_bookmarks_move_a_watch_on(self, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        version = (await core.list_namespaced_config_map(space)).metadata.resource_version
        await core.create_namespaced_secret(space, {"metadata": {"name": "s"}})
        events = [event async for event in _events(core, space, version, allow_watch_bookmarks=True)]
        assert events[-1]["type"] == "BOOKMARK"
        assert int(events[-1]["raw_object"]["metadata"]["resourceVersion"]) > int(version)


async def _first(count: int, events: AsyncIterator[Any]) -> list[str]:
    return [(await anext(events))["type"] for _ in range(count)]


async def _events(core: CoreV1Api, space: str, version: str, **more: Any) -> AsyncIterator[Any]:
    stream = watch.Watch().stream(
        core.list_namespaced_config_map, space, resource_version=version, timeout_seconds=1, **more
    )
    async with stream:
        async for event in stream:
            yield event


class TestFaults:
    async def test_errors_come_as_often_as_asked(self, cluster: Cluster, api: ApiClient, space: str) -> None:
        cluster.disturb(
            Fault("list", "pods", error=too_many_requests(3)), Fault("list", "pods", error=internal("etcd"))
        )
        core = CoreV1Api(api)
        with pytest.raises(ApiException) as caught:
            await core.list_namespaced_pod(space)
        assert (caught.value.status, caught.value.headers["Retry-After"]) == (429, "3")
        assert (await refusal(core.list_namespaced_pod(space)))["message"] == "Internal error occurred: etcd"
        await core.list_namespaced_pod(space)

    async def test_a_reset_after_the_request_leaves_it_done(self, cluster: Cluster, api: ApiClient, space: str) -> None:
        cluster.disturb(Fault("create", "configmaps", reset=True, after=True))
        core = CoreV1Api(api)
        with pytest.raises(aiohttp.ClientError):
            await core.create_namespaced_config_map(space, config_map("c"))
        await core.read_namespaced_config_map("c", space)

    async def test_a_slow_watch_is_behind_a_list(self, cluster: Cluster, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        version = (await core.list_namespaced_config_map(space)).metadata.resource_version
        await core.create_namespaced_config_map(space, config_map("c"))
        fault = Fault("watch", "configmaps", event_delay_s=60)
        cluster.disturb(fault)
        events = _events(core, space, version)
        first = asyncio.ensure_future(anext(events))
        async with asyncio.timeout(60):
            while fault.times:
                await asyncio.sleep(0.01)
        assert len((await core.list_namespaced_config_map(space)).items) == 1
        assert not first.done()
        first.cancel()

    @pytest.mark.parametrize(
        "fault, expected",
        [
            (Fault("watch", "configmaps", drop_after_events=1), aiohttp.ClientError),
            (Fault("watch", "configmaps", expire_after_events=1), ApiException),
        ],
    )
    async def test_a_watch_is_cut(
        self, cluster: Cluster, api: ApiClient, space: str, fault: Fault, expected: Any
    ) -> None:
        core = CoreV1Api(api)
        version = (await core.list_namespaced_config_map(space)).metadata.resource_version
        for name in ("a", "b"):
            await core.create_namespaced_config_map(space, config_map(name))
        cluster.disturb(fault)
        seen = []
        with pytest.raises(expected):
            async for event in _events(core, space, version):
                seen += [event["object"].metadata.name]
        assert seen == ["a"]


def test_of_watches_that_are_left_no_connection_stays(cluster: Cluster, tmp_path: Path) -> None:
    kubeconfig = cluster.write_kubeconfig(tmp_path / "config")

    async def left() -> None:
        requests = KubernetesRequests(kubeconfig)
        version = (await requests.list(LEASES, "default", ""))[1]
        watches = [asyncio.create_task(anext(requests.watch(LEASES, "default", "", version))) for _ in range(8)]
        await asyncio.sleep(0.3)
        assert not any(each.done() for each in watches)
        for each in watches:
            each.cancel()
        await asyncio.wait(watches)
        await requests.close()

    gc.collect()  # what tests before this one left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(left())
        gc.collect()
    assert [str(one.message) for one in caught] == []
