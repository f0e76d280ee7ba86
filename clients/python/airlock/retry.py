"""When the Python client retries, how often, and how long it waits in between.

Only safe calls are retried: reads, lists, and those with a request id, which the gateway executes once. An exhausted
quota is left to the caller. While most of a client's calls are refused for overload, a refusal is final at once: five
attempts of every call would be five times the load.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from airlock.errors import AirlockError, InProgress, Overloaded, QuotaExceeded, Unavailable


@dataclass(frozen=True)
class Retry:
    """How a client retries.

    A call has `attempts` in all, with pauses that double from `first_s` up to `longest_s`; a longer pause that the
    gateway asks for (RetryInfo) is obeyed up to `longest_s`. A request that another gateway executes (InProgress) is
    repeated for `resume_s` seconds. A broken stream is resumed until nothing has come for `resume_s`, which covers a
    restart of the gateway.
    """

    attempts: int = 5
    first_s: float = 0.1
    longest_s: float = 2.0
    resume_s: float = 30.0


DEFAULT_RETRY = Retry()
# As in gRPC's retry throttling: a refusal costs one, a success gives a tenth, and half must be left.
_TOKENS, _TOKENS_OF_SUCCESS = 10.0, 0.1


class RetryBudget:
    """Limits the retries of refused calls on a connection."""

    def __init__(self) -> None:
        self._tokens = _TOKENS

    def succeeded(self) -> None:
        self._tokens = min(_TOKENS, self._tokens + _TOKENS_OF_SUCCESS)

    def refused(self) -> bool:
        """Count a call that was refused for overload; return whether it may be retried."""
        self._tokens = max(0.0, self._tokens - 1)
        return self._tokens > _TOKENS / 2


class Attempts:
    """The attempts of one call or stream."""

    def __init__(
        self, retry: Retry | None, chance: Callable[[], float] = random.random, budget: RetryBudget | None = None
    ) -> None:
        """Without `retry` there is only one; `chance` returns numbers from 0 to 1."""
        self._retry = retry
        self._budget = budget or RetryBudget()
        self._chance = chance
        self._failed = 0
        self._waited_s = 0.0

    def progressed(self) -> None:
        """Reset the count of failures, because an answer came."""
        self._failed = 0
        self._waited_s = 0.0

    def pause_s(self, error: AirlockError) -> float | None:
        """Return how long to wait before the next attempt of a call, None to give up."""
        retry = self._retry
        if retry is None:
            return None
        self._failed += 1
        if isinstance(error, InProgress):
            return self._waited(retry, max(error.retry_after_s or 0.0, self._backoff_s(retry)))
        if self._failed >= retry.attempts or isinstance(error, QuotaExceeded):
            return None
        if isinstance(error, Overloaded):
            if not self._budget.refused():
                return None
            asked_s = error.retry_after_s
            return None if asked_s is None or asked_s > retry.longest_s else max(asked_s, self._backoff_s(retry))
        return self._backoff_s(retry) if isinstance(error, Unavailable) else None

    def resume_pause_s(self, error: AirlockError) -> float | None:
        """Return how long to wait before a stream is resumed, None to give up."""
        if isinstance(error, Overloaded):
            return self.pause_s(error)
        retry = self._retry
        if retry is None or not isinstance(error, Unavailable):
            return None
        self._failed += 1
        return self._waited(retry, self._backoff_s(retry))

    def _waited(self, retry: Retry, pause_s: float) -> float | None:
        """Return a pause that counts against `resume_s`, None if that is used up."""
        if self._waited_s >= retry.resume_s:
            return None
        self._waited_s += pause_s
        return pause_s

    def _backoff_s(self, retry: Retry) -> float:
        """Return a random pause, so that many clients do not come back at once."""
        meant_s = min(retry.first_s * 2.0 ** min(self._failed - 1, 30), retry.longest_s)
        return meant_s * (0.5 + self._chance() / 2)
