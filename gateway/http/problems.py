"""Errors as application/problem+json (RFC 9457), with the reasons of docs/reference/errors.md."""

import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from gateway.errors import AirlockError, InProgress, InvalidArgument, Overloaded, TooLarge, Unauthenticated

# As google.rpc.Code documents them.
_STATUS: Mapping[str, int] = {
    "CANCELLED": 499,
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


class Problem(JSONResponse):
    """An error document. `code` and `reason` are those of the gRPC status."""

    media_type = "application/problem+json"


def status_of(error: AirlockError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, TooLarge):
        return 413
    return _STATUS.get(error.code.name, 500)


def fields_of(error: AirlockError) -> dict[str, Any]:
    """Return the members of an error's problem document."""
    fields: dict[str, Any] = {
        "type": f"urn:airlock:error:{error.reason}",
        "title": error.reason.replace("_", " ").capitalize(),
        "status": status_of(error),
        "detail": str(error),
        "code": error.code.name,
        "reason": error.reason,
    }
    if error.details:
        fields["details"] = dict(error.details)
    if isinstance(error, InvalidArgument) and error.violations:
        fields["violations"] = [{"field": field, "message": text} for field, text in error.violations.items()]
    if isinstance(error, Overloaded | InProgress) and error.retry_after_s is not None:
        fields["retry_after_s"] = error.retry_after_s
    return fields


def problem(error: AirlockError, headers: Mapping[str, str] | None = None) -> Problem:
    """Return the response for an error."""
    fields = fields_of(error)
    added = dict(headers or {})
    if "retry_after_s" in fields:
        added["retry-after"] = str(math.ceil(fields["retry_after_s"]))
    if isinstance(error, Unauthenticated):
        added.setdefault("www-authenticate", "Bearer")
    return Problem(fields, status_code=fields["status"], headers=added)


def refusal(status: int, title: str, detail: str) -> Problem:
    """Return the response for a request that reaches no service, such as one to an unknown path."""
    fields = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return Problem(fields, status_code=status)
