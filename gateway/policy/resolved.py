"""What a tenant ends up with: the rules of both layers with groups written out, and each setting with who said it."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from gateway.policy.document import PolicyDocument
from gateway.policy.file_rules import enforcement_of
from gateway.policy.judge import Policy
from gateway.policy.layers import ScopedRule, scoped_in_both
from sandbox.file_rules import FileRules

Who = Literal["tenant", "operator", "both", "default"]
_SECTIONS = ("sandbox", "limits", "eviction", "quotas", "network", "redaction", "results", "enforcement", "opaque")


@dataclass(frozen=True)
class Setting:
    """One effective value, as JSON has it, and whose word it is."""

    name: str
    value: Any
    who: Who


@dataclass(frozen=True)
class Resolved:
    """The whole of it. `files` is what the sandbox's kernel enforces for commands, None for nothing."""

    version: str
    rules: tuple[ScopedRule, ...]
    settings: tuple[Setting, ...]
    files: FileRules | None = None

    def enforced_by(self, placed: ScopedRule) -> str:
        """Return what enforces a rule: kernel, gateway, or reading."""
        return enforcement_of(placed.rule, self.files)


def resolve(policy: Policy) -> Resolved:
    """Return what the two layers of a policy come to."""
    tenant, operator = policy.tenant_document, policy.operator_document
    own, above = _flat(tenant, written_only=True), _flat(operator, written_only=True) if operator is not None else {}
    effective = _flat(policy.document, written_only=False)
    settings = tuple(Setting(name, value, _who(name, value, own, above)) for name, value in effective.items())
    return Resolved(policy.version, tuple(scoped_in_both(tenant, operator)), settings, policy.file_rules)


def _who(name: str, value: Any, own: dict[str, Any], above: dict[str, Any]) -> Who:
    said_own, said_above = name in own, name in above
    if said_own and said_above:
        same_own, same_above = own[name] == value, above[name] == value
        return "both" if same_own == same_above else "tenant" if same_own else "operator"
    return "tenant" if said_own else "operator" if said_above else "default"


def _flat(value: Any, name: str = "", *, written_only: bool) -> dict[str, Any]:
    """Return the settings of a file or a section, or those alone that it writes itself, without the defaults."""
    if isinstance(value, BaseModel):
        fields = _SECTIONS if isinstance(value, PolicyDocument) else type(value).model_fields
        flat: dict[str, Any] = {}
        for field in fields:
            if not written_only or field in value.model_fields_set:
                flat |= _flat(getattr(value, field), f"{name}.{field}".lstrip("."), written_only=written_only)
        return flat
    if isinstance(value, tuple) and all(isinstance(item, BaseModel) for item in value):
        return {name: [item.model_dump(mode="json", exclude_defaults=True) for item in value]}
    if isinstance(value, dict):
        return {name: {key: item.model_dump(mode="json") for key, item in value.items()}}
    return {name: value}
