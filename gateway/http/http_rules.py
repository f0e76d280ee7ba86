"""The HTTP rules of the protos (google.api.http): which method and path call which RPC, and where its fields come from.

A path is matched before it is decoded, so a name in it may contain a slash as %2F.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.api import annotations_pb2  # type: ignore[import-untyped]
from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor

from gateway.http.calls import unquoted

_VARIABLE = re.compile(r"\{([a-z0-9_.]+)\}")


@dataclass(frozen=True)
class HttpRule:
    """One RPC over HTTP. `body` is "*" for the whole request, a field's name, or "" if path and query have it all."""

    rpc: MethodDescriptor
    method: str
    template: str
    body: str
    pattern: re.Pattern[str]
    variables: tuple[str, ...]

    @property
    def path(self) -> str:
        """The RPC's full name as gRPC writes it."""
        return f"/{self.rpc.containing_service.full_name}/{self.rpc.name}"

    @property
    def request_type(self) -> Any:
        return message_factory.GetMessageClass(self.rpc.input_type)

    @property
    def answer_type(self) -> Any:
        return message_factory.GetMessageClass(self.rpc.output_type)


def rules_of(files: Sequence[FileDescriptor]) -> Iterator[HttpRule]:
    """Yield the rules of all services in some files."""
    for file in files:
        for service in file.services_by_name.values():
            for rpc in service.methods:
                yield _rule(rpc)


def _rule(rpc: MethodDescriptor) -> HttpRule:
    http = rpc.GetOptions().Extensions[annotations_pb2.http]
    method = http.WhichOneof("pattern")
    if method is None:
        raise ValueError(f"{rpc.full_name} has no HTTP rule")
    template = str(getattr(http, method))
    pattern = "([^/]+?)".join(re.escape(part) for part in _VARIABLE.split(template)[::2])
    variables = tuple(_VARIABLE.findall(template))
    return HttpRule(rpc, method.upper(), template, http.body, re.compile(pattern), variables)


class Router:
    """Finds the rule of a request."""

    def __init__(self, rules: Sequence[HttpRule]) -> None:
        # A literal segment precedes a variable: /v1/threads/{thread}/files:read is not a file called "files:read".
        self._rules = sorted(rules, key=lambda rule: (len(rule.variables), -len(rule.template)))

    def find(self, method: str, raw_path: str) -> tuple[HttpRule, dict[str, str]] | None:
        """Return the rule for a method and an undecoded path, and its variables' values; raises InvalidArgument."""
        for rule in self._rules:
            if rule.method == method and (found := rule.pattern.fullmatch(raw_path)) is not None:
                return rule, dict(zip(rule.variables, map(unquoted, found.groups()), strict=True))
        return None

    def methods(self, raw_path: str) -> list[str]:
        """Return the methods that a path has."""
        return sorted({rule.method for rule in self._rules if rule.pattern.fullmatch(raw_path) is not None})
