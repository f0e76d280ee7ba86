"""What the API server for tests admits, and what RBAC grants."""

from __future__ import annotations

from kubernetes_asyncio import client
from kubernetes_asyncio.client import ApiClient, CoreV1Api

from tests.kubernetes.calls import connected, pod, refusal
from tests.kubernetes.cluster import Cluster


class TestAdmission:
    async def test_a_full_quota_refuses_with_what_is_asked_used_and_limited(
        self, cluster: Cluster, api: ApiClient, space: str
    ) -> None:
        limit = {"metadata": {"name": "q", "namespace": space}, "spec": {"hard": {"pods": "1"}}}
        cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", **limit})
        core = CoreV1Api(api)
        await core.create_namespaced_pod(space, pod("a"))
        status = await refusal(core.create_namespaced_pod(space, pod("b")))
        assert status["message"] == (
            'pods "b" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1'
        )
        assert (status["code"], status["reason"]) == (403, "Forbidden")

    async def test_limits_fill_in_and_refuse(self, cluster: Cluster, api: ApiClient, space: str) -> None:
        item = {"type": "Container", "default": {"memory": "1Gi"}, "max": {"memory": "2Gi"}}
        limits = {"metadata": {"name": "l", "namespace": space}, "spec": {"limits": [item]}}
        cluster.apply({"apiVersion": "v1", "kind": "LimitRange", **limits})
        core = CoreV1Api(api)
        made = await core.create_namespaced_pod(space, pod())
        assert made.spec.containers[0].resources.limits == {"memory": "1Gi"}
        large = [{"name": "a", "image": "b", "resources": {"limits": {"memory": "3Gi"}}}]
        status = await refusal(core.create_namespaced_pod(space, pod("b", containers=large)))
        assert "maximum memory usage per Container is 2Gi, but limit is 3Gi" in status["message"]

    async def test_pod_security_names_each_violation(self, cluster: Cluster, api: ApiClient) -> None:
        space = cluster.namespace("restricted", {"pod-security.kubernetes.io/enforce": "restricted"})
        status = await refusal(CoreV1Api(api).create_namespaced_pod(space, pod(hostNetwork=True)))
        for part in ('violates PodSecurity "restricted:latest"', "hostNetwork=true",
                     "allowPrivilegeEscalation != false", "unrestricted capabilities",
                     "runAsNonRoot != true", "seccompProfile"):  # fmt: skip
            assert part in status["message"]
        context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
        contained = {"name": "a", "image": "b", "securityContext": context}
        whole = {"seccompProfile": {"type": "RuntimeDefault"}}
        await CoreV1Api(api).create_namespaced_pod(space, pod(containers=[contained], securityContext=whole))

    async def test_a_runtime_class_must_exist(self, api: ApiClient, space: str) -> None:
        status = await refusal(CoreV1Api(api).create_namespaced_pod(space, pod(runtimeClassName="gvisor")))
        assert 'pod rejected: RuntimeClass "gvisor" not found' in status["message"]

    async def test_the_account_token_is_mounted_unless_refused(self, api: ApiClient, space: str) -> None:
        core = CoreV1Api(api)
        made = await core.create_namespaced_pod(space, pod("a", automountServiceAccountToken=None))
        assert made.spec.containers[0].volume_mounts[0].mount_path == "/var/run/secrets/kubernetes.io/serviceaccount"
        made = await core.create_namespaced_pod(space, pod("b"))
        assert not made.spec.volumes


class TestAccess:
    async def test_a_verb_that_is_not_granted_is_named(self, cluster: Cluster, space: str) -> None:
        token = cluster.grant(space, "gateway", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}])
        async with connected(cluster, token) as api:
            core = CoreV1Api(api)
            await core.list_namespaced_pod(space)
            status = await refusal(core.read_namespaced_pod("p", space))
            user = f"system:serviceaccount:{space}:gateway"
            wanted = f'cannot get resource "pods" in API group "" in the namespace "{space}"'
            assert status["message"] == f'pods "p" is forbidden: User "{user}" {wanted}'
            status = await refusal(core.list_namespaced_pod("default"))
            assert status["message"].startswith(f'pods is forbidden: User "{user}" cannot list resource "pods"')
        assert cluster.used(space, "gateway") == {("", "pods", "list")}

    async def test_a_review_says_what_is_granted(self, cluster: Cluster, space: str) -> None:
        rules = [{"apiGroups": ["agents.x-k8s.io"], "resources": ["sandboxes/status"], "verbs": ["patch"]}]
        token = cluster.grant(space, "reviewed", rules)
        async with connected(cluster, token) as api:
            reviews = client.AuthorizationV1Api(api)
            for verb, allowed in (("patch", True), ("get", False)):
                asked = client.V1ResourceAttributes(
                    verb=verb, group="agents.x-k8s.io", resource="sandboxes", subresource="status", namespace=space
                )
                spec = client.V1SelfSubjectAccessReviewSpec(resource_attributes=asked)
                answer = await reviews.create_self_subject_access_review(client.V1SelfSubjectAccessReview(spec=spec))
                assert answer.status.allowed is allowed

    async def test_an_expired_token_is_unauthorized(self, cluster: Cluster, space: str) -> None:
        token = cluster.grant(space, "late", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}])
        async with connected(cluster, token) as api:
            await CoreV1Api(api).list_namespaced_pod(space)
            cluster.call(cluster.access.expire, token)
            assert (await refusal(CoreV1Api(api).list_namespaced_pod(space)))["reason"] == "Unauthorized"
