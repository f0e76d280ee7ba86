"""What a run is charged for its models' requests, as this process knows it; the run's log stores it (run_log.py)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from agent.errors import ModelRefused
from agent.messages import Usage
from agent.state import AgentState, Spent
from gateway.storage.usage_store import RunUse, Used
from gateway.telemetry import attributes as a
from gateway.telemetry.telemetry import Telemetry

# The cached ones are part of the input, those of reasoning of the output.
_TOKENS = {
    "input_tokens": "input",
    "cached_input_tokens": "cached_input",
    "output_tokens": "output",
    "reasoning_tokens": "reasoning",
}


@dataclass(frozen=True)
class Charged:
    """A copy of the totals to store, empty if they are stored; `version` tells it from later ones."""

    version: int
    uses: Sequence[RunUse]


@dataclass(eq=False)
class _Attempt:
    account: "Account"
    key: tuple[str, str]
    estimate: Usage
    sent: bool = False

    def grew(self, estimate: Usage) -> None:
        self.estimate = estimate
        self.account.change()

    def end(self, usage: Usage, first_token_s: float | None) -> None:
        self.account.end(self, usage, first_token_s)


@dataclass
class Account:
    """Satisfies Charges for a run of `agent`; `before` is what it had used when it was taken over.

    `wake` is called when a request waits to be on record.
    """

    tenant: str
    agent: str
    telemetry: Telemetry = field(default_factory=Telemetry.off)
    before: Sequence[RunUse] = ()

    def __post_init__(self) -> None:
        self._uses = {(use.agent, use.model): use for use in self.before}
        self._under_way: list[_Attempt] = []
        self._version = self._stored = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._closed = False
        self.wake: Callable[[], None] = lambda: None

    async def begin(self, agent: str, model: str, estimate: Usage) -> _Attempt:
        """Put a request on record. ModelRefused once the run has ended here: no other model is to be asked either."""
        if self._closed:
            raise _over()
        use = RunUse.named(agent or self.agent, model)
        key = use.agent, use.model
        self._uses.setdefault(key, use)
        attempt = _Attempt(self, key, estimate)
        self._under_way.append(attempt)
        self.change()
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self.wake()
        try:
            await waiter
            if self._closed:
                raise _over()
        except BaseException:  # nothing is sent
            self._drop(attempt)
            raise
        attempt.sent = True
        return attempt

    def _drop(self, attempt: _Attempt) -> bool:
        """Forget a request under way; return whether it was one."""
        known = attempt in self._under_way
        if known:
            self._under_way.remove(attempt)
            self.change()
        return known

    def change(self) -> None:
        self._version += 1

    def end(self, attempt: _Attempt, usage: Usage, first_token_s: float | None) -> None:
        if not self._drop(attempt):
            return
        use = self._uses[attempt.key]
        first_token_us = use.first_token_us if first_token_s is None else round(first_token_s * 1e6)
        self._uses[attempt.key] = replace(use, used=use.used + Used(1, usage), first_token_us=first_token_us)
        labels = {a.TENANT: self.telemetry.tenants(self.tenant), a.REQUEST_MODEL: self.telemetry.models(use.model)}
        for name, kind in _TOKENS.items():
            self.telemetry.instruments.add("airlock.model.tokens", getattr(usage, name), {**labels, a.TOKEN_TYPE: kind})
        self.telemetry.instruments.add("airlock.model.cost", usage.cost_usd, labels)
        if first_token_s is not None:
            self.telemetry.instruments.add("airlock.model.first_token.duration", first_token_s, labels)

    def settle(self) -> None:
        """Charge the requests under way by their estimate: the run ends here, and does not wait for their answers.

        What only waits to be on record is not sent any more.
        """
        self._closed = True
        for attempt in list(self._under_way):
            if attempt.sent:
                self.end(attempt, attempt.estimate, None)
            else:
                self._drop(attempt)

    def uses(self) -> Sequence[RunUse]:
        """Return what was used, with the requests under way."""
        under_way: dict[tuple[str, str], Used] = {}
        for attempt in self._under_way:
            under_way[attempt.key] = under_way.get(attempt.key, Used()) + Used(1, attempt.estimate)
        return [replace(use, under_way=under_way.get(key, Used())) for key, use in self._uses.items()]

    def known_to(self, state: AgentState) -> AgentState:
        """Return a state with all that its run was charged: also for what its checkpoint does not know."""
        spent = state.others.with_(usage=state.others.usage.at_least(self._usage(own=False)))
        return state.with_(usage=state.usage.at_least(self._usage(own=True)), others=spent)

    def reported(self, finished: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Return the payload of a run's last event with what was used, also if a gateway ended the run."""
        self.settle()
        own = self._usage(own=True)
        spent = Spent(usage=own + self._usage(own=False))
        models = [_reported(use) for use in self._uses.values() if use.used.requests]
        return {"usage": own.model_dump(), "spent": spent.model_dump(), **finished, "models": models}

    def _usage(self, *, own: bool) -> Usage:
        uses = [use.used.usage for use in self._uses.values() if (use.agent == self.agent) == own]
        return sum(uses, Usage())

    # --- for the run's log ---

    def waiting(self) -> Sequence[asyncio.Future[None]]:
        """Return who waits for the next write, once."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def charged(self, *, last: bool) -> Charged:
        """Return what to store; nothing is charged after the `last` write."""
        if last:
            self.settle()
        return Charged(self._version, self.uses() if self._version > self._stored else ())

    def stored(self, charged: Charged) -> None:
        self._stored = max(self._stored, charged.version)

    def close(self) -> None:
        """Let no more request be sent."""
        self._closed = True
        for waiter in self.waiting():
            waiter.cancel()


def _over() -> ModelRefused:
    return ModelRefused("the run has ended, and no model is asked for it any more")


def _reported(use: RunUse) -> JsonValue:
    return {
        "agent": use.agent,
        "model": use.model,
        "requests": use.used.requests,
        "usage": use.used.usage.model_dump(),
        "first_token_ms": use.first_token_ms,
    }
