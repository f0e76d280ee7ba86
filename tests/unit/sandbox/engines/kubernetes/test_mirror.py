"""A mirror is never older than what its process wrote, and misses nothing where a watch breaks off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from sandbox.engines.kubernetes.kubernetes_requests import Expired, KubernetesRequests
from sandbox.engines.kubernetes.mirror import Mirror
from sandbox.engines.kubernetes.resources import LEASES, Made
from sandbox.errors import EngineUnavailable


def made(name: str, version: int, text: str | None = "") -> Made:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "text": text}


class Api:
    """What lists return, and what watches yield or end with, one after another; then nothing more happens."""

    def __init__(self, *steps: Any) -> None:
        self.lists: list[tuple[list[Made], str]] = []
        self.steps = list(steps)
        self.since: list[str] = []
        self.idle = asyncio.Event()

    async def list(self, *_: Any) -> tuple[list[Made], str]:
        return self.lists.pop(0)

    async def watch(self, *where: Any) -> AsyncIterator[tuple[str, Made]]:
        self.since.append(where[-1])
        while self.steps:
            step = self.steps.pop(0)
            if isinstance(step, Exception):
                raise step
            yield step
        self.idle.set()
        await asyncio.Event().wait()


def mirror(api: Api, changes: list[tuple[str, str | None]] | None = None) -> Mirror[str]:
    noted = (lambda name, text: changes.append((name, text))) if changes is not None else (lambda *_: None)
    return Mirror(cast(KubernetesRequests, api), (LEASES, "n", "s"), lambda one: one["text"], noted)


async def test_an_event_that_is_older_than_this_process_s_own_write_is_passed_over() -> None:
    api = Api()
    api.lists = [([made("a", 5, "five")], "6")]
    found = mirror(api)
    await found.start()
    found.put(made("a", 9, "nine"))
    found.put(made("a", 7, "seven"))
    assert found.items == {"a": "nine"}
    found.put(made("a", 10, None))
    found.put(made("a", 9, "nine"))
    assert found.items == {}
    await found.close()


async def test_what_was_forgotten_does_not_come_back_by_an_older_event() -> None:
    api = Api(("MODIFIED", made("a", 5, "again")), ("DELETED", made("a", 8, "again")), ("ADDED", made("a", 9, "new")))
    api.lists = [([made("a", 5, "first")], "5")]
    changes: list[tuple[str, str | None]] = []
    found = mirror(api, changes)
    await found.start()
    found.forget("a")
    assert found.items == {}
    await asyncio.wait_for(api.idle.wait(), 10)
    assert (found.items, changes) == ({"a": "new"}, [("a", "first"), ("a", None), ("a", "new")])
    await found.close()


async def test_a_watch_goes_on_where_it_broke_off_and_lists_anew_where_that_is_too_old() -> None:
    api = Api(
        ("BOOKMARK", made("", 7, None)), EngineUnavailable("reset"), Expired("gone"), ("ADDED", made("c", 21, "c"))
    )
    api.lists = [([made("a", 1, "a"), made("b", 2, "b")], "5"), ([made("b", 2, "b")], "20")]
    changes: list[tuple[str, str | None]] = []
    found = mirror(api, changes)
    await found.start()
    await asyncio.wait_for(api.idle.wait(), 10)
    assert found.items == {"b": "b", "c": "c"}
    assert api.since == ["5", "7", "20"]
    assert changes[2:] == [("a", None), ("c", "c")]
    await found.close()


async def test_a_list_does_not_drop_what_was_written_since_it_was_made() -> None:
    api = Api()
    api.lists = [([], "5"), ([], "6")]
    found = mirror(api)
    await found.start()
    found.put(made("a", 9, "mine"))
    await found.refresh()
    assert found.items == {"a": "mine"}
    await found.close()
