"""Errors of the agent. A failing tool raises none of these: the call's result says so.

str() of each says what is wrong and how to fix it, and contains no secret.
"""

from agent.messages import Usage


class AgentError(Exception):
    """Base class of the errors of the agent."""


class ModelError(AgentError):
    """No usable answer from the model. `retryable`: another attempt may succeed.

    `usage` is that of a partial answer, None if nothing was received. `model` names the model that failed where several
    are asked in turn.
    """

    retryable = False
    usage: Usage | None = None
    model: str = ""


class ModelUnavailable(ModelError):
    """The model was not reachable, timed out, or answered 429 or 5xx, or the connection ended before the answer did.

    `retry_after_s` is the endpoint's Retry-After, if any. `unanswered`: the request was sent and had no answer in time;
    the endpoint may have worked on it.
    """

    retryable = True

    def __init__(self, message: str, *, retry_after_s: float | None = None, unanswered: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.unanswered = unanswered


class ModelRefused(ModelError):
    """The endpoint understood the request and refused it (400, 401, 403, 404 and the like): retrying does not help.

    `unsupported_parameter` is the request's parameter that the endpoint does not take, if it says so.
    """

    unsupported_parameter: str | None = None


class ContextLengthExceeded(ModelRefused):
    """The request is longer than the model's context window: fewer messages may fit."""


class ModelNonsense(ModelError):
    """The endpoint sent something other than an answer: it violates the protocol."""

    retryable = True


class HookFailed(AgentError):
    """A hook raised, timed out or returned the wrong type."""

    def __init__(self, hook: str, point: str, problem: str) -> None:
        super().__init__(f"hook {hook} failed at {point}: {problem}")
        self.hook = hook
        self.point = point
        self.problem = problem


class Withheld(AgentError):
    """What a tool gave back must not be shown, for the reason that str() gives; the call's result says so.

    `outcome` and `exit_code` say how the tool ended.
    """

    outcome = "failed"
    exit_code: int | None = None


class InvalidPath(AgentError, ValueError):
    """A path is empty or contains NUL."""
