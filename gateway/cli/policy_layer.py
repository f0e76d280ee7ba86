"""The versions of a layer of policy, as AdminService reports them."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from airlock.admin import AdminCalls, PolicyChange
from gateway.cli.command import taken
from gateway.config.config import Config
from gateway.errors import Misconfigured, NotFound, PolicyInvalid
from gateway.policy import Policy, PolicyError, load_policy
from gateway.policy_versions.policies import stored_document
from gateway.policy_versions.policy_check import read_policy_file
from gateway.storage.policy_store import OPERATOR, digest_of_text


class PolicyLayer:
    """One layer: a tenant's, or the operator's, which is "". Raises NotFound for others."""

    def __init__(self, admin: AdminCalls, layer: str, config: Config | None) -> None:
        """Without `config`, the layers are a gateway's, whose policy files are unknown here."""
        self._admin = admin
        self._layer = layer
        self._config = config

    async def history(self, limit: int) -> list[dict[str, Any]]:
        return [_as_document(change) for change in await self._changes(limit)]

    async def apply(self, text: str, source: str, **options: Any) -> dict[str, Any]:
        """Apply a text, or a version (see AdminCalls), if it loads and fits the configuration; return a document.

        `source` names it in messages. `refused` and `errors` say why it was not applied. `watched_file_differs` names
        the layer's policy file if that differs from the version now in force. Raises PolicyChanged if the expected
        version is not in force.
        """
        before = await self._changes(1)
        try:
            await self._admin.apply_policy(self._layer, text, **options)
        except PolicyInvalid as error:
            refused, problems = _reasons(error)
            refused = refused.replace("\n  text:", f"\n  {source}:")
            problems = problems or [{"line": 0, "field": "", "message": refused}]
            return {"ok": False, "errors": problems, "refused": refused}
        (change,) = await self._changes(1)
        unchanged = before == [change]
        replaced = _version(before[0]) or before[0].digest if before and not unchanged else ""
        applied = {"ok": True, "errors": [], **_as_document(change), "before": replaced, "unchanged": unchanged}
        file = self._watched_file(change)
        differs = file is not None and file["state"] != "in force"
        return applied | ({"watched_file_differs": file["path"]} if file is not None and differs else {})

    async def rollback(self, version: str | None, comment: str) -> dict[str, Any]:
        """Put an earlier version in force again; by default, undo the last change that is not undone."""
        version = version or _change_before(await self._changes(1000)).digest
        return await self.apply("", version, version=version, comment=comment)

    async def describe(self, *, with_text: bool) -> dict[str, Any]:
        found = await self._changes(1)
        if not found:
            raise NotFound("no policy is in force here: run `airlock policy apply`")
        if self._layer != OPERATOR:
            found += await taken(self._admin.policy_changes(OPERATOR, limit=1))
        texts = [(await self._admin.policy(change.tenant)).text for change in found]
        try:
            in_force = Policy(*map(stored_document, texts)).version
        except ValueError:  # of another release
            in_force = ""
        own, operator = _as_document(found[0]), _as_document(found[1]) if len(found) > 1 else None
        reported = own | {"operator": operator, "in_force": in_force, "file": self._watched_file(found[0])}
        return reported | {"text": texts[0]} if with_text else reported

    async def _changes(self, limit: int) -> list[PolicyChange]:
        return await taken(self._admin.policy_changes(self._layer, limit=limit))

    def _watched_file(self, change: PolicyChange) -> dict[str, str] | None:
        """Return the path and state of the layer's policy file; None if there is none or it is unknown."""
        config, layer = self._config, change.tenant
        if config is None:
            return None
        named = config.operator_policy if layer == OPERATOR else config.tenants[layer].policy_file
        if named is None:
            return None
        path = config.path(named)
        try:
            text = read_policy_file(path, "the file")
            state = "in force" if digest_of_text(text) == change.digest else "not what is in force"
            load_policy(text, str(path))
        except Misconfigured:
            state = "cannot be read"
        except PolicyError:
            state = "does not load, and is not in force"
        return {"path": str(path), "state": state}


def _reasons(error: PolicyInvalid) -> tuple[str, Sequence[dict[str, Any]]]:
    """Return why a policy was refused. A gateway's answer may be cut; without a gateway, the causes have all of it."""
    whole = error.__cause__
    if not isinstance(whole, Misconfigured):
        return str(error), json.loads(error.details.get("problems", "[]"))
    problems = whole.__cause__.errors if isinstance(whole.__cause__, PolicyError) else ()
    return str(whole), [asdict(problem) for problem in problems]


def _version(change: PolicyChange) -> str:
    """Return the version of a change; empty if it does not load, which is then named by its digest."""
    return "" if change.version == change.digest else change.version


def _as_document(change: PolicyChange) -> dict[str, Any]:
    at = change.at.isoformat(timespec="seconds")
    return asdict(change) | {"tenant": change.tenant or None, "version": _version(change), "at": at}


def _change_before(newest_first: Sequence[PolicyChange]) -> PolicyChange:
    """Return the change before the last one that no rollback has undone. Raises NotFound."""
    remaining: list[PolicyChange] = []
    for change in reversed(newest_first):
        if change.kind == "rollback":
            before = [n for n, earlier in enumerate(remaining[:-1]) if earlier.digest == change.digest]
            if before:
                del remaining[before[-1] + 1 :]
                continue
        if not remaining or remaining[-1].digest != change.digest:
            remaining.append(change)
    if len(remaining) < 2:
        raise NotFound("there is no earlier version to roll back to: `airlock policy history` lists the versions")
    return remaining[-2]
