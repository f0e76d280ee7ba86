"""A tool call in its final form: validated, encoded and digested once, so that what is judged is what runs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from pydantic import BaseModel

from agent.frozen import frozen_arguments
from agent.messages import ToolCall, ToolResult

M = TypeVar("M", bound=BaseModel)
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class JudgedCall:
    """What the policy judges, an approval is bound to, the journal and the audit record, and the tool runs.

    `canonical` is the arguments as canonical JSON (sorted keys, no spaces, ASCII), `digest` its SHA-256 in hex, `model`
    the validated arguments that the tool is given. `unfit` is the result of a call that cannot run.
    """

    call: ToolCall
    canonical: bytes
    digest: str
    model: BaseModel | None = None
    unfit: ToolResult | None = None

    @classmethod
    def of(cls, call: ToolCall, *, model: BaseModel | None = None, unfit: ToolResult | None = None) -> Self:
        """Freeze, encode and digest the arguments; those that are not JSON are dropped, and the call is unfit."""
        try:
            arguments = frozen_arguments(call.arguments)
            canonical = _CANONICAL.encode(arguments).encode()
        except (TypeError, ValueError, RecursionError) as error:
            problem = f"are not JSON: {error}"
            unfit = unfit or ToolResult.error(f"the arguments of {call.name} {problem}")
            return replace(cls.of(call.with_(arguments=None, problem=problem)), unfit=unfit)
        if arguments is not call.arguments:
            call = call.with_(arguments=arguments)
        return cls(call, canonical, hashlib.sha256(canonical).hexdigest(), model, unfit)

    def validated(self, kind: type[M]) -> M:
        """Return the validated arguments of a tool that takes this kind. Raises TypeError for those of another."""
        if not isinstance(self.model, kind):
            raise TypeError(f"the arguments of {self.call.name} are not {kind.__name__}")
        return self.model
