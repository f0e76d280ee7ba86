"""Errors of the agent.

    AgentError
    +-- ModelError              the model gave no usable answer
    |   +-- ModelUnavailable    no connection, dropped, timed out, 429 or 5xx: asking again may help
    |   +-- ModelRefused        400, 401, 403, 404 and the like: asking again will not help
    |   |   +-- ContextLengthExceeded   the messages do not fit the model's window: fewer of them may
    |   +-- ModelNonsense       it answered, but not with what the protocol says
    +-- HookFailed              a hook raised, timed out or returned something else than it must
    +-- InvalidPath (ValueError)  a path that no tool takes

A tool that fails raises none of these: its call has a result that says so. str() of each says what is wrong and how to
mend it, and holds no secret.
"""

from agent.messages import Usage


class AgentError(Exception):
    """A run could not go on as asked."""


class ModelError(AgentError):
    """The model gave no usable answer. `retryable` says whether asking again may help.

    `usage` is what an answer that began and was of no use took, None when nothing came.
    """

    retryable = False
    usage: Usage | None = None


class ModelUnavailable(ModelError):
    """The model could not be reached, or not up to the end of its answer.

    `retry_after_s` is how long the endpoint asks to be left alone, None when it does not say.
    """

    retryable = True

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelRefused(ModelError):
    """The endpoint understood the request and refused it."""


class ContextLengthExceeded(ModelRefused):
    """The request is longer than the model's context window."""


class ModelNonsense(ModelError):
    """The endpoint answered with something that is no answer."""

    retryable = True


class HookFailed(AgentError):
    """A hook failed at a point."""

    def __init__(self, hook: str, point: str, problem: str) -> None:
        super().__init__(f"hook {hook} failed at {point}: {problem}")
        self.hook = hook
        self.point = point
        self.problem = problem


class InvalidPath(AgentError, ValueError):
    """A path is empty or holds NUL."""
