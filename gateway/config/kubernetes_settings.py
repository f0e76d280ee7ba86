"""Where sandboxes are on a Kubernetes cluster, and what each of their Pods gets besides its policy."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, IPvAnyNetwork, model_validator

from gateway.config.section import Section

_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
ObjectName = Annotated[str, Field(pattern=_NAME)]


class TenantKubernetesSettings(Section):
    """What is otherwise for the sandboxes of one tenant; unset means as `sandbox.kubernetes` says."""

    storage_class: ObjectName | None = Field(default=None, description="class of its workspaces' volumes")
    snapshot_class: ObjectName | None = Field(
        default=None,
        description="VolumeSnapshotClass of its snapshots; with a storage_class of its own, unset means none",
    )
    node_selector: dict[str, str] | None = Field(
        default=None,
        description="labels of the nodes that take its sandboxes",
        examples=["`node_selector: {tenant: acme}`"],
    )
    tolerations: tuple[dict[str, Any], ...] | None = Field(
        default=None,
        description="taints of nodes that take its sandboxes",
        examples=["[{key: tenant, value: acme, effect: NoSchedule}]"],
    )
    topology_spread: tuple[dict[str, Any], ...] | None = Field(
        default=None,
        description="topologySpreadConstraints of each of its Pods",
        examples=["[{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule}]"],
    )


class KubernetesSettings(Section):
    """The cluster of `engine: kubernetes`."""

    mode: Literal["auto", "pods", "agent-sandbox"] = Field(
        default="auto",
        description="what a sandbox is: a Pod, or a Sandbox of agents.x-k8s.io/v1beta1; auto means the latter where "
        "the cluster serves it when the first gateway starts, which records that for later ones",
    )
    namespace: ObjectName = Field(
        default="airlock-sandboxes", description="namespace of the sandboxes, which exists and has nothing else in it"
    )
    namespace_per_tenant: bool = Field(
        default=False,
        description="each tenant's Pods and volumes are in a namespace of its own, which the gateway makes and removes "
        "with the tenant; in `namespace` there are only records",
    )
    gateway_namespace: ObjectName | None = Field(
        default=None, description="the gateway's own namespace, for its key; unset means the sandboxes' namespace"
    )
    gateway_selector: dict[str, str] = Field(
        default_factory=lambda: {"app.kubernetes.io/name": "airlock"},
        min_length=1,
        description="labels of the gateway's Pods, which alone may reach a sandbox",
        examples=["`gateway_selector: {app: airlock}`"],
    )
    gateway_cidrs: tuple[IPvAnyNetwork, ...] = Field(
        default=(),
        description="addresses outside of Pods from which gateways reach sandboxes: one that runs beside the cluster",
        examples=["`gateway_cidrs: [192.0.2.7/32]`"],
    )
    kubeconfig: Path | None = Field(
        default=None, description="kubeconfig file of the cluster; unset means the cluster that the gateway runs in"
    )
    context: str | None = Field(default=None, min_length=1, description="context of the kubeconfig; unset: its own")
    storage_class: ObjectName | None = Field(
        default=None, description="class of the workspaces' volumes; unset means the cluster's default class"
    )
    snapshot_class: ObjectName | None = Field(
        default=None,
        description="VolumeSnapshotClass: then snapshots are copies of volumes, in the cluster; unset means that the "
        "gateway stores the files",
    )
    runtime_volume: Literal["copy", "image"] = Field(
        default="copy",
        description="how the daemon gets into a Pod: copied from runtime_image, or as an image volume of it",
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict,
        description="labels of the nodes that take sandboxes",
        examples=["`node_selector: {pool: sandboxes}`"],
    )
    tolerations: tuple[dict[str, Any], ...] = Field(
        default=(),
        description="taints of nodes that take sandboxes, as a Pod has them",
        examples=["[{key: sandboxes, operator: Exists}]"],
    )
    topology_spread: tuple[dict[str, Any], ...] = Field(
        default=(),
        description="topologySpreadConstraints of each Pod; without a labelSelector they count the instance's Pods",
        examples=["[{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway}]"],
    )
    image_pull_secrets: tuple[ObjectName, ...] = Field(
        default=(), description="Secrets in the sandboxes' namespace with the credentials of registries"
    )
    allow_unlimited_pids: bool = Field(
        default=False,
        description="accept Pods without a limit of processes of their own; set podPidsLimit in every kubelet instead",
    )

    @model_validator(mode="after")
    def _has_the_secrets_where_pods_are(self) -> Self:
        if self.namespace_per_tenant and self.image_pull_secrets:
            raise ValueError(
                "image_pull_secrets: no Secrets are copied into the namespaces that namespace_per_tenant makes; give "
                "the nodes the credentials of the registry"
            )
        return self
