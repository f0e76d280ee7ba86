"""Writes to the API server for tests, as the real client sees them."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes_asyncio import client
from kubernetes_asyncio.client import ApiClient, CoreV1Api, CustomObjectsApi

from tests.kubernetes import kinds
from tests.kubernetes.calls import config_map, pod, refusal
from tests.kubernetes.cluster import Cluster

_SANDBOXES = ("agents.x-k8s.io", "v1beta1")


class TestWrites:
    async def test_what_is_created_is_read_back_with_its_defaults(self, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        made = await core.create_namespaced_pod(space, pod())
        assert made.metadata.uid
        assert made.spec.restart_policy == "Always"
        assert made.spec.containers[0].image_pull_policy == "IfNotPresent"
        assert made.status.phase == "Pending"
        listed = await core.list_namespaced_pod(space)
        assert [item.metadata.name for item in listed.items] == ["p"]

    async def test_a_generated_name_is_the_prefix_and_five_letters(self, api: ApiClient, space: str) -> None:
        made = await CoreV1Api(api).create_namespaced_config_map(space, {"metadata": {"generateName": "warm-"}})
        assert len(made.metadata.name) == len("warm-") + 5

    async def test_a_second_of_the_name_exists_already(self, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        await core.create_namespaced_config_map(space, config_map("c"))
        status = await refusal(core.create_namespaced_config_map(space, config_map("c")))
        assert (status["code"], status["reason"]) == (409, "AlreadyExists")
        assert status["message"] == 'configmaps "c" already exists'

    async def test_of_two_writers_with_one_version_the_second_conflicts(self, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        read = await core.create_namespaced_config_map(space, config_map("c"))
        read.data = {"key": "first"}
        await core.replace_namespaced_config_map("c", space, read)
        read.data = {"key": "second"}
        status = await refusal(core.replace_namespaced_config_map("c", space, read))
        assert (status["code"], status["reason"]) == (409, "Conflict")
        assert "the object has been modified" in status["message"]

    async def test_a_patch_that_names_an_old_version_conflicts(self, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        read = await core.create_namespaced_config_map(space, config_map("c"))
        old = {"metadata": {"resourceVersion": read.metadata.resource_version}, "data": {"key": "mine"}}
        await core.patch_namespaced_config_map("c", space, old, _content_type="application/merge-patch+json")
        status = await refusal(
            core.patch_namespaced_config_map("c", space, old, _content_type="application/merge-patch+json")
        )
        assert status["reason"] == "Conflict"

    async def test_each_kind_of_patch(self, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        await core.create_namespaced_pod(space, pod(tolerations=[]))
        change: list[tuple[str, Any]] = [
            ("application/json-patch+json", [{"op": "add", "path": "/metadata/labels", "value": {"a": "1"}}]),
            ("application/merge-patch+json", {"metadata": {"labels": {"b": "2"}}}),
            ("application/strategic-merge-patch+json", {"spec": {"containers": [{"name": "main", "image": "tool:2"}]}}),
        ]
        for content_type, patch in change:
            await core.patch_namespaced_pod("p", space, patch, _content_type=content_type)
        made = await core.read_namespaced_pod("p", space)
        assert made.metadata.labels == {"a": "1", "b": "2"}
        assert [(item.name, item.image) for item in made.spec.containers] == [("main", "tool:2")]
        failed = [{"op": "test", "path": "/metadata/labels/a", "value": "2"}]
        status = await refusal(core.patch_namespaced_pod("p", space, failed, _content_type=change[0][0]))
        assert status["code"] == 422

    async def test_the_status_is_written_by_its_own_path(self, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        await core.create_namespaced_pod(space, pod(nodeSelector={"none": "such"}))
        merge = {"_content_type": "application/merge-patch+json"}
        change = {"metadata": {"labels": {"a": "b"}}, "status": {"message": "by the wrong path"}}
        made = await core.patch_namespaced_pod("p", space, change, **merge)
        assert (made.status.message, made.metadata.labels) == (None, {"a": "b"})
        made = await core.patch_namespaced_pod_status("p", space, {"status": {"message": "right"}}, **merge)
        assert made.status.message == "right"
        assert made.metadata.generation == 1


class TestValidation:
    @pytest.mark.parametrize(
        "body, code, message",
        [
            (pod(foo=1), 400, 'strict decoding error: unknown field "spec.foo"'),
            (pod(terminationGracePeriodSeconds="a"), 400, "json: cannot unmarshal"),
            (pod(containers=[]), 422, 'Pod "p" is invalid: spec.containers: Required value'),
            (
                pod(restartPolicy="Sometimes"),
                422,
                'Unsupported value: "Sometimes": supported values: "Always", "Never"',
            ),
            (pod("UPPER"), 422, 'metadata.name: Invalid value: "UPPER"'),
            (
                pod(containers=[{"name": "a", "image": "b", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]),
                422,
                'spec.containers[0].volumeMounts[0].name: Not found: "v"',
            ),
            ({**pod(), "metadata": {"name": "p", "labels": {"a": "not a label"}}}, 422, "metadata.labels"),
            ({**pod(), "kind": "Pdo"}, 400, "does not match the expected API version"),
        ],
    )
    async def test_a_pod_that_is_wrong_is_refused(self, api: ApiClient, body: Any, code: int, message: str) -> None:
        status = await refusal(CoreV1Api(api).create_namespaced_pod("default", body))
        assert status["code"] == code
        assert message in status["message"]

    async def test_a_pods_spec_cannot_be_changed(self, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        made = await core.create_namespaced_pod(space, pod())
        made.metadata.resource_version = None
        made.spec.host_network = True
        status = await refusal(core.replace_namespaced_pod("p", space, made))
        assert (status["code"], status["details"]["causes"][0]["reason"]) == (422, "FieldValueForbidden")
        assert "pod updates may not change fields other than" in status["message"]

    async def test_custom_objects_are_held_to_their_definitions(self, api: ApiClient, space: str) -> None:
        custom = CustomObjectsApi(api)
        wrong = {"spec": {"podTemplate": {"spec": {"containers": [{"name": "a", "imge": "b"}]}}}}
        status = await refusal(
            custom.create_namespaced_custom_object(
                *_SANDBOXES, space, "sandboxes", {"metadata": {"name": "s"}, "apiVersion": "agents.x-k8s.io/v1beta1",
                                                  "kind": "Sandbox", **wrong}
            )
        )  # fmt: skip
        assert 'unknown field "spec.podTemplate.spec.containers[0].imge"' in status["message"]
        right = {"metadata": {"name": "s"}, "spec": {"podTemplate": {"spec": {"containers": [{"name": "a"}]}}}}
        made = await custom.create_namespaced_custom_object(*_SANDBOXES, space, "sandboxes", right)
        assert made["spec"]["operatingMode"] == "Running"
        del made["metadata"]["resourceVersion"]  # its controller writes, too
        made["spec"]["volumeClaimTemplates"] = [{"metadata": {"name": "w"}, "spec": {}}]
        status = await refusal(custom.replace_namespaced_custom_object(*_SANDBOXES, space, "sandboxes", "s", made))
        assert "volumeClaimTemplates is immutable" in status["message"]

    async def test_a_version_that_is_not_served_is_not_found(self, api: ApiClient) -> None:
        call = CustomObjectsApi(api).list_namespaced_custom_object(
            "agents.x-k8s.io", "v1alpha1", "default", "sandboxes"
        )
        status = await refusal(call)
        assert status["message"] == "the server could not find the requested resource"


class TestDeletion:
    async def test_a_namespace_that_ends_admits_nothing_and_takes_all_with_it(
        self, cluster: Cluster, api: ApiClient, space: str
    ) -> None:
        core = CoreV1Api(api)
        await core.create_namespaced_config_map(space, config_map("c", finalizers=["test/held"]))
        await core.delete_namespace(space)
        status = await refusal(core.create_namespaced_config_map(space, config_map("d")))
        assert "because it is being terminated" in status["message"]
        assert status["details"]["causes"][0]["reason"] == "NamespaceTerminating"
        free = {"metadata": {"finalizers": None}}
        await core.patch_namespaced_config_map("c", space, free, _content_type="application/merge-patch+json")
        cluster.wait(lambda: cluster.store.find(kinds.NAMESPACE, "", space) is None)

    async def test_preconditions_hold(self, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        made = await core.create_namespaced_config_map(space, config_map("c"))
        wrong = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="other"))
        status = await refusal(core.delete_namespaced_config_map("c", space, body=wrong))
        assert status["reason"] == "Conflict"
        right = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=made.metadata.uid))
        await core.delete_namespaced_config_map("c", space, body=right)
        assert (await refusal(core.read_namespaced_config_map("c", space)))["reason"] == "NotFound"

    @pytest.mark.parametrize("policy", ["Background", "Foreground"])
    async def test_what_an_owner_leaves_is_collected(
        self, cluster: Cluster, api: ApiClient, space: str, policy: str
    ) -> None:
        core = CoreV1Api(api)
        owner = await core.create_namespaced_config_map(space, config_map("owner"))
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}
        await core.create_namespaced_secret(space, {"metadata": {"name": "owned", "ownerReferences": [reference]}})
        await core.delete_namespaced_config_map("owner", space, propagation_policy=policy)
        cluster.wait(lambda: not cluster.store.all(kinds.SECRET, space))
        cluster.wait(lambda: cluster.store.find(kinds.CONFIG_MAP, space, "owner") is None)

    async def test_a_claim_in_use_stays_until_its_pod_is_gone(
        self, cluster: Cluster, api: ApiClient, space: str
    ) -> None:
        core = CoreV1Api(api)
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        await core.create_namespaced_persistent_volume_claim(space, {"metadata": {"name": "w"}, "spec": spec})
        volume = {"name": "w", "persistentVolumeClaim": {"claimName": "w"}}
        await core.create_namespaced_pod(space, pod(volumes=[volume]))
        ending = await core.delete_namespaced_persistent_volume_claim("w", space)
        assert ending.metadata.deletion_timestamp
        await core.delete_namespaced_pod("p", space, grace_period_seconds=0)
        cluster.wait(lambda: not cluster.store.all(kinds.CLAIM, space))

    async def test_a_selection_is_deleted(self, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        for name, group in (("a", "x"), ("b", "y")):
            await core.create_namespaced_config_map(space, config_map(name, labels={"group": group}))
        await core.delete_collection_namespaced_config_map(space, label_selector="group in (x,z)")
        assert [item.metadata.name for item in (await core.list_namespaced_config_map(space)).items] == ["b"]
