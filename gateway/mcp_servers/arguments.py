"""Arguments of a server's tool, checked against its pinned schema before they are judged.

What is large, or takes more than some milliseconds, is checked in a turn of the tenant, once the call is allowed.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import PrivateAttr, model_validator

from agent.tools.tool import JsonArguments
from gateway.mcp_servers.schema_check import SchemaCheck
from gateway.support.heavy_work import Work


class ServerArguments(JsonArguments):
    """The arguments of a server's tool."""

    _parameters: ClassVar[str]
    _check: ClassVar[SchemaCheck]
    _is_checked: bool = PrivateAttr(default=False)

    @classmethod
    def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
        schema: dict[str, Any] = json.loads(cls._parameters)
        schema.pop("$schema", None)
        return schema

    @model_validator(mode="after")
    def _fits(self) -> ServerArguments:
        errors = self._check.errors_at_once(self.root)
        self._is_checked = errors is not None
        if errors:
            raise ValueError("; ".join(errors))
        return self

    async def late_errors(self, work: Work) -> list[str]:
        """Return the errors in arguments that were not checked when they were made."""
        return [] if self._is_checked else await work(self._check.errors, self.root)


@lru_cache(512)
def arguments_of(parameters: str) -> type[ServerArguments]:
    """Return the model of the arguments that a JSON Schema, as JSON text, describes."""

    class Arguments(ServerArguments):
        _parameters = parameters
        _check = SchemaCheck(parameters)

    return Arguments
