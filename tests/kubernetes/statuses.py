"""The errors of the Kubernetes API, with the messages and details of the real one: clients read both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.kinds import Kind


@dataclass(frozen=True)
class Cause:
    """One field that is wrong."""

    field: str
    reason: str
    message: str


@dataclass
class ApiError(Exception):
    """A request that fails, as a Status."""

    code: int
    reason: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)
    retry_after_s: int | None = None

    def body(self) -> dict[str, Any]:
        """Return the Status that is sent."""
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message}
        details = dict(self.details)
        if self.retry_after_s is not None:
            details["retryAfterSeconds"] = self.retry_after_s
        return {**status, "reason": self.reason, **({"details": details} if details else {}), "code": self.code}


def _of(kind: Kind, name: str) -> dict[str, Any]:
    return {"name": name, **({"group": kind.group} if kind.group else {}), "kind": kind.plural}


def not_found(kind: Kind, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{kind.qualified} "{name}" not found', _of(kind, name))


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(kind: Kind, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{kind.qualified} "{name}" already exists', _of(kind, name))


def conflict(kind: Kind, name: str, why: str = "") -> ApiError:
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", message, _of(kind, name))


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def forbidden(kind: Kind, name: str, why: str) -> ApiError:
    """Return the error of an admission rule."""
    return ApiError(403, "Forbidden", f'{kind.qualified} "{name}" is forbidden: {why}', _of(kind, name))


def invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> ApiError:
    texts = [f"{cause.field}: {cause.message}" for cause in causes]
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = {
        **_of(kind, name),
        "kind": kind.kind,
        "causes": [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes],
    }
    return ApiError(422, "Invalid", f'{kind.qualified_kind} "{name}" is invalid: {listed}', details)


def undecodable(kind: Kind, why: str) -> ApiError:
    return bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}')


def gone(message: str = "The resourceVersion for the provided watch is too old.") -> ApiError:
    return ApiError(410, "Expired", message)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def too_many_requests(retry_after_s: int) -> ApiError:
    message = "the server has received too many requests and has asked us to try again later"
    return ApiError(429, "TooManyRequests", message, retry_after_s=retry_after_s)


def internal(why: str) -> ApiError:
    details = {"causes": [{"message": why}]}
    return ApiError(500, "InternalError", f"Internal error occurred: {why}", details)
