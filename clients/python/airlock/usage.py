"""What agents use of models, in the Python client: tokens and money."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from airlock.messages import record
from airlock.v1 import usage_service_pb2 as pb
from airlock.wire import Wire

UsageGroup = Literal["day", "model", "agent"]


@dataclass(frozen=True)
class Usage:
    """Requests to models, their tokens, and the cost at the configured prices, 0 without those.

    `cached_input_tokens` of the `input_tokens` came from the endpoint's prompt cache, `reasoning_tokens` of the
    `output_tokens` were reasoning, and `estimated_tokens` of both were not reported by the endpoint.
    """

    requests: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    estimated_tokens: int = 0
    cost_usd: float = 0.0


NOTHING = Usage()


@dataclass(frozen=True)
class UsageTotal:
    """The usage of a group; `day_at` is the beginning of the day in UTC. What is not grouped by is None or ""."""

    day_at: datetime | None
    model: str
    agent: str
    usage: Usage


class UsageCalls(Wire):
    """The call of UsageService. Raises ScopeMissing for a key without the scope run, or an operator's operate."""

    async def usage(
        self,
        *,
        tenant: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
        by: Sequence[UsageGroup] = (),
    ) -> Sequence[UsageTotal]:
        """Return what was used, one total for each group, sorted; without `by` at most one.

        Days are whole, in UTC: from that of `since` to those that began before `until`. Operators name the tenant.
        Raises NotFound, InvalidArgument.
        """
        answer = await self._ask(pb.GetUsageRequest, tenant=tenant, since=since, until=until, by=by)
        return [record(UsageTotal, total) for total in answer.totals]
