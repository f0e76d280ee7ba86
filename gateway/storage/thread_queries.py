"""The queries of one thread: created, and read whole. Each takes the tenant; lists are in thread_store.py."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import structlog
from pydantic import JsonValue
from sqlalchemy import Column, Connection, Row, Select, func, insert, select

from agent.frozen import freeze
from agent.messages import Message
from gateway.storage.database import ConstraintViolated
from gateway.storage.entities import Thread
from gateway.storage.queries import Queries, slice_of
from gateway.storage.quota_store import refuse_more_threads
from gateway.storage.stored_message import read_message, whole_thread
from gateway.storage.tables import messages, thread_metadata, threads

_SLICE_CHARS = 1024 * 1024
T = TypeVar("T")
log = structlog.get_logger(__name__)


class ThreadQueries(Queries):
    """Threads, and what is stored of them."""

    async def thread(self, tenant: str, name: str, *, limit: int | None = None) -> Thread:
        """Return a thread of a tenant, created if missing; QuotaExceeded if that would exceed `limit`."""
        query = select(threads.c.id).where(threads.c.tenant == tenant, threads.c.name == name)
        found = await self._database.scalar(query)
        if found is not None:
            return Thread(id=found, tenant=tenant, name=name)
        made = Thread(id=self.ids("thr"), tenant=tenant, name=name)
        row = {**vars(made), "created_us": self.clock()}

        def work(connection: Connection) -> None:
            if limit is not None:
                refuse_more_threads(connection, tenant, limit)
            connection.execute(insert(threads), row)

        try:
            await self._database.transact(work)
        except ConstraintViolated:  # another call created it first
            return await self.thread(tenant, name, limit=limit)
        return made

    async def thread_chars(self, thread: Thread) -> int:
        query = select(func.sum(func.length(messages.c.message))).where(messages.c.thread_id == thread.id)
        return await self._database.scalar(query) or 0

    async def messages_of(self, thread: Thread) -> tuple[Message, ...]:
        """Return a thread's messages, oldest first. One that cannot be read is replaced by a note."""
        query = select(messages.c.position, messages.c.message).where(messages.c.thread_id == thread.id)
        found = await self._slices(query, messages.c.position, lambda row: read_message(row.message))
        bad = [position for position, one in enumerate(found) if not one.well]
        if not bad:
            return tuple(one.message for one in found if one.message is not None)
        whose = {"tenant": thread.tenant, "thread": thread.name}
        log.warning("messages of a thread cannot be read", **whose, messages=len(bad), first_position=bad[0])
        return whole_thread(one.message for one in found)

    async def metadata_of(self, thread: Thread) -> dict[str, JsonValue]:
        columns = thread_metadata.c
        query = select(columns.key, columns.value).where(columns.thread_id == thread.id)

        def parsed(row: Row[Any]) -> dict[str, JsonValue]:
            try:
                return {row.key: freeze(json.loads(row.value))}
            except (ValueError, RecursionError):  # one damaged value must not cost the thread
                log.warning("a stored value cannot be read", tenant=thread.tenant, thread=thread.name, key=row.key)
                return {}

        found = await self._slices(query, columns.key, parsed)
        return {key: value for one in found for key, value in one.items()}

    async def _slices(self, query: Select[Any], key: Column[Any], parse: Callable[[Row[Any]], T]) -> list[T]:
        """Return all rows, read and parsed slice by slice, off the event loop. `key` is the query's first column."""
        found: list[T] = []
        query = query.order_by(key)
        take = partial(slice_of, parse=parse, limit_chars=_SLICE_CHARS)
        parsed, last = await self._database.read(query, take)
        while last is not None:
            found += parsed
            parsed, last = await self._database.read(query.where(key > last), take)
        return found + parsed
