"""One change of a layer of policy: over whatever is in force, or only over what its author believes in force."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import PolicyChanged
from gateway.policy_versions.policies import Policies
from gateway.storage.policy_store import Change, Kind, NotStanding, digest_of_text

_LEAST_DIGEST_CHARS = 6


@dataclass(frozen=True)
class PolicyChangeRequest:
    """A text, which loads and fits, and who puts it in force. `expected_version`: "" nothing, None whatever it is."""

    layer: str
    text: str
    kind: Kind
    by: str
    comment: str = ""
    expected_version: str | None = None


async def put_in_force(policies: Policies, asked: PolicyChangeRequest) -> Change:
    """Put a text in force and return the change; one that is in force already changes nothing. PolicyChanged."""
    expected = await _expected(policies, asked)
    try:
        return await policies.store.apply(
            asked.layer, asked.text, asked.kind, asked.by, asked.comment, expected=expected
        )
    except NotStanding as error:
        raise await _changed(policies, error.standing, asked) from None


async def is_named(policies: Policies, change: Change, version: str) -> bool:
    """Return whether a version, or the beginning of a digest, means this change."""
    by_digest = len(version) >= _LEAST_DIGEST_CHARS and change.digest.startswith(version)
    return by_digest or await policies.named(change) == version


async def _expected(policies: Policies, asked: PolicyChangeRequest) -> int | None:
    """Return the id of the change that is expected, 0 for none, None where it is all the same."""
    version = asked.expected_version
    if version is None:
        return None
    # Not what this gateway has heard of: another one may have been faster.
    standing = await policies.store.current(asked.layer)
    if standing is None:
        if not version:
            return 0
    # A repetition of what went through finds its own text.
    elif standing.digest == digest_of_text(asked.text) or (version and await is_named(policies, standing, version)):
        return standing.id
    raise await _changed(policies, standing, asked)


async def _changed(policies: Policies, standing: Change | None, asked: PolicyChangeRequest) -> PolicyChanged:
    version = "" if standing is None else await policies.named(standing)
    expected = asked.expected_version or "nothing"
    return PolicyChanged(
        f"the policy in force is {version or 'nothing'}, not {expected[:128]!r}, so nothing was changed: review "
        "it, then apply your policy again if it still fits",
        version=version,
    )
