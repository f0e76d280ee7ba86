"""One tool call: in its final form, so that what is judged is what runs; and what its hooks know of it and share.

A hook serves many calls at once and stores none of them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel

from agent.frozen import frozen_arguments
from agent.messages import ToolCall, ToolResult

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


class Copied:
    """A dataclass of which hooks, or each tool call, need copies."""

    def with_(self, **changes: object) -> Self:
        """Return a copy with fields replaced, in a third of the time of dataclasses.replace."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, **changes)
        if len(copied.__dict__) > len(self.__dict__):
            unknown = ", ".join(sorted(changes.keys() - self.__dict__.keys()))
            raise TypeError(f"{type(self).__name__} has no {unknown}")
        return copied


@dataclass(frozen=True)
class JudgedCall:
    """What the policy judges, an approval is bound to, the journal and the audit record, and the tool runs.

    `canonical` is the arguments as canonical JSON (sorted keys, no spaces, ASCII), `digest` its SHA-256 in hex, `model`
    the validated arguments that the tool is given. `unfit` is the result of a call that cannot run. `read_only`: it
    changes nothing, so it may be made again.
    """

    call: ToolCall
    canonical: bytes
    digest: str
    model: BaseModel | None = None
    unfit: ToolResult | None = None
    read_only: bool = False

    @classmethod
    def of(
        cls,
        call: ToolCall,
        *,
        model: BaseModel | None = None,
        unfit: ToolResult | None = None,
        read_only: bool = False,
    ) -> Self:
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
        return cls(call, canonical, hashlib.sha256(canonical).hexdigest(), model, unfit, read_only)

    def validated(self, kind: type[M]) -> M:
        """Return the validated arguments of a tool that takes this kind. Raises TypeError for those of another."""
        if not isinstance(self.model, kind):
            raise TypeError(f"the arguments of {self.call.name} are not {kind.__name__}")
        return self.model


@dataclass(frozen=True, eq=False)
class Slot(Generic[T]):
    """The key of a value in a CallContext, created once at module level; `name` is for debugging."""

    name: str


@dataclass(frozen=True, eq=False)
class CallContext(Copied):
    """What is known of one tool call from its first hook to its last. Never stored, never shown to a model.

    `call_id` is "" before the call is known, `run_id` and `request_id` for a call without one. `clock`, in seconds,
    measures durations, from `started_s`. `resumed`: its step began in an earlier process. Hooks share values by slot.
    """

    tenant: str = ""
    thread: str = ""
    run_id: str = ""
    request_id: str = ""
    call_id: str = ""
    clock: Callable[[], float] = time.monotonic
    started_s: float = 0.0
    resumed: bool = False
    _values: dict[Slot[Any], Any] = field(default_factory=dict, repr=False)

    def of_call(self, **known: object) -> CallContext:
        """Return a context for one call, with what is known of it and with the values that are set here."""
        return self.with_(**known, _values=dict(self._values))

    def get(self, slot: Slot[T]) -> T | None:
        value: T | None = self._values.get(slot)
        return value

    def set(self, slot: Slot[T], value: T) -> None:
        self._values[slot] = value

    def pop(self, slot: Slot[T]) -> T | None:
        value: T | None = self._values.pop(slot, None)
        return value
