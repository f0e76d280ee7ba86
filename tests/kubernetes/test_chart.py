"""The Helm chart and the plain manifests made from it: what the API of a cluster takes, and what the gateway reads."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_asyncio import client

from gateway.config.config import Config
from sandbox.engines.kubernetes import resources
from tests.kubernetes import kinds
from tests.kubernetes.access import Use, service_account
from tests.kubernetes.calls import connected, refusal
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.helm import LEAST, NAMESPACE, RELEASE, Manifest, Rendered, render
from tests.kubernetes.kinds import BY_NAME, Kind
from tests.kubernetes.pod_security import violations
from tests.kubernetes.schemas import check
from tests.kubernetes.validation import validate

ROOT = Path(__file__).parents[2]
PEER = {"podSelector": {"matchLabels": {"app": "postgresql"}}}
SETS: dict[str, dict[str, Any]] = {
    "least": LEAST,
    "plain text, no more than needed": {
        **LEAST,
        "tls": {"insecurePlaintext": True},
        "policies": {},
        "replicas": 1,
        "metrics": {"enabled": False},
        "disruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "drain": {"preStopSleepSeconds": 0},
        "sandboxes": {"createNamespace": False, "networkPolicies": False},
        "topologySpreadConstraints": [],
    },
    "everything": {
        **LEAST,
        "image": {"repository": "registry.example.com/airlock/gateway", "digest": f"sha256:{'0' * 64}"},
        "imagePullSecrets": [{"name": "registry"}],
        "strategy": "Recreate",
        "tls": {"secretName": "airlock-tls", "clientCA": True},
        "config": {
            **LEAST["config"],
            "http": {"hosts": ["*.example.com"]},
            "telemetry": {"sample_ratio": 0.1, "sandbox_usage_s": 15},
            "admission": {"request_bytes": 536870912},
            "sandbox": {"idle_timeout_s": 60},
        },
        "env": [{"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "model", "key": "key"}}}],
        "envFrom": [{"configMapRef": {"name": "proxy"}}],
        "volumes": [{"name": "ca", "configMap": {"name": "model-ca"}}],
        "volumeMounts": [{"name": "ca", "mountPath": "/etc/model-ca", "readOnly": True}],
        "sandboxes": {
            "namespace": "tools",
            "quota": {"pods": 100, "requests.memory": "200Gi"},
            "limitRange": [{"type": "Container", "default": {"memory": "1Gi"}, "max": {"memory": "4Gi"}}],
        },
        "snapshots": {"claimName": "snapshots"},
        "service": {"type": "LoadBalancer", "annotations": {"example.com/internal": "true"}},
        "drain": {"seconds": 60, "preStopSleepSeconds": 10},
        "autoscaling": {"enabled": True, "maxReplicas": 5},
        "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
        "networkPolicy": {
            "clients": [{"namespaceSelector": {"matchLabels": {"team": "agents"}}}],
            "database": {"to": [PEER], "ports": [6432]},
            "egress": [{"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}],
        },
        "nodeSelector": {"pool": "gateways"},
        "tolerations": [{"key": "gateways", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "high",
        "podAnnotations": {"example.com/scrape": "no"},
        "serviceAccount": {"annotations": {"example.com/role": "airlock"}},
    },
    "namespace per tenant": {**LEAST, "sandboxes": {"namespacePerTenant": True}},
    "copies of volumes": {
        **LEAST,
        "config": {**LEAST["config"], "sandbox": {"kubernetes": {"snapshot_class": "csi"}}},
    },
    "copies of a tenant's volumes": {
        **LEAST,
        "sandboxes": {"namespacePerTenant": True},
        "config": {"tenants": {"acme": {"policy": "policies/acme.yaml", "kubernetes": {"snapshot_class": "csi"}}}},
    },
    "a bucket": {**LEAST, "config": {**LEAST["config"], "snapshots": {"bucket": "s3://kept/airlock"}}},
    "http.hosts": {**LEAST, "config": {**LEAST["config"], "http": {"hosts": ["*.example.com"]}}},
}
# Kinds that the cluster for tests does not serve, by the client's models.
_OTHERS = {
    kind.kind: kind
    for kind in (
        Kind("apps", "v1", "Deployment", "deployments", "V1Deployment"),
        Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "V1PodDisruptionBudget"),
        Kind("autoscaling", "v2", "HorizontalPodAutoscaler", "hpas", "V2HorizontalPodAutoscaler"),
    )
}


@pytest.fixture(scope="module")
def rendered() -> dict[str, Rendered]:
    return dict(zip(SETS, render(list(SETS.values())), strict=True))


def _check(made: Manifest) -> None:
    """Raise unless a server takes the object with fieldValidation=Strict."""
    if made["kind"] == "ServiceMonitor":  # a custom resource: the test of metrics reads it
        return
    if made["kind"] in _OTHERS:
        check(_OTHERS[made["kind"]], made, made["metadata"]["name"])
    else:
        validate(BY_NAME[made["apiVersion"], made["kind"]], made)
    if made["kind"] == "Deployment":
        pod = made["spec"]["template"]
        validate(kinds.POD, {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {"name": "p", **pod["metadata"]}})


@pytest.mark.parametrize("name", SETS)
def test_lint_finds_nothing_and_each_object_is_what_its_schema_says(name: str, rendered: dict[str, Rendered]) -> None:
    one = rendered[name]
    assert not one.error
    assert not one.findings
    for made in one.objects:
        _check(made)
    identities = [(made["kind"], made["metadata"].get("namespace"), made["metadata"]["name"]) for made in one.objects]
    assert len(set(identities)) == len(identities) > 5


def test_the_check_is_strict(rendered: dict[str, Rendered]) -> None:
    deployment = rendered["least"].one("Deployment")
    container = {**deployment["spec"]["template"]["spec"]["containers"][0], "liveness": {}}
    template = {"spec": {"containers": [container]}}
    with pytest.raises(Exception, match="unknown field"):
        _check({**deployment, "spec": {**deployment["spec"], "template": template}})


@pytest.mark.parametrize("name", SETS)
def test_gateways_pass_pod_security_restricted(name: str, rendered: dict[str, Rendered]) -> None:
    assert violations(_pod(rendered[name]), "restricted") == []


def _pod(one: Rendered) -> Manifest:
    spec: Manifest = one.one("Deployment")["spec"]["template"]["spec"]
    return spec


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"replicas": "two"}, "at '/replicas': got string, want integer"),
    ({"replica": 3}, "additional properties 'replica' not allowed"),
    ({"image": {"digest": "latest"}}, "at '/image/digest': 'latest' does not match pattern"),
    ({"database": {"url": "postgresql://airlock:@db/airlock"}}, "at '/database/url'"),
    ({"database": {"url": "sqlite:///airlock.db"}}, "at '/database/url'"),
    ({"sandboxes": {"podSecurity": "restricted"}}, "at '/sandboxes/podSecurity': value must be one of"),
    ({"config": {"state_dir": "/data"}}, "at '/config': additional properties 'state_dir' not allowed"),
    (
        {"config": {"admission": {"calls_at_once": "no"}}},
        "at '/config/admission/calls_at_once': got string, want integer",
    ),
    ({"config": {"http": {"lissten": "x"}}}, "at '/config/http': additional properties 'lissten' not allowed"),
    ({"drain": {"seconds": 301}}, "at '/drain/seconds': maximum: got 301, want 300"),
    ({"tls": {"secretName": ""}}, "tls.secretName: name a Secret with a certificate, or set tls.insecurePlaintext"),
    ({"tls": {"secretName": "", "clientCA": True}}, "tls.clientCA: client certificates need TLS"),
    ({"sandboxes": {"namespace": NAMESPACE}}, "sandboxes.namespace: it must not be the release's own"),
    ({"autoscaling": {"enabled": True, "minReplicas": 20}}, "autoscaling.minReplicas is more than"),
    ({"autoscaling": {"enabled": True}, "metrics": {"enabled": False}}, "set metrics.enabled: true"),
)


def test_wrong_values_give_one_error_that_names_them() -> None:
    without_database = {key: value for key, value in LEAST.items() if key != "database"}
    sets = [{**LEAST, **wrong} for wrong, _ in WRONG]
    *found, missing = render([*sets, without_database])
    for one, (_, expected) in zip(found, WRONG, strict=True):
        assert expected in one.error
        assert one.error.count("- at '") <= 1
    assert "at '/database/url'" in missing.error


def test_the_gateway_reads_the_configuration(rendered: dict[str, Rendered], tmp_path: Path) -> None:
    whole = _config(rendered["everything"], tmp_path)
    assert whole.drain_s == 60
    assert whole.admission.request_bytes == 536_870_912
    assert whole.http.listen == "0.0.0.0:7480"
    assert whole.telemetry.metrics_listen == "0.0.0.0:9464"
    assert whole.telemetry.sample_ratio == 0.1
    assert whole.tls is not None
    assert whole.tls.requires_certificates
    assert _config(rendered["plain text, no more than needed"], tmp_path).telemetry.metrics_listen is None
    for name, one in rendered.items():
        mounts = {mount["mountPath"]: mount for mount in _pod(one)["containers"][0]["volumeMounts"]}
        config = _config(one, tmp_path)
        files = [config.database_password_file, *((config.tls.certificate, config.tls.key) if config.tls else ())]
        assert all(file is not None and str(file.parent) in mounts for file in files), name
        assert str(config.state_dir.parent) in mounts, "the gateway makes it, for itself alone"
        assert (config.snapshots_dir is None) == (name == "a bucket")
        assert (str(config.resolved_snapshots_dir()) in mounts) == (name == "everything")


def _config(one: Rendered, directory: Path) -> Config:
    document = yaml.safe_load(one.one("ConfigMap", f"{RELEASE}-config")["data"]["airlock.yaml"])
    assert document["sandbox"]["engine"] == "kubernetes"
    assert document["sandbox"]["kubernetes"]["gateway_namespace"] == NAMESPACE
    path = directory / "airlock.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return Config.load(path)


@pytest.mark.parametrize("name", SETS)
def test_a_gateway_stops_before_it_is_killed(name: str, rendered: dict[str, Rendered], tmp_path: Path) -> None:
    from gateway.cli.serve import _STOP_LIMIT_S

    pod = _pod(rendered[name])
    slept_s = pod["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert pod["terminationGracePeriodSeconds"] > slept_s + _config(rendered[name], tmp_path).drain_s + _STOP_LIMIT_S


def test_probes_speak_what_the_listener_does(rendered: dict[str, Rendered]) -> None:
    def probes(name: str) -> Mapping[str, Any]:
        container = _pod(rendered[name])["containers"][0]
        return {kind: container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")}

    plain, tls, certificates = probes("plain text, no more than needed"), probes("least"), probes("everything")
    assert plain["readiness"]["grpc"] == {"port": 7443}
    assert plain["liveness"]["httpGet"] == {"path": "/livez", "port": "http", "scheme": "HTTP"}
    # The kubelet's gRPC has no TLS, and its HTTPS no client certificate.
    assert tls["readiness"]["httpGet"] == {"path": "/healthz", "port": "http", "scheme": "HTTPS"}
    assert certificates["readiness"]["tcpSocket"] == {"port": "grpc"}
    named = probes("http.hosts")["readiness"]["httpGet"]["httpHeaders"]
    assert named == [{"name": "Host", "value": "probe.example.com"}]


def test_an_autoscaler_decides_on_a_metric_that_gateways_export(rendered: dict[str, Rendered]) -> None:
    one = rendered["everything"]
    scaler = one.one("HorizontalPodAutoscaler")
    assert "replicas" not in one.one("Deployment")["spec"], "an upgrade would undo what the autoscaler decided"
    (metric,) = [metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"] if metric["type"] == "Pods"]
    pages = (ROOT / "docs/telemetry.md").read_text(encoding="utf-8").replace(".", "_")
    assert f"`{metric}`" in pages
    monitor, service = one.one("ServiceMonitor"), one.one("Service", f"{RELEASE}-pods")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {end["port"] for end in monitor["spec"]["endpoints"]} <= {port["name"] for port in service["spec"]["ports"]}
    assert monitor["spec"]["selector"]["matchLabels"].items() - one.one("Service")["metadata"]["labels"].items()


def test_a_change_of_the_configuration_replaces_pods_and_one_of_a_policy_does_not(
    rendered: dict[str, Rendered],
) -> None:
    policy, settings = render(
        [
            {**LEAST, "policies": {"default.yaml": "version: 1\ndescription: another\n"}},
            {**LEAST, "config": {**LEAST["config"], "recovery": {"lease_s": 10}}},
        ]
    )
    before = rendered["least"].one("Deployment")
    assert policy.one("Deployment") == before
    assert settings.one("Deployment") != before


async def test_a_cluster_takes_the_chart_and_a_gateway_may_do_what_it_grants(
    cluster: Cluster, rendered: dict[str, Rendered]
) -> None:
    cluster.namespace(NAMESPACE)
    one = rendered["everything"]
    served = [made for made in one.objects if (made["apiVersion"], made["kind"]) in BY_NAME]
    cluster.apply(*sorted(served, key=lambda made: made["kind"] != "Namespace"))  # as Helm and kubectl do
    user = service_account(NAMESPACE, RELEASE)

    def may(verb: str, resource: str, namespace: str, group: str = "") -> bool:
        return cluster.call(cluster.access.grants, user, Use(verb, group, resource, namespace))

    assert may("create", "pods", "tools")
    assert may("update", "leases", "tools", "coordination.k8s.io")
    assert may("get", "secrets", NAMESPACE)
    assert not may("update", "secrets", NAMESPACE)
    assert not may("create", "pods", NAMESPACE)
    assert not may("create", "pods", "default")
    assert not may("create", "pods/exec", "tools")
    assert not may("create", "namespaces", "")
    assert not any(
        "*" in verb for made in (*one.all("Role"), *one.all("ClusterRole")) for verb in _verbs(made["rules"])
    )

    async with connected(cluster, cluster.token(NAMESPACE, RELEASE)) as api:
        assert (await client.CoreV1Api(api).list_namespaced_pod("tools")).items == []
        refused = await refusal(client.CoreV1Api(api).list_namespaced_pod(NAMESPACE))
        assert f'User "system:serviceaccount:{NAMESPACE}:{RELEASE}" cannot list resource "pods"' in refused["message"]
    assert cluster.used(NAMESPACE, RELEASE) == {("", "pods", "list")}

    (namespace,) = [made for made in cluster.objects(kinds.NAMESPACE) if made["metadata"]["name"] == "tools"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "baseline"
    assert namespace["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    (quota,) = cluster.objects(kinds.QUOTA, "tools")
    assert quota["spec"]["hard"] == {"pods": "100", "requests.memory": "200Gi"}


def _verbs(rules: list[Manifest]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_roles_grant_what_the_engine_declares_and_nothing_else(rendered: dict[str, Rendered]) -> None:
    def declared(verbs: Mapping[Any, Any]) -> set[tuple[str, str, str]]:
        return {(resource.group, resource.plural, verb) for resource, asked in verbs.items() for verb in asked}

    one = rendered["least"]
    assert _verbs(one.one("Role", f"{RELEASE}-sandboxes")["rules"]) == declared(
        {**resources.VERBS, **resources.SANDBOX_VERBS}
    )
    assert _verbs(one.one("Role")["rules"]) == declared(resources.GATEWAY_VERBS)
    assert one.all("ClusterRole") == []
    apart = rendered["namespace per tenant"]
    everywhere = apart.one("ClusterRole", f"{NAMESPACE}-{RELEASE}-sandboxes")["rules"]
    assert _verbs(everywhere) == declared({**resources.CLUSTER_VERBS, **resources.SANDBOX_VERBS})
    named = [rule for rule in everywhere if "resourceNames" in rule]
    assert {(plural, *rule["resourceNames"]) for rule in named for plural in rule["resources"]} == {
        (resource.plural, name) for resource, name in resources.NAMED.items()
    }
    unnamed = _verbs([rule for rule in everywhere if rule not in named])
    assert not any((one.group, one.plural, verb) in unnamed for one in resources.NAMED for verb in ("get", "update"))
    for named, kind, role in (
        ("copies of volumes", "Role", f"{RELEASE}-sandboxes"),
        ("copies of a tenant's volumes", "ClusterRole", f"{NAMESPACE}-{RELEASE}-sandboxes"),
    ):
        wanted = {**(resources.VERBS if kind == "Role" else resources.CLUSTER_VERBS), **resources.SANDBOX_VERBS}
        assert _verbs(rendered[named].one(kind, role)["rules"]) == declared({**wanted, **resources.SNAPSHOT_VERBS})
    records = {resources.LEASES: resources.VERBS[resources.LEASES]}
    assert _verbs(apart.one("Role", f"{RELEASE}-sandboxes")["rules"]) == declared(records)


def test_only_gateways_reach_a_relay_and_a_sandbox_reaches_nothing(rendered: dict[str, Rendered]) -> None:
    one = rendered["least"]
    nothing, relay = one.one("NetworkPolicy", f"{RELEASE}-nothing"), one.one("NetworkPolicy", f"{RELEASE}-relay")
    assert nothing["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    (rule,) = relay["spec"]["ingress"]
    (peer,) = rule["from"]
    assert rule["ports"] == [{"port": 7600, "protocol": "TCP"}]
    assert peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
    labels = one.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    # The selector is one object with both: gateways of that namespace, not gateways or that namespace.
    config = yaml.safe_load(one.one("ConfigMap", f"{RELEASE}-config")["data"]["airlock.yaml"])
    assert config["sandbox"]["kubernetes"]["gateway_selector"] == peer["podSelector"]["matchLabels"]


@pytest.mark.parametrize("directory", ["base", "example"])
def test_plain_manifests_are_made_by_kustomize(directory: str, tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl is installed")
    command = [kubectl, "kustomize", ROOT / "deploy/kustomize" / directory]
    made = subprocess.run(command, capture_output=True, text=True, check=True, env={"HOME": str(tmp_path)}, timeout=60)
    objects = list(yaml.safe_load_all(made.stdout))
    for one in objects:
        _check(one)
    assert "helm.sh/" not in made.stdout
    assert {one["metadata"].get("namespace", "") for one in objects} == {"", "airlock-gateways", "airlock-sandboxes"}
    one = Rendered(objects=objects)
    (config,) = [found for found in one.all("ConfigMap") if "airlock.yaml" in found["data"]]
    sources = next(volume for volume in _pod(one)["volumes"] if volume["name"] == "config")["projected"]["sources"]
    assert [source["configMap"]["name"] for source in sources] == [config["metadata"]["name"], "airlock-policies"]
    assert config["metadata"]["name"] != "airlock-config", "Pods follow its content"
