"""Threads as their tenant sees them: list, read, set metadata, delete. A run's writes are in checkpoints.py."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.frozen import NotStorable, freeze
from agent.messages import Message
from agent.tools.intake import values_in
from gateway.credentials.caller import actor
from gateway.data_lifecycle.erasure import Erasure
from gateway.errors import InvalidArgument, TooLarge
from gateway.runs.checkpoints import KEY_LIMIT_CHARS, KEYS_LIMIT, METADATA_LIMIT_BYTES, VALUE_LIMIT_CHARS
from gateway.storage.entities import NOT_READ, read_message
from gateway.storage.store import Store
from gateway.storage.thread_store import ThreadRow, ThreadStore, busy_with, entry_bytes
from gateway.support.heavy_work import Work, at_once
from gateway.support.paging import page_size, paged, place_of, token_of
from gateway.tenancy.quotas import Quotas
from gateway.tenancy.tenants import Tenant

_VALUES_LIMIT = 20_000
# More is checked in a thread, in a turn of its tenant.
_CHECKED_AT_ONCE_BYTES = 16 * 1024


@dataclass(frozen=True)
class WholeThread:
    """A thread with its metadata (JSON texts by key) and the number of its messages."""

    row: ThreadRow
    metadata: Mapping[str, str]
    messages: int


@dataclass(frozen=True)
class Said:
    """One message of a thread. A message that cannot be read says so in its content."""

    position: int
    run_id: str
    message: Message


@dataclass
class Threads:
    """The threads of every tenant; `forget` is called with each deleted thread.

    `work_of` returns what does work in turns of a tenant.
    """

    store: Store
    listed: ThreadStore
    erasure: Erasure
    forget: Callable[[Tenant, str], None]
    quotas: Quotas
    work_of: Callable[[str], Work] = lambda _tenant: at_once

    async def page(self, tenant: Tenant, *, prefix: str, size: int, token: str) -> tuple[Sequence[ThreadRow], str]:
        """Return threads, newest first, and the token of the next page, "" at the end."""
        query = ("threads", prefix)
        size = page_size(size)
        found = await self.listed.page(tenant.name, prefix=prefix, before=place_of(token, *query), limit=size + 1)
        return paged(found, size, lambda row: (row.created_us, row.id), *query)

    async def get(self, tenant: Tenant, name: str) -> WholeThread:
        """Return a thread; NotFound also for another tenant's. A missing thread is not created."""
        row = await self.listed.known(tenant.name, name)
        metadata = await self.listed.metadata(row.id, limit_bytes=METADATA_LIMIT_BYTES)
        if metadata is None:
            raise TooLarge(
                f"the thread has more than {METADATA_LIMIT_BYTES:,} bytes of metadata, stored before that limit "
                "existed: remove some with SetThreadMetadata"
            )
        return WholeThread(row, metadata, await self.listed.message_count(row.id))

    async def messages(self, tenant: Tenant, name: str, *, size: int, token: str) -> tuple[Sequence[Said], str]:
        """Return messages, oldest first, and the token of the next page, "" at the end."""
        row = await self.listed.known(tenant.name, name)
        query = ("messages", row.id)
        size = page_size(size)
        place = place_of(token, *query)
        page, more = await self.listed.messages(row.id, after=place[0] if place else -1, limit=size)
        next_token = token_of((page[-1].position, ""), *query) if more else ""
        unread = Message(role="user", content=NOT_READ)
        said = [Said(one.position, one.run_id, read_message(one.message).message or unread) for one in page]
        return said, next_token

    async def set_metadata(
        self, tenant: Tenant, name: str, changed: Mapping[str, str], removed: Sequence[str]
    ) -> WholeThread:
        """Set entries (JSON texts by key) and remove others; a missing thread is created.

        The returned thread has only the entries that were set.
        """
        size_bytes = sum(entry_bytes(key, value) for key, value in changed.items())
        if size_bytes > METADATA_LIMIT_BYTES:
            raise InvalidArgument(f"set: a thread can have at most {METADATA_LIMIT_BYTES:,} bytes of metadata")
        work = at_once if size_bytes <= _CHECKED_AT_ONCE_BYTES else self.work_of(tenant.name)
        await work(_check_entries, changed)
        if both := sorted(changed.keys() & set(removed)):
            raise InvalidArgument(f"remove: {both[0]!r} is also set; name each key once")
        limits = tenant.policy.document.quotas
        if changed:
            await self.quotas.check_stored(tenant.name, limits)
        thread = await self.store.thread(tenant.name, name, limit=limits.threads)
        await self.listed.change_metadata(
            thread, changed, removed, keys_limit=KEYS_LIMIT, limit_bytes=METADATA_LIMIT_BYTES
        )
        return WholeThread(await self.listed.known(tenant.name, name), changed, 0)

    async def delete(self, tenant: Tenant, name: str) -> Mapping[str, int]:
        """Delete a thread with everything stored of it; return the number of deleted rows by table."""
        row = await self.listed.known(tenant.name, name)
        if row.run_id is not None:
            raise busy_with(name, row.run_id)
        try:
            return await self.erasure.thread(tenant.name, name, actor())
        finally:
            self.forget(tenant, name)


class _NoJsonError(ValueError):
    """A value that Python's json module accepts and JSON does not have."""


def _check_entries(entries: Mapping[str, str]) -> None:
    # Before any is decoded: a value takes much more time and memory than its text.
    if sum(map(values_in, entries.values())) > _VALUES_LIMIT:
        raise InvalidArgument(
            f"set: the entries hold more than {_VALUES_LIMIT:,} values, the limit for all of a request together: set "
            "them in several requests, or keep large data in a file of the workspace"
        )
    for key, value in entries.items():
        _check_entry(key, value)


def _check_entry(key: str, value: str) -> None:
    if not key or len(key) > KEY_LIMIT_CHARS or "\0" in key:
        raise InvalidArgument(f"set: a key has 1 to {KEY_LIMIT_CHARS} characters, and no NUL")
    try:
        freeze(json.loads(value, parse_constant=_no_constant))
        value.encode("ascii")
    except UnicodeEncodeError:
        value = json.dumps(json.loads(value))
    except (json.JSONDecodeError, _NoJsonError, RecursionError) as error:
        raise InvalidArgument(f"set: the value of {key[:64]!r} is not JSON: {error}") from None
    except NotStorable as error:
        raise InvalidArgument(f"set: the value of {key[:64]!r}: {error}") from None
    except ValueError:  # Python's limit on the digits of an integer
        raise InvalidArgument(f"set: the value of {key[:64]!r} has a number with too many digits") from None
    if len(value) > VALUE_LIMIT_CHARS:
        raise InvalidArgument(
            f"set: the value of {key[:64]!r} has {len(value):,} characters as JSON in ASCII, the limit is "
            f"{VALUE_LIMIT_CHARS:,}"
        )


def _no_constant(name: str) -> Any:
    raise _NoJsonError(f"{name} is not JSON")
