"""Operations of operators on policies: read a layer, put one in force, list its changes."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.agents.agents import agents_of_all
from gateway.config.config import Config
from gateway.errors import InvalidArgument, Misconfigured, NotFound, PolicyChanged, PolicyInvalid
from gateway.policy import Policy, PolicyError, load_document
from gateway.policy.layers import ScopedRule
from gateway.policy.resolved import resolve
from gateway.policy_versions.policies import Policies
from gateway.policy_versions.policy_check import PolicyChecker
from gateway.redaction.redactor import WELL_KNOWN_SECRETS
from gateway.storage.policy_store import OPERATOR, Change, Kind, NotStanding, digest_of_text
from gateway.support.paging import place_of

_LEAST_DIGEST_CHARS = 6
# Error details travel in a trailer, and many programs accept no more than 8 KiB of trailers.
_PROBLEMS_LIMIT_CHARS = 1200
_HISTORY = 1000


@dataclass(frozen=True)
class PolicyLayer:
    """A layer of policy: its text, its version, and its rules, each with what enforces it."""

    text: str
    version: str
    rules: Sequence[tuple[ScopedRule, str]]


class PolicyAdmin:
    """The policy layers of the tenants; `layer` is a tenant's name, or "" for the operator's layer."""

    def __init__(self, config: Config, policies: Policies) -> None:
        self._config = config
        self._policies = policies

    async def read(self, layer: str, version: str = "") -> PolicyLayer:
        """Return the layer in force, or a former version of it. NotFound."""
        change = await self._change(layer, version)
        text = await self._policies.store.text(change.digest)
        above = self._policies.change_in_force(OPERATOR) if layer != OPERATOR else None
        operator = None if above is None else await self._policies.store.text(above.digest)
        rules = await asyncio.to_thread(_enforced_rules, text, operator)
        return PolicyLayer(text, await self._policies.named(change), rules)

    async def apply(
        self,
        layer: str,
        *,
        text: str,
        version: str,
        comment: str,
        by: str,
        check_only: bool,
        expected_version: str | None = None,
    ) -> str:
        """Put a text or an earlier version in force and return its version; PolicyInvalid lists the problems.

        A text that is already in force changes nothing. Raises PolicyChanged if `expected_version` is no longer in
        force; "" expects that none ever was, None accepts any.
        """
        self._check_layer(layer)
        if bool(text) == bool(version):
            raise InvalidArgument("text: set exactly one of text and version")
        if version:
            text = await self._policies.store.text((await self._change(layer, version)).digest)
        await self._check(layer, text)
        current = self._policies.change_in_force(layer)
        # An expected version is compared in the database: this gateway may not have seen the last change.
        known = expected_version is None and current is not None and current.digest == digest_of_text(text)
        if not check_only and not known:
            kind: Kind = "rollback" if version else "apply"
            expected = await self._expected(layer, text, expected_version)
            shown, apply = WELL_KNOWN_SECRETS.shown(comment), self._policies.store.apply
            try:
                current = await apply(layer, text, kind, by, shown, expected=expected)
            except NotStanding as error:
                raise await self._changed(error.standing, expected_version) from None
            await self._policies.take([current])
        return "" if current is None or check_only else await self._policies.named(current)

    async def history(self, layer: str, *, size: int, token: str) -> Sequence[tuple[Change, str]]:
        """Return the changes of a page, newest first, and one more if there is a next page, each with its version."""
        self._check_layer(layer)
        place = place_of(token, layer)
        found = await self._policies.store.history(layer, size + 1, before=None if place is None else place[0])
        return [(change, await self._policies.named(change)) for change in found]

    async def _expected(self, layer: str, text: str, version: str | None) -> int | None:
        """Return the id of the expected change, 0 for none, None if any is accepted."""
        if version is None:
            return None
        # From the database, not from what this gateway has seen: another gateway may have been faster.
        current = await self._policies.store.current(layer)
        if current is None:
            if not version:
                return 0
        # A repeated request finds its own text in force.
        elif current.digest == digest_of_text(text) or (version and await self._is_named(current, version)):
            return current.id
        raise await self._changed(current, version)

    async def _changed(self, current: Change | None, expected_version: str | None) -> PolicyChanged:
        version = "" if current is None else await self._policies.named(current)
        expected = expected_version or "nothing"
        return PolicyChanged(
            f"the policy in force is {version or 'nothing'}, not {expected[:128]!r}, so nothing was changed: review "
            "it, then apply your policy again if it still fits",
            version=version,
        )

    async def _is_named(self, change: Change, version: str) -> bool:
        """Return whether a version, or a prefix of a digest, identifies this change."""
        by_digest = len(version) >= _LEAST_DIGEST_CHARS and change.digest.startswith(version)
        return by_digest or await self._policies.named(change) == version

    async def _check(self, layer: str, text: str) -> None:
        checker = PolicyChecker(self._config, await asyncio.to_thread(agents_of_all, self._config))
        try:
            await checker.check(layer, text, "text", self._policies)
        except Misconfigured as error:
            raise _invalid(error) from error

    async def _change(self, layer: str, version: str) -> Change:
        self._check_layer(layer)
        if not version:
            change = self._policies.change_in_force(layer)
            if change is None:
                raise NotFound("no policy was ever applied here")
            return change
        for change in await self._policies.store.history(layer, _HISTORY):
            if await self._is_named(change, version):
                return change
        raise NotFound(f"version {version[:64]!r} not found among the last {_HISTORY:,} versions")

    def _check_layer(self, layer: str) -> None:
        if layer != OPERATOR and layer not in self._config.tenants:
            raise NotFound(f"no tenant {layer[:64]!r}")


def _enforced_rules(text: str, operator: str | None) -> Sequence[tuple[ScopedRule, str]]:
    """Return the rules of a layer, each with what enforces it; none where a text from an earlier release is invalid."""
    try:
        document = load_document(text, "text")
        above = None if operator is None else load_document(operator, "operator")
    except PolicyError:
        return ()
    found = resolve(Policy(document, above))
    return [(placed, found.enforced_by(placed)) for placed in found.rules if placed.layer == "tenant"]


def _invalid(error: Misconfigured) -> PolicyInvalid:
    cause = error.__cause__
    message = str(error)
    if not isinstance(cause, PolicyError):
        return PolicyInvalid(message[:_PROBLEMS_LIMIT_CHARS])
    problems = [{"line": one.line, "field": one.field, "message": one.message} for one in cause.errors]
    while problems and len(json.dumps(problems)) > _PROBLEMS_LIMIT_CHARS:
        problems.pop()
    return PolicyInvalid(message[:_PROBLEMS_LIMIT_CHARS], problems=json.dumps(problems))
