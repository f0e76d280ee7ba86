"""The MCP servers of an agent.

    agents:
      default:
        mcp:
          servers:
            notes: {command: [python3, /workspace/notes.py]}
            tracker: {url: "https://mcp.tracker.example/mcp", credential: tracker}

A server with a `command` runs in the thread's sandbox; one with a `url` is reached through the network door.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from gateway.config.section import Name, Section
from gateway.support.hosts import canonical_host

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
# The session's own, those of the connection, and the one that brokered credentials usually have.
_NOT_TO_SET = re.compile(r"(mcp-.*|proxy-.*|host|content-.*|accept.*|connection|te|trailer|upgrade|transfer-encoding)")

_SERVER_NAME = re.compile(r"(?=.{1,32}\Z)[a-z0-9]+([_-][a-z0-9]+)*")


def _server_name(name: str) -> str:
    if not _SERVER_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name a server: use up to 32 small letters and digits, joined by single '_' or '-'"
        )
    if name == "caller":
        raise ValueError(
            "'caller' cannot name a server: policies use caller/NAME for caller tools; choose another name"
        )
    return name


ServerName = Annotated[str, AfterValidator(_server_name)]
"""The model sees a tool as `name__tool`, so the name has no two underscores in a row."""


class McpServerSettings(Section):
    """One server: a program in the thread's sandbox, or an address.

    `pins` says who accepts tools that are seen for the first time: the operator, or the gateway itself (first_use).
    """

    command: tuple[str, ...] | None = Field(default=None, min_length=1, max_length=256, examples=["[npx, server]"])
    cwd: str = Field(default="/workspace", max_length=4096)
    env: dict[str, str] = Field(default_factory=dict, max_length=64)
    url: str | None = Field(default=None, max_length=2048)
    headers: dict[str, str] = Field(default_factory=dict, max_length=32)
    credential: Name | None = Field(
        default=None, description="a credential of the tenant, sent in its header (docs/network.md)"
    )
    timeout_s: float = Field(default=60.0, gt=0, le=3600, description="the longest a call may take")
    start_s: float = Field(default=30.0, gt=0, le=600, description="the longest it may take until it lists its tools")
    pins: Literal["operator", "first_use"] = Field(
        default="operator", description="who accepts tools that are seen for the first time"
    )

    @field_validator("env")
    @classmethod
    def _names_variables(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                raise ValueError(f"{name!r} is not the name of a variable, or its value has a NUL character")
        return env

    @field_validator("headers")
    @classmethod
    def _may_be_set(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not _HEADER.fullmatch(name) or not (value.isascii() and value.isprintable()):
                raise ValueError(f"{name!r} is not a header of printable ASCII")
            if _NOT_TO_SET.fullmatch(name.lower()):
                raise ValueError(f"{name}: the gateway sets this one itself")
        return headers

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url is not None:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.fragment:
                raise ValueError(f"{url!r}: write https://HOST/PATH, without a user; a secret is a `credential`")
            canonical_host(parts.hostname)
            _ = parts.port  # raises ValueError
        return url

    @model_validator(mode="after")
    def _is_one_kind(self) -> McpServerSettings:
        if (self.command is None) == (self.url is None):
            raise ValueError("set one of command (a program in the sandbox) and url (a server over HTTP)")
        given = self.model_fields_set
        if self.url is not None and given & {"cwd", "env"}:
            raise ValueError("cwd and env are for a command")
        if self.command is not None and given & {"headers", "credential"}:
            raise ValueError(
                "headers and credential are for a url: a program in the sandbox finds the placeholders of the "
                "tenant's credentials in its environment, as any command does"
            )
        if not self.cwd.startswith("/"):
            raise ValueError(f"cwd: write an absolute path, as /workspace/{self.cwd}")
        return self


class McpSettings(Section):
    """The servers by name; their tools are called server/tool in policies, and in the audit."""

    servers: dict[ServerName, McpServerSettings] = Field(
        default_factory=dict,
        max_length=16,
        examples=["`servers: {notes: {command: [python3, /workspace/notes.py]}}`"],
    )
