"""The gateway's configuration: one YAML file, created by `airlock init`. Relative paths start at its directory."""

import os
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote, urlsplit

import yaml
from pydantic import Field, IPvAnyAddress, ValidationError, field_validator, model_validator

from gateway.config.agent_settings import AgentSettings
from gateway.config.http_settings import HttpSettings
from gateway.config.identity_settings import IdentitySettings, TlsSettings
from gateway.config.kubernetes_settings import KubernetesSettings, TenantKubernetesSettings
from gateway.config.model_settings import CONCURRENT_INFERENCES, MODEL_EXAMPLE, ModelSettings
from gateway.config.network_settings import CredentialSettings, NetworkSettings
from gateway.config.operation_settings import (
    AdmissionSettings,
    AuditSettings,
    RecoverySettings,
    RetentionSettings,
    RunsSettings,
    TelemetrySettings,
)
from gateway.config.section import Name, Section, problems
from gateway.config.snapshot_settings import SnapshotSettings
from gateway.errors import Misconfigured
from gateway.policy.fields import ImageGlob
from gateway.policy.yaml_lines import Problem, written_twice
from sandbox.image_names import ImageRule

_PASSWORD_LIMIT_BYTES = 4096
_AGENTS_EXAMPLE = "`agents: {default: {system_prompt: You fix programs.}}`"


class _Loader(yaml.SafeLoader):
    """Refuses duplicate fields."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        for problem in written_twice(node):
            raise problem
        return node


class TenantSettings(Section):
    """A tenant: its policy, its own model if any, and agents that only it can name."""

    policy: Literal["managed"] | Path = Field(
        description="the policy file, whose edits take effect within a second; `managed` for a policy that comes only "
        "from `airlock policy apply`"
    )
    model: ModelSettings | None = Field(default=None, examples=[MODEL_EXAMPLE])
    agents: dict[Name, AgentSettings] = Field(default_factory=dict, examples=[_AGENTS_EXAMPLE])
    concurrent_inferences: int = Field(
        default=CONCURRENT_INFERENCES,
        ge=1,
        le=4096,
        description="model requests of its runs in progress in one gateway process; more wait",
    )
    credentials: tuple[CredentialSettings, ...] = Field(
        default=(), description="secrets that its tool code uses without seeing them (docs/network.md)"
    )
    kubernetes: TenantKubernetesSettings = Field(
        default=TenantKubernetesSettings(), description="where its sandboxes are on the cluster of `engine: kubernetes`"
    )

    @property
    def policy_file(self) -> Path | None:
        return None if self.policy == "managed" else Path(self.policy)


class SandboxSettings(Section):
    """The sandboxes."""

    engine: Literal["docker", "kubernetes", "memory"] = Field(
        default="docker",
        description="memory is for development: commands run unconfined on this machine, and only loopback is served",
    )
    kubernetes: KubernetesSettings = Field(
        default=KubernetesSettings(), description="the cluster of `engine: kubernetes` (docs/kubernetes.md)"
    )
    engine_url: str | None = Field(
        default=None,
        description="Docker engine; unset means DOCKER_HOST or the default socket. tcp:// and ssh:// can be another "
        "machine (docs/deployment.md)",
    )
    channel_host: str | None = Field(
        default=None,
        min_length=1,
        description="the address at which this gateway reaches the sandboxes of an engine on another machine; unset: "
        "the host in engine_url, or none if that is this machine",
    )
    channel_listen: IPvAnyAddress | None = Field(
        default=None,
        description="the address of the engine's host on which the ports of its sandboxes are published; unset: "
        "channel_host, which must then be an IP address",
    )
    images: tuple[ImageGlob, ...] | None = Field(
        default=None,
        min_length=1,
        description="the images that tenants may use; unset means any",
        examples=["[airlock-*, python:3.12*]"],
    )
    require_digest: bool = Field(default=False, description="refuse images without a digest")
    pull: Literal["missing", "never"] = Field(
        default="missing", description="whether an image that the engine lacks is pulled"
    )
    pull_wait_s: float = Field(
        default=10.0, gt=0, le=300, description="how long a call waits for a pull, which continues in the background"
    )
    pull_timeout_s: float = Field(default=600.0, gt=0, le=86_400, description="how long a pull may take")
    runtime_image: str = Field(default="airlock-runtime", description="the daemon's bundle, of the gateway's version")
    channel_dir: Path | None = Field(
        default=None,
        description="directory of sandbox sockets and locks; unset: AIRLOCK_CHANNEL_DIR or state_dir/channels",
    )
    idle_timeout_s: float = Field(
        default=600.0, gt=0, le=604_800, allow_inf_nan=False, description="a sandbox unused for this long is stopped"
    )
    stopped_timeout_s: float = Field(
        default=86_400.0,
        ge=0,
        le=31_536_000,
        allow_inf_nan=False,
        description="a stopped sandbox unused for this long is removed; 0 removes instead of stopping",
    )
    lifetime_s: float | None = Field(
        default=86_400.0,
        gt=0,
        allow_inf_nan=False,
        description="no call starts in an older sandbox: the next call gets a new one with the same files; calls still "
        "in progress ten minutes later end with daemon_lost; null means no limit",
    )
    max_live: int = Field(default=64, ge=1, description="running sandboxes, of all gateways of the engine")
    max_stopped: int = Field(
        default=256, ge=0, description="stopped sandboxes, of all gateways of the engine; they use no memory"
    )
    max_live_per_tenant: int = Field(default=16, ge=1)
    disk_reserve_mib: int = Field(
        default=1024,
        ge=0,
        description="below this much free space on the engine's disk sandboxes may not grow; 0: none",
    )
    pool_limit: int = Field(
        default=8,
        ge=0,
        le=1024,
        description="maximum of sandboxes created in advance, as recent demand requires, per process; 0 disables the "
        "pool; the memory engine has none",
    )
    pool_min: int = Field(
        default=1,
        ge=0,
        le=1024,
        description="minimum of pooled sandboxes, of the image and size that most tenants' policies use",
    )
    keep_workspaces: bool = Field(default=True, description="false removes every workspace when the gateway stops")
    on_stop: Literal["remove", "keep"] = Field(
        default="remove", description="keep lets sandboxes and their processes run on for the next start to adopt"
    )

    @property
    def image_rule(self) -> ImageRule:
        return ImageRule(self.images, self.require_digest, "configuration's sandbox section")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if 0 < self.pool_limit < self.pool_min:  # without a pool the minimum does not matter
            raise ValueError(f"pool_min: {self.pool_min} is more than pool_limit: {self.pool_limit}")
        if self.engine == "memory" and self.on_stop == "keep":
            raise ValueError("on_stop: keep needs another engine: the memory engine's sandboxes end with their gateway")
        if self.engine == "kubernetes" and not self.keep_workspaces:
            raise ValueError(
                "keep_workspaces: false: not with engine: kubernetes, where other gateways may use the workspaces"
            )
        if self.on_stop == "keep" and not self.keep_workspaces:
            raise ValueError("on_stop: keep needs keep_workspaces: true: a running sandbox uses its workspace")
        return self


class Config(Section):
    """The whole file. Every tenant can use the `agents`; there is always one named "default"."""

    directory: Path = Field(default=Path(), exclude=True)
    state_dir: Path = Field(
        default=Path("state"), description="the gateway's own files: lock, sockets, SQLite database"
    )
    snapshots_dir: Path | None = Field(
        default=None,
        description="snapshot files, shared by all gateways of a database; unset means state_dir/snapshots",
    )
    snapshots: SnapshotSettings = Field(
        default=SnapshotSettings(), examples=["`snapshots: {bucket: s3://acme/airlock, region: eu-central-1}`"]
    )
    database_url: str | None = Field(default=None, description="unset means SQLite in state_dir")
    database_password_file: Path | None = Field(
        default=None, description="file with PostgreSQL's password, which `database_url` then leaves out"
    )
    drain_s: float = Field(default=5.0, ge=0, le=300, description="how long calls may go on when the gateway stops")
    sandbox: SandboxSettings = SandboxSettings()
    network: NetworkSettings = NetworkSettings()
    admission: AdmissionSettings = AdmissionSettings()
    recovery: RecoverySettings = RecoverySettings()
    runs: RunsSettings = RunsSettings()
    identity: IdentitySettings = IdentitySettings()
    http: HttpSettings = HttpSettings()
    tls: TlsSettings | None = Field(default=None, examples=["`tls: {certificate: tls.crt, key: tls.key}`"])
    telemetry: TelemetrySettings = TelemetrySettings()
    retention: RetentionSettings = RetentionSettings()
    audit: AuditSettings = AuditSettings()
    operator_policy: Path | None = Field(default=None, description="rules for every tenant, in addition to its own")
    model: ModelSettings = Field(default=ModelSettings(), examples=[MODEL_EXAMPLE])
    agents: dict[Name, AgentSettings] = Field(default_factory=dict, validate_default=True, examples=[_AGENTS_EXAMPLE])
    tenants: dict[Name, TenantSettings] = Field(
        min_length=1, examples=["`tenants: {default: {policy: policies/default.yaml}}`"]
    )

    @field_validator("agents", mode="before")
    @classmethod
    def _with_default(cls, agents: Any) -> Any:
        return {"default": {}, **(agents or {})} if agents is None or isinstance(agents, dict) else agents

    @field_validator("database_url")
    @classmethod
    def _has_a_known_driver(cls, url: str | None) -> str | None:
        if url is not None and url.startswith("sqlite+aiosqlite:"):
            raise ValueError(f"the driver aiosqlite is no longer used: write {url.replace('+aiosqlite', '', 1)}")
        return url

    @model_validator(mode="after")
    def _has_a_database_for_the_password(self) -> Self:
        if self.database_password_file is not None and not (self.database_url or "").startswith("postgresql"):
            raise ValueError("database_password_file: it needs `database_url: postgresql://...`")
        return self

    @model_validator(mode="after")
    def _has_one_place_for_snapshots(self) -> Self:
        if self.snapshots.bucket is not None and self.snapshots_dir is not None:
            raise ValueError("snapshots_dir and snapshots.bucket: remove one; snapshots are in one place")
        return self

    @model_validator(mode="after")
    def _credentials_name_tenants(self) -> Self:
        issued = [name for issuer in self.identity.jwt for name in (issuer.tenants or {}).values()]
        for name in [*issued, *(certificate.tenant for certificate in self.identity.certificates)]:
            if name not in self.tenants:
                raise ValueError(f"identity: tenant {name} is not one of {', '.join(sorted(self.tenants))}")
        if self.identity.certificates and not (self.tls and self.tls.requires_certificates):
            raise ValueError("identity.certificates: set tls.client_ca too, or clients are not asked for a certificate")
        return self

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and validate a file; Misconfigured names every invalid field."""
        try:
            document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - a SafeLoader
        except OSError as error:
            raise Misconfigured(f"{path}: {error.strerror}; create one with `airlock init DIR`") from error
        except Problem as problem:
            raise Misconfigured(f"{path}:{problem.line}: {problem.text}") from problem
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise Misconfigured(f"{path}: not YAML: {error}") from error
        if not isinstance(document, dict):
            raise Misconfigured(f"{path}: must be a mapping; create one with `airlock init DIR`")
        try:
            return cls.model_validate({**document, "directory": path.absolute().parent})
        except ValidationError as error:
            raise Misconfigured(f"{path}: {problems(error, cls)}") from error

    def with_http(self, listen: str) -> Self:
        """Return this configuration with another address of the HTTP listener, unless that is empty."""
        return self.model_copy(update={"http": self.http.model_copy(update={"listen": listen})}) if listen else self

    def path(self, relative: Path) -> Path:
        """Return an absolute path whose links are followed at each use.

        A mounted ConfigMap or Secret is a link to its current version, and the versions before it are removed.
        """
        return Path(os.path.normpath(self.directory / relative))

    def resolved_database_url(self) -> str:
        """Return the SQLAlchemy URL; Misconfigured if the password file cannot be read."""
        if self.database_url is None:
            return f"sqlite:///{self.path(self.state_dir).resolve()}/airlock.db"
        if self.database_password_file is None:
            return self.database_url
        return _with_password(self.database_url, self.path(self.database_password_file))

    def resolved_channel_dir(self) -> Path:
        """Return the directory of sandbox sockets; the engine must find it at the same path."""
        named = self.sandbox.channel_dir or os.environ.get("AIRLOCK_CHANNEL_DIR")
        return self.path(Path(named) if named else self.state_dir / "channels").resolve()

    def resolved_snapshots_dir(self) -> Path:
        return self.path(self.snapshots_dir or self.state_dir / "snapshots").resolve()

    def model_of(self, tenant: str) -> ModelSettings:
        """Return the complete model settings of a tenant; Misconfigured for another endpoint without a key."""
        own = self.tenants[tenant].model
        return own.within(self.model, f"tenants.{tenant}.model") if own is not None else self.model

    def agents_of(self, tenant: str) -> dict[str, AgentSettings]:
        """Return the agents that a tenant can name: its own, and the shared ones it does not override."""
        return {**self.agents, **self.tenants[tenant].agents}


def _with_password(url: str, file: Path) -> str:
    """Return a database URL with the password from a file; Misconfigured if the file is unusable or the URL has one."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    if not user:
        raise Misconfigured("database_url: the password needs a user: postgresql://USER@HOST/NAME")
    if ":" in user:
        raise Misconfigured("database_url and database_password_file both have a password: remove one")
    try:
        with file.open("rb") as opened:
            password = opened.read(_PASSWORD_LIMIT_BYTES + 1).decode().strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise Misconfigured(f"database_password_file: {file}: {why}") from error
    if not password or "\n" in password or len(password) > _PASSWORD_LIMIT_BYTES:
        raise Misconfigured(f"database_password_file: {file}: one line with the password is expected")
    # Not geturl(): it would drop the empty host of a socket's URL.
    return url.replace(f"//{parts.netloc}", f"//{user}:{quote(password, safe='')}@{host}", 1)
