"""The gateway's configuration: one YAML file, made by `airlock init`. Relative paths are relative to that file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.errors import Misconfigured

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


class Section(BaseModel):
    """A part of the configuration; a field that is not known is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSettings(Section):
    """An OpenAI-compatible endpoint. What is not set comes from OPENAI_BASE_URL and AIRLOCK_MODEL."""

    name: str | None = None
    base_url: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    stream: bool = True
    timeout_s: float = Field(default=120.0, gt=0)

    def resolved_name(self) -> str:
        """Return the model's name."""
        return self.name or os.environ.get("AIRLOCK_MODEL") or "gpt-5-mini"

    def resolved_base_url(self) -> str | None:
        """Return the endpoint, None for the package's own default."""
        return self.base_url or os.environ.get("OPENAI_BASE_URL")

    def resolved_api_key(self) -> str:
        """Return the key; Misconfigured when the environment has none."""
        key = os.environ.get(self.api_key_env)
        if not key:
            raise Misconfigured(
                f"no key for the model: set {self.api_key_env} in the gateway's environment, "
                "or name another variable under model.api_key_env"
            )
        return key


class AgentSettings(Section):
    """An agent that StartRun can name."""

    system_prompt: str = (
        "You work in a sandbox. Your files are under /workspace. Use the tools; a refused call says which rule "
        "refused it and why, so find another way. When the task is done, answer with a short summary."
    )


class TenantSettings(Section):
    """A tenant: its policy file, and its own model if it has one."""

    policy: Path
    model: ModelSettings | None = None


class SandboxSettings(Section):
    """How sandboxes are kept."""

    engine_url: str | None = Field(
        default=None, description="Docker engine; unset means DOCKER_HOST or the default socket"
    )
    runtime_image: str = "airlock-runtime"
    channel_dir: Path | None = Field(
        default=None, description="where sandboxes' sockets are; unset means AIRLOCK_CHANNEL_DIR or state_dir/channels"
    )
    idle_timeout_s: float = Field(default=600.0, gt=0)
    max_live: int = Field(default=64, ge=1)
    max_live_per_tenant: int = Field(default=16, ge=1)
    keep_workspaces: bool = Field(default=True, description="false removes every workspace when the gateway stops")


class Config(Section):
    """The whole file. `directory` is where it lies."""

    directory: Path = Field(default=Path(), exclude=True)
    state_dir: Path = Path("state")
    database_url: str | None = Field(default=None, description="unset means SQLite in state_dir")
    sandbox: SandboxSettings = SandboxSettings()
    model: ModelSettings = ModelSettings()
    agents: dict[Name, AgentSettings] = {"default": AgentSettings()}
    tenants: dict[Name, TenantSettings] = Field(min_length=1)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and validate a file; Misconfigured names every wrong field."""
        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise Misconfigured(f"{path}: {error.strerror}; make one with `airlock init DIR`") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise Misconfigured(f"{path}: not YAML: {error}") from error
        if not isinstance(document, dict):
            raise Misconfigured(f"{path}: a mapping is expected; make one with `airlock init DIR`")
        try:
            return cls.model_validate({**document, "directory": path.resolve().parent})
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}" for problem in error.errors()
            )
            raise Misconfigured(f"{path}: {problems}") from error

    def path(self, relative: Path) -> Path:
        """Return a path of the file as an absolute one."""
        return (self.directory / relative).resolve()

    def resolved_database_url(self) -> str:
        """Return the SQLAlchemy URL."""
        return self.database_url or f"sqlite:///{self.path(self.state_dir)}/airlock.db"

    def resolved_channel_dir(self) -> Path:
        """Return where sandboxes' sockets are; the engine must find this path where the gateway does."""
        named = self.sandbox.channel_dir or os.environ.get("AIRLOCK_CHANNEL_DIR")
        return self.path(Path(named) if named else self.state_dir / "channels")

    def model_of(self, tenant: str) -> ModelSettings:
        """Return the model settings of a tenant."""
        return self.tenants[tenant].model or self.model
