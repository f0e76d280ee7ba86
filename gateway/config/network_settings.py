"""The network of sandboxes; an operator's bindings of secrets to a variable and to where they may be sent."""

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from gateway.config.section import Name, Section
from gateway.policy.hosts import HostPattern, compile_host

_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_PREFIX = re.compile(r"/[A-Za-z0-9._~!$&'()*+,=:@/-]*")
# They frame or route a message, or concern one connection: the relay writes these itself.
_NOT_FOR_SECRETS = frozenset({"host", "content-length", "transfer-encoding", "connection", "te", "trailer", "upgrade"})


class SecretSettings(Section):
    """Where a secret is read from, again and again: set one of the three."""

    environment: str | None = Field(default=None, min_length=1, description="a variable of the gateway")
    file: Path | None = None
    command: tuple[str, ...] | None = Field(default=None, min_length=1, description="argv; its output is the secret")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if [self.environment, self.file, self.command].count(None) != 2:
            raise ValueError("set one of environment, file and command: where the secret is")
        return self


class CredentialSettings(Section):
    """A secret that tool code uses without seeing it: `env` holds a placeholder, which requests to `hosts` exchange."""

    name: Name
    env: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="the variable that tool code reads")
    env_format: str = Field(default="{}", description="its value, as in https://token:{}@pypi.example/simple")
    hosts: Annotated[tuple[str, ...], Field(min_length=1, examples=["`hosts: [api.example, git.example:8443]`"])]
    path_prefixes: Annotated[tuple[str, ...], Field(min_length=1)] = ("/",)
    header: str = "Authorization"
    format: str = Field(default="Bearer {}", description="the header's value")
    basic_user: str | None = Field(default=None, description="sends the secret as HTTP Basic, with this user name")
    plain_http: bool = Field(default=False, description="send it over HTTP without TLS, and never over TLS")
    secret: SecretSettings
    tools: tuple[str, ...] = Field(default=(), description="the tools that get it; all unless set")
    agents: tuple[str, ...] = Field(default=(), description="the agents that get it; all unless set")

    @property
    def scheme(self) -> str:
        return "http" if self.plain_http else "https"

    @property
    def places(self) -> frozenset[tuple[str, int]]:
        """The hosts, canonical, and ports; the port of the scheme where none is written."""
        patterns = [compile_host(host) for host in self.hosts]
        return frozenset((one.name, one.port or (80 if self.plain_http else 443)) for one in patterns)

    @model_validator(mode="after")
    def _names_one_place(self) -> Self:
        for host in self.hosts:
            pattern: HostPattern = compile_host(host)
            if pattern.below:
                raise ValueError(f"hosts: {host!r}: write each host that gets the secret, without *")
        for prefix in self.path_prefixes:
            if not _PREFIX.fullmatch(prefix) or {".", "..", ""} & set(prefix.rstrip("/").split("/")[1:]):
                raise ValueError(f"path_prefixes: {prefix!r}: a path is expected, as in /repos/acme")
        if not _TOKEN.fullmatch(self.header) or _of_the_relay(self.header.lower()):
            raise ValueError(
                f"header: {self.header!r} is not a header's name, or one that the proxy or HTTP itself sets"
            )
        for field, text in (("format", self.format), ("env_format", self.env_format)):
            if text.count("{}") != 1 or not text.isascii() or not text.isprintable():
                raise ValueError(f"{field}: one {{}} is expected, where the value goes, among printable ASCII")
        if self.basic_user is not None and (":" in self.basic_user or not self.basic_user.isprintable()):
            raise ValueError("basic_user: must be printable, without ':'")
        if self.basic_user is not None and "format" in self.model_fields_set:
            raise ValueError("set either format or basic_user: what the header's value is")
        return self


def _of_the_relay(header: str) -> bool:
    return header in _NOT_FOR_SECRETS or header.startswith(("proxy-", "sec-websocket-"))


class NetworkSettings(Section):
    """The connections of sandboxes; which are allowed is the policy's business."""

    ca_file: Path | None = Field(
        default=None,
        description="certificate authorities, as PEM, trusted besides the system's where the gateway opens TLS",
    )
