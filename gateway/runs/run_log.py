"""The log of a live run: takes events without blocking, numbers them, and stores them in order from one task.

Each transaction also stores the state that the run continues from if this process is lost
(gateway/runs/checkpoints.py). An answer of the model is withheld until that state is stored with it, so that watchers
see only what is kept. Watchers read the database, never this buffer: a slow one costs the run nothing.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog
from pydantic import JsonValue

from agent.events import PIECES, Event, merged
from agent.frozen import storable_text
from gateway.errors import Unavailable
from gateway.runs.account import Account
from gateway.storage.entities import LoggedEvent
from gateway.storage.run_writes import Claim, KeptStep, LeaseLost, RunWrite
from gateway.storage.store import Store
from gateway.support.clock import now_us

PAYLOAD_LIMIT_CHARS = 1_000_000
"""At most 4,000,000 bytes of UTF-8: below gRPC's default message limit of 4 MiB."""
# The limits for the parts of a payload that is too long: the first that makes it fit applies.
_PART_LIMITS_CHARS = (400_000, 16_384, 1_024)
_LEAST_PART_CHARS = 4_096
_MEMBERS_LIMIT = 1000
_DEPTH_LIMIT = 5
_NO_JSON = (ValueError, TypeError, RecursionError)
_PENDING_LIMIT = 1000
_BEGIN_DELAY_S = 0.05
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 2.0
# The replacement for an event that cannot be stored.
_UNSTORABLE: dict[str, JsonValue] = {"problem": "this event could not be stored; the gateway's log says why"}
_UNSTORABLE_WHY = "the end of this run could not be stored as it was; the gateway's log says why"
_UNSTORABLE_STOP: dict[str, JsonValue] = {"hook": "gateway", "rule": "unstorable", "reason": _UNSTORABLE_WHY}
log = structlog.get_logger(__name__)


def payload_json(payload: Mapping[str, JsonValue]) -> str:
    """Return the strict JSON text of a payload that any database stores, short enough to send. It never raises.

    A number that is not finite becomes null, half of a surrogate pair U+FFFD. Values that are too long are cut, with a
    note. An entry that is not JSON, or too long even when cut, is listed under "not_stored" instead.
    """
    try:
        text = _json(payload)
    except _NO_JSON:
        payload = _storable_entries(payload)
        text = _json(payload)
    for limit_chars in _PART_LIMITS_CHARS:
        if len(text) <= PAYLOAD_LIMIT_CHARS:
            return text
        text = _json({key: _cut(value, limit_chars) for key, value in payload.items()})
    if len(text) > PAYLOAD_LIMIT_CHARS:
        short = {key: value for key, value in payload.items() if len(_json(value)) <= _LEAST_PART_CHARS}
        text = _json({**short, "not_stored": [key for key in payload if key not in short]})
    return text


def _json(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:  # NaN or infinity; another error comes again
        finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
        text = json.dumps(finite, ensure_ascii=False, allow_nan=False)
    return storable_text(text)


def _storable_entries(payload: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    storable: dict[str, JsonValue] = {}
    lost: list[JsonValue] = []
    for key, value in payload.items():
        try:
            storable[key] = json.loads(_json(value))
        except _NO_JSON:
            lost.append(key)
    return {**storable, "not_stored": lost}


def _cut(value: JsonValue, limit_chars: int, depth: int = 1) -> JsonValue:
    """Return a value whose texts fit the limit; a collection with too many members becomes a note."""
    if isinstance(value, str) and len(value) > limit_chars:
        return f"{value[:limit_chars]}... [cut: {len(value)} characters]"
    if not isinstance(value, dict | list) or len(_json(value)) <= limit_chars:
        return value
    if len(value) > _MEMBERS_LIMIT or depth == _DEPTH_LIMIT:
        word = f"[cut: {len(value)} entries]"
        return {"not_stored": word} if isinstance(value, dict) else [word]
    if isinstance(value, dict):
        return {key: _cut(member, limit_chars, depth + 1) for key, member in value.items()}
    return [_cut(member, limit_chars, depth + 1) for member in value]


@dataclass(frozen=True)
class _Checkpoint:
    """What is stored with events; `done` is None if it belongs to the last event."""

    state: str | None
    step: KeptStep | None
    forget: Collection[str] = ()
    done: asyncio.Future[None] | None = field(default=None, compare=False)


class RunLog:
    """Use `emit` as the run's event sink; `wait` returns when an event after `sequence` is stored."""

    def __init__(
        self, claim: Claim | str, store: Store, *, last_sequence: int = 0, account: Account | None = None
    ) -> None:
        """Continue after `last_sequence` if the run was taken over. What `account` is charged is stored along."""
        self.claim = Claim(claim) if isinstance(claim, str) else claim
        self._account = account or Account("", "")
        self._run_id = self.claim.run_id
        self._store = store
        self.lost: Callable[[], object] = lambda: None
        """Called when another gateway has the run."""
        self._pending: list[tuple[Event, LoggedEvent]] = []
        # The index of the first pending event that is withheld.
        self._withheld_from: int | None = None
        self.sequence = last_sequence
        """The number of the newest event."""
        self._stored = last_sequence
        self._checkpoint: _Checkpoint | None = None
        self._suspended = False
        self.abandoned = False
        """Whether the run goes on elsewhere."""
        self._changed = asyncio.Event()
        self._wake = asyncio.Event()
        self._account.wake = self._wake.set
        # The number of steps, if it is not stored as it is.
        self._step: int | None = None
        self.complete = False
        """Whether the last event was taken."""
        self._flusher = asyncio.create_task(self._flush(), name=f"log of {self._run_id}")

    def emit(self, event: Event) -> None:
        if self.complete:
            return
        # Adjacent pieces that are not stored yet become one event: a slow database gets fewer, larger ones.
        both = merged(self._pending[-1][0], event) if self._pending else None
        if both is not None:
            self._pending[-1] = (both, replace(self._pending[-1][1], payload=payload_json(both.payload)))
            return
        if event.type in PIECES and len(self._pending) >= _PENDING_LIMIT:
            return  # model_finished and tool_call_finished repeat their whole text
        if event.type == "model_finished" and "within" not in event.payload and self._withheld_from is None:
            self._withheld_from = len(self._pending)
        begins = event.type == "step_started"
        counted = {"step_started": "step", "run_finished": "steps"}.get(event.type)
        if (
            counted is not None
            and "within" not in event.payload
            and isinstance(step := event.payload.get(counted), int)
        ):
            self._step = step
        logged = LoggedEvent(self.sequence + 1, event.type, now_us(), payload_json(event.payload))
        self.sequence += 1
        self._pending.append((event, logged))
        if event.type == "run_finished":
            self.complete, self._withheld_from = True, None
        if begins:  # the request to the model usually follows at once, and is put on record with it
            asyncio.get_running_loop().call_later(_BEGIN_DELAY_S, self._wake.set)
        else:
            self._wake.set()

    async def checkpoint(self, state: str | None, step: KeptStep | None = None, forget: Collection[str] = ()) -> None:
        """Return when all events so far, this state and this step are stored. Raises if the step cannot be stored.

        If the caller gives up, the next checkpoint includes everything again.
        """
        if self.complete:
            return
        before = self._checkpoint
        done = asyncio.get_running_loop().create_future()
        self._checkpoint = _Checkpoint(state, step, {*(before.forget if before else ()), *forget}, done)
        self._withheld_from = None
        self._wake.set()
        await done

    def keep_last(self, step: KeptStep, forget: Collection[str] = ()) -> None:
        """Take what the run's last step added; it is stored with the last event."""
        if not self.complete:
            self._checkpoint = _Checkpoint(None, step, forget)

    def suspend(self, event: Event, state: str, step: KeptStep | None = None) -> None:
        """Take the last event for now, to be stored with the run's state; the run then waits."""
        if self.complete:
            return
        self._suspended, self._withheld_from = True, None
        self._checkpoint = _Checkpoint(state, step)
        self.emit(event)
        self.complete = True

    def abandon(self) -> None:
        """Store nothing more: the run continues elsewhere."""
        self.complete, self.abandoned, self._withheld_from = True, True, None
        self._pending.clear()
        if self._checkpoint is not None and self._checkpoint.done is not None:
            self._checkpoint.done.cancel()
        self._checkpoint = None
        self._account.close()
        self._wake.set()

    async def wait(self, sequence: int) -> None:
        """Return when an event after `sequence` is stored, or the log is complete."""
        while self._stored <= sequence and not self._flusher.done():
            waiter = asyncio.create_task(self._changed.wait())
            await asyncio.wait({waiter, self._flusher}, return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()

    async def close(self) -> None:
        """Store the rest. Call it after run_finished was emitted, or after `suspend` or `abandon`."""
        self.complete = True
        self._withheld_from = None
        self._wake.set()
        await asyncio.shield(self._flusher)

    async def _flush(self) -> None:
        while not (self.complete and not self._pending):
            await self._wake.wait()
            self._wake.clear()
            free = len(self._pending) if self._withheld_from is None else self._withheld_from
            batch, self._pending = self._pending[:free], self._pending[free:]
            self._withheld_from = None if self._withheld_from is None else 0
            checkpoint = None
            # A checkpoint without `done` is stored with the last event.
            if self._checkpoint is not None and (self._checkpoint.done is not None or self.complete):
                checkpoint, self._checkpoint = self._checkpoint, None
            recorded = self._account.waiting()
            if not batch and checkpoint is None and not recorded:
                continue
            try:
                await self._store_all([logged for _, logged in batch], checkpoint)
            except LeaseLost:
                log.warning("a run is hosted elsewhere by now", run_id=self._run_id)
                if checkpoint is not None and checkpoint.done is not None:
                    checkpoint.done.cancel()
                for waiter in recorded:
                    waiter.cancel()
                self.abandon()
                self.lost()
            for waiter in recorded:
                if not waiter.done():
                    waiter.set_result(None)
            if batch:
                self._stored = batch[-1][1].sequence
                self._changed.set()
                self._changed = asyncio.Event()
        self._account.close()

    async def _store_all(self, batch: Sequence[LoggedEvent], checkpoint: _Checkpoint | None) -> None:
        """Store a batch; replace an event that cannot be stored by one that says so, since a run must have its end."""
        try:
            await self._keep_storing(batch, checkpoint)
        except LeaseLost:
            raise
        except Exception as error:
            # No traceback: it might contain tenant data.
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
            log.error("events cannot be stored", run_id=self._run_id, events=len(batch), error=problem)  # noqa: TRY400
            if checkpoint is not None:
                await self._store_apart(batch, checkpoint, error)
            elif len(batch) > 1:
                for logged in batch:
                    await self._store_all([logged], None)
            elif batch and (replacement := _replacement(batch[0])) != batch[0]:
                await self._store_all([replacement], None)
        else:
            if checkpoint is not None and checkpoint.done is not None and not checkpoint.done.done():
                checkpoint.done.set_result(None)

    async def _store_apart(self, batch: Sequence[LoggedEvent], checkpoint: _Checkpoint, error: Exception) -> None:
        """Store a batch and then a checkpoint that could not be stored together."""
        if batch and checkpoint.done is not None:
            await self._store_all(batch, None)
            await self._store_all((), checkpoint)
        elif checkpoint.done is not None:
            if not checkpoint.done.done():
                checkpoint.done.set_exception(error)
        elif self._suspended:
            # Without its state the run could not continue: the step may be what cannot be stored, so it is dropped.
            await self._store_all(batch, None if checkpoint.step is None else replace(checkpoint, step=None))
        else:
            await self._store_all(batch, None)

    async def _keep_storing(self, batch: Sequence[LoggedEvent], checkpoint: _Checkpoint | None) -> None:
        """Store a batch, with retries while the database refuses writes: a full disk must not cost a run its end."""
        last = batch[-1] if batch else None
        # The payload as it is stored, so that the run's row agrees with it.
        ends = last is not None and last.type == "run_finished"
        kept, step = checkpoint or _Checkpoint(None, None), self._step
        charged = self._account.charged(last=self.complete and not self._pending)
        write = RunWrite(
            events=batch,
            finished=Event(last.type, json.loads(last.payload)) if last is not None and ends else None,
            checkpoint=kept.state,
            waits=last is not None and last.type == "run_suspended" and self._suspended,
            step=kept.step,
            forget=kept.forget,
            steps=step,
            used=(self._account.tenant, charged.uses) if charged.uses else None,
        )
        wait_s = _FIRST_RETRY_S
        while not self.abandoned:
            try:
                await self._store.write_run(self.claim, write)
            except Unavailable as error:
                log.error("events are not stored yet", run_id=self._run_id, events=len(batch), error=str(error))  # noqa: TRY400 - the database has logged why
            else:
                self._account.stored(charged)
                self._step = None if self._step == step else self._step
                return
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LAST_RETRY_S)
        raise LeaseLost(self._run_id)


def _replacement(logged: LoggedEvent) -> LoggedEvent:
    """Return a small event of the same type and number."""
    finished: dict[str, JsonValue] = {"status": "failed", "stop": _UNSTORABLE_STOP, "answer": ""}
    payload = finished if logged.type == "run_finished" else _UNSTORABLE
    return replace(logged, payload=payload_json(payload))
