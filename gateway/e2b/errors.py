"""Errors as E2B's SDKs read them: {"code", "message"} from HTTP, and a code and a message from Connect."""

from collections.abc import Mapping
from typing import Self

import structlog
from starlette.responses import JSONResponse

from gateway.errors import (
    AirlockError,
    ApprovalPending,
    Cancelled,
    Internal,
    IsADirectory,
    NoSpace,
    NotADirectory,
    SandboxBusy,
    StartFailed,
    ThreadBusy,
    Unavailable,
)
from gateway.http.problems import status_of

log = structlog.get_logger(__name__)
# By class, where E2B answers otherwise than google.rpc.Code suggests. 503 means that nothing was changed: try again.
_STATUS: Mapping[type[AirlockError], int] = {
    ApprovalPending: 403,
    IsADirectory: 400,
    NoSpace: 507,
    NotADirectory: 400,
    SandboxBusy: 503,
    StartFailed: 400,
    ThreadBusy: 503,
}
_CODE: Mapping[type[AirlockError], str] = {
    ApprovalPending: "permission_denied",
    Cancelled: "canceled",
    IsADirectory: "invalid_argument",
    NotADirectory: "invalid_argument",
    StartFailed: "invalid_argument",
}


class Gone(Unavailable):
    """The sandbox was killed, is paused, or never was: what E2B's proxy says with 502. The SDKs know its words."""

    @classmethod
    def of(cls, sandbox_id: str, why: str = "") -> Self:
        return cls(f"The sandbox {sandbox_id[:64]!r} was not found{why and ': '}{why}")


class NoCounterpart(AirlockError, code="UNIMPLEMENTED"):
    """The request asks for something that E2B has and Airlock has not."""


def known(error: Exception) -> AirlockError:
    """Return an error that a caller may see; a fault of the gateway is logged."""
    if isinstance(error, AirlockError):
        return error
    log.error("fault", exc_info=error)
    return Internal("internal error in the gateway; its log has the details")


def http_status(error: AirlockError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, Gone):
        return 502
    return _STATUS.get(type(error)) or status_of(error)


def connect_code(error: AirlockError) -> str:
    """Return the Connect code of an error."""
    return _CODE.get(type(error)) or error.code.name.lower()


def said(error: AirlockError) -> str:
    """Return the message of an error, with what helps to act on it."""
    details = error.details
    text = str(error)
    added = [details[name] for name in ("rule", "approval_id") if details.get(name)]
    return " ".join([text, *(f"({one})" for one in added if one not in text)])


def refused(error: AirlockError) -> JSONResponse:
    """Return the response for an error."""
    return answer(http_status(error), said(error))


def answer(status: int, message: str) -> JSONResponse:
    """Return an error of E2B's form."""
    return JSONResponse({"code": status, "message": message}, status)
