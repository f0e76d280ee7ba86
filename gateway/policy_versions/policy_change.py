"""Applies a change to a policy layer, unconditionally or only over an expected version."""

from dataclasses import dataclass

from gateway.errors import PolicyChanged
from gateway.policy_versions.policies import Policies
from gateway.storage.policy_store import Change, Kind, NotStanding, digest_of_text

_LEAST_DIGEST_CHARS = 6


@dataclass(frozen=True)
class PolicyChangeRequest:
    """A checked text and its author. `expected_version`: "" expects no policy, None accepts any."""

    layer: str
    text: str
    kind: Kind
    by: str
    comment: str = ""
    expected_version: str | None = None


async def put_in_force(policies: Policies, asked: PolicyChangeRequest) -> Change:
    """Put a text in force and return the change; a text already in force changes nothing. Raises PolicyChanged."""
    expected = await _expected(policies, asked)
    try:
        return await policies.store.apply(
            asked.layer, asked.text, asked.kind, asked.by, asked.comment, expected=expected
        )
    except NotStanding as error:
        raise await _changed(policies, error.standing, asked) from None


async def is_named(policies: Policies, change: Change, version: str) -> bool:
    """Return whether a version, or a prefix of a digest, identifies this change."""
    by_digest = len(version) >= _LEAST_DIGEST_CHARS and change.digest.startswith(version)
    return by_digest or await policies.named(change) == version


async def _expected(policies: Policies, asked: PolicyChangeRequest) -> int | None:
    """Return the id of the expected change, 0 for none, None if any is accepted."""
    version = asked.expected_version
    if version is None:
        return None
    # From the database, not from what this gateway has seen: another gateway may have been faster.
    current = await policies.store.current(asked.layer)
    if current is None:
        if not version:
            return 0
    # A repeated request finds its own text in force.
    elif current.digest == digest_of_text(asked.text) or (version and await is_named(policies, current, version)):
        return current.id
    raise await _changed(policies, current, asked)


async def _changed(policies: Policies, current: Change | None, asked: PolicyChangeRequest) -> PolicyChanged:
    version = "" if current is None else await policies.named(current)
    expected = asked.expected_version or "nothing"
    return PolicyChanged(
        f"the policy in force is {version or 'nothing'}, not {expected[:128]!r}, so nothing was changed: review "
        "it, then apply your policy again if it still fits",
        version=version,
    )
