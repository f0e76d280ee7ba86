"""Where sandboxes are on a Kubernetes cluster, and what each of their Pods gets besides its policy."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, IPvAnyNetwork

from gateway.config.section import Section

_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
ObjectName = Annotated[str, Field(pattern=_NAME)]


class KubernetesSettings(Section):
    """The cluster of `engine: kubernetes`."""

    namespace: ObjectName = Field(
        default="airlock-sandboxes", description="namespace of the sandboxes, which exists and has nothing else in it"
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
        default=None, description="file with the way to the cluster; unset means the cluster that the gateway runs in"
    )
    context: str | None = Field(default=None, min_length=1, description="context of the kubeconfig; unset: its own")
    storage_class: ObjectName | None = Field(
        default=None, description="class of the workspaces' volumes; unset means the cluster's default class"
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
        description="topologySpreadConstraints of each Pod",
        examples=["[{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway}]"],
    )
    image_pull_secrets: tuple[ObjectName, ...] = Field(
        default=(), description="Secrets in the sandboxes' namespace with the credentials of registries"
    )
    allow_unlimited_pids: bool = Field(
        default=False,
        description="accept Pods whose control group limits no processes: then the kubelets' podPidsLimit must",
    )
