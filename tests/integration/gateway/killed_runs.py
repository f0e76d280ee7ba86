"""Runs whose gateway is killed again and again: when to kill it, and where in its steps each run was when it died."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Select, select

from gateway.client import Client
from gateway.errors import Unavailable
from gateway.storage.database import Database
from gateway.storage.tables import events, runs, tool_calls

# What a commit takes that was sent before the gateway died; no lease is over in that time.
_COMMITTED_S = 0.05


@dataclass(frozen=True)
class Point:
    """Where a kill met a run: its newest event, and the calls that were in flight, by id, with their names."""

    run: str
    sequence: int
    after: str
    in_flight: tuple[tuple[str, str], ...]

    @property
    def interrupts(self) -> frozenset[str]:
        """The calls that must not be made again."""
        return frozenset(call_id for call_id, name in self.in_flight if name != "ls")


class KilledRuns:
    """Runs under way at once, and where each kill met them."""

    def __init__(self, database: Database, seed: int) -> None:
        self.points: list[Point] = []
        self.ids: list[str] = []
        self._moments = random.Random(seed)
        self._database = database
        # What each had reported at the last kill, from which on it was taken over; of none before the first.
        self._at: dict[str, int] = {}

    async def start(self, client: Client, threads: Sequence[str]) -> None:
        """Start one in each thread."""
        self.ids = [(await client.start_run("go on", thread=thread)).id for thread in threads]

    def enough(self, points: int) -> bool:
        """Return whether there are so many points, some with a call that was interrupted, and some without any."""
        interrupting = {bool(point.interrupts) for point in self.points}
        idle = {bool(point.in_flight) for point in self.points}
        return len(self.points) >= points and True in interrupting and False in idle

    def kills_of(self, run_id: str) -> int:
        """Return how often this run was killed."""
        return sum(point.run == run_id for point in self.points)

    async def moment(self) -> None:
        """Return at the next moment to kill at.

        Each run has been taken over since, and has begun and finished an `execute` after that; one of them has gone
        on somewhat further.
        """
        async with asyncio.timeout(240):
            await asyncio.gather(*map(self._executed, self.ids))
            run_id = self._moments.choice(self.ids)
            last = (await self._row(run_id)).last_sequence + self._moments.randint(0, 12)
            while (row := await self._row(run_id)).last_sequence < last:
                assert row.status == "running"
                await asyncio.sleep(0.02)
        await asyncio.sleep(self._moments.uniform(0, 0.2))

    async def host(self) -> str:
        """Return the process that has most of the runs."""
        hosts = [(await self._row(run_id)).gateway for run_id in self.ids]
        return str(max(hosts, key=hosts.count))

    async def killed(self, process_id: str) -> None:
        """Record where the runs were that this process had, which is dead."""
        await asyncio.sleep(_COMMITTED_S)
        for run_id in self.ids:
            row = await self._row(run_id)
            if row.gateway != process_id:
                continue
            in_flight = await self._rows(
                select(tool_calls.c.id, tool_calls.c.name)
                .where(tool_calls.c.run_id == run_id, tool_calls.c.state == "executing")
                .order_by(tool_calls.c.id)
            )
            last = (events.c.run_id == run_id) & (events.c.sequence == row.last_sequence)
            after = (await self._rows(select(events.c.type).where(last)))[0].type
            # A gateway that took it over in between has changed what was read.
            if (await self._row(run_id)).gateway == process_id:
                self.points.append(Point(run_id, row.last_sequence, after, tuple((c.id, c.name) for c in in_flight)))
                self._at[run_id] = row.last_sequence

    async def _executed(self, run_id: str) -> None:
        taken_over = run_id not in self._at
        at = self._at.get(run_id, 0)
        begun: set[tuple[str, str]] = set()
        while True:
            reported = (
                select(events).where(events.c.run_id == run_id, events.c.sequence > at).order_by(events.c.sequence)
            )
            for event in await self._rows(reported):
                at = event.sequence
                payload = json.loads(event.payload)
                assert event.type != "run_finished", payload
                taken_over = taken_over or event.type == "run_resumed"
                if event.type == "tool_call_started" and taken_over and payload["name"] == "execute":
                    begun.add((payload["call_id"], "exited"))
                if event.type == "tool_call_finished" and (payload["call_id"], payload["outcome"]) in begun:
                    return
            await asyncio.sleep(0.02)

    async def _row(self, run_id: str) -> Row[Any]:
        return (await self._rows(select(runs).where(runs.c.id == run_id)))[0]

    async def _rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        while True:
            with contextlib.suppress(Unavailable):
                return await self._database.rows(query)
