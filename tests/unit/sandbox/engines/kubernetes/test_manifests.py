"""The objects of an instance: valid by the API's schemas, admitted by Pod Security, closed, and nobody's by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.daemon.settings import read_settings
from sandbox.engines.containment import RUNTIME_PYTHON
from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.manifests import Site
from sandbox.sandbox import SandboxLimits, SandboxSpec, owner_of
from tests.kubernetes import kinds
from tests.kubernetes.pod_security import violations
from tests.kubernetes.schemas import check

SPEC = SandboxSpec("a tenant", "a thread", "python:3.12", env={"TOKEN": "a secret"})
OWNER = owner_of(SPEC)
SITE = Site("i1", "sandboxes", "airlock")
EVERYTHING = replace(
    SITE,
    runtime_volume="image",
    storage_class="fast",
    node_selector={"pool": "sandboxes"},
    tolerations=({"key": "sandboxes", "operator": "Exists"},),
    topology_spread=({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},),
    image_pull_secrets=("registry",),
)


def pod(site: Site = SITE, spec: SandboxSpec = SPEC) -> dict[str, Any]:
    return manifests.pod(site, spec, OWNER, "abc-1", "claim-1")


@pytest.mark.parametrize("site", [SITE, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("runtime", ["runc", "runsc", "kata"])
def test_a_pod_is_valid_and_admitted_by_pod_security_baseline(site: Site, runtime: str) -> None:
    made = pod(site, replace(SPEC, runtime=runtime))
    check(kinds.POD, made, "the Pod")
    assert violations(made["spec"], "baseline") == []
    assert made["spec"].get("runtimeClassName") == {"runc": None, "runsc": "gvisor"}.get(runtime, runtime)


def test_what_a_pod_does_that_restricted_forbids_is_the_daemon_s_start_as_root_and_no_more() -> None:
    said = " ".join(violations(pod()["spec"], "restricted"))
    assert "unrestricted capabilities" in said
    assert "runAsNonRoot" in said
    assert "runAsUser=0" in said
    assert all(word not in said for word in ("allowPrivilegeEscalation", "seccomp", "volume types", '"relay"'))


def test_the_other_objects_are_valid() -> None:
    check(kinds.LEASE, manifests.lease(SITE, OWNER), "the Lease")
    check(kinds.CLAIM, manifests.claim(EVERYTHING, OWNER, "claim-1", SPEC), "the claim")
    check(kinds.SECRET, manifests.relay_secret(SITE, b"key", "authority"), "the Secret")
    check(kinds.NETWORK_POLICY, manifests.network_policy(SITE), "the policy")


def test_no_text_of_a_tenant_and_no_secret_is_in_any_object() -> None:
    made = [pod(), manifests.lease(SITE, OWNER), manifests.claim(SITE, OWNER, "claim-1", SPEC)]
    for words in ("a tenant", "a thread", "a secret", "TOKEN"):
        assert words not in json.dumps(made)


def test_tool_code_has_no_way_to_the_cluster_to_keys_or_to_names() -> None:
    spec = pod()["spec"]
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    assert spec["dnsPolicy"] == "None"
    (main,) = spec["containers"]
    mounted = {mount["name"] for mount in main["volumeMounts"]}
    assert mounted == {"workspace", "tmp", "channel", "bundle"}
    assert [item["name"] for item in spec["initContainers"] if "keys" in str(item["volumeMounts"])] == ["relay"]
    context = main["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN", "SETUID", "SETGID", "KILL"]}
    assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
    assert main["terminationMessagePath"].startswith("/run/airlock/"), "where tool code cannot write"


def test_limits_are_those_of_the_spec_and_tmp_leaves_half_of_the_memory() -> None:
    limits = SandboxLimits(memory_bytes=256 * 2**20, cpus=0.5, tmp_bytes=2**40)
    spec = pod(spec=replace(SPEC, limits=limits))["spec"]
    assert spec["containers"][0]["resources"]["limits"] == {
        "cpu": "500m",
        "memory": str(256 * 2**20),
        "ephemeral-storage": "512Mi",
    }
    (tmp,) = (int(one["emptyDir"]["sizeLimit"]) for one in spec["volumes"] if one["name"] == "tmp")
    assert 0 < tmp < 128 * 2**20


def test_the_users_belong_to_the_claim_so_that_later_pods_own_the_same_files() -> None:
    def users(claim: str, name: str) -> list[str]:
        command = manifests.pod(SITE, SPEC, OWNER, name, claim)["spec"]["containers"][0]["command"]
        return [command[command.index(option) + 1] for option in ("--tool-uid", "--daemon-uid")]

    assert users("c1", "a") == users("c1", "b")
    assert not {*users("c1", "a")} & {*users("c2", "a")}


def test_the_network_is_closed_but_for_the_gateway_s_way_to_the_relay() -> None:
    spec = manifests.network_policy(replace(SITE, gateway_selector={"app": "gw"}))["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in spec
    (ingress,) = spec["ingress"]
    (peer,) = ingress["from"]
    assert peer["podSelector"] == {"matchLabels": {"app": "gw"}}
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "airlock"}
    assert ingress["ports"] == [{"protocol": "TCP", "port": manifests.RELAY_PORT}]


@pytest.mark.parametrize("instance", ["gw_01J", "i" * 80, "Über"])
def test_an_instance_that_no_name_may_have_is_named_by_a_digest(instance: str) -> None:
    assert Site(instance).name("relay").replace("-", "").isalnum()
    assert Site(instance).name("relay").islower()
    assert Site(instance).labels("relay")[manifests.INSTANCE] == instance


def test_the_daemon_is_started_as_the_runtime_image_says() -> None:
    dockerfile = (Path(__file__).parents[5] / "Dockerfile").read_text(encoding="utf-8")
    label = next(line for line in dockerfile.splitlines() if "airlock.command" in line)
    assert json.dumps([*RUNTIME_PYTHON, "-m", "sandbox.daemon"], separators=(",", ":")) in label


def test_the_daemon_keeps_tool_code_from_setting_attributes_for_no_kubelet_limits_the_files_of_tmp() -> None:
    command = pod()["spec"]["containers"][0]["command"]
    settings = read_settings(command[command.index("sandbox.daemon") + 1 :], {})
    assert (settings.extended_attributes, read_settings([], {}).extended_attributes) == (0, 1)


def test_a_gateway_outside_of_pods_is_admitted_by_its_address_and_nothing_else_is() -> None:
    policy = manifests.network_policy(replace(SITE, gateway_cidrs=("192.0.2.7/32",)))
    check(kinds.NETWORK_POLICY, policy, "the policy")
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"][1:] == [{"ipBlock": {"cidr": "192.0.2.7/32"}}]
    assert rule["ports"] == [{"protocol": "TCP", "port": 7600}]
