"""The kubelet of every node: runs the Pods that are placed, ends those that are deleted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine

from tests.kubernetes import kinds
from tests.kubernetes.addresses import pod_addresses
from tests.kubernetes.pod_run import Node, PodRun
from tests.kubernetes.pod_status import current
from tests.kubernetes.store import Made


class Kubelet:
    """Satisfies what a cluster's nodes do. Pods run as processes, so one serves all nodes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._runs: dict[str, tuple[PodRun, asyncio.Task[None]]] = {}
        self._ends: set[str] = set()
        self._addresses = pod_addresses()
        self.failures: list[BaseException] = []
        """What went wrong in the kubelet itself, which fails the test."""

    async def run(self) -> None:
        """Run Pods until cancelled; none is left then."""
        ending: set[asyncio.Task[None]] = set()
        try:
            async for _, pod in self._node.store.follow(kinds.POD):
                uid = pod["metadata"]["uid"]
                placed = pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending"
                if placed and uid not in self._runs and current(self._node.store, pod) is not None:
                    run = PodRun(self._node, pod, next(self._addresses))
                    self._runs[uid] = (run, self._started(run.run()))
                if uid in self._runs and uid not in self._ends and self._is_to_end(pod):
                    self._ends.add(uid)
                    task = self._started(self._end(uid))
                    ending.add(task)
                    task.add_done_callback(ending.discard)
        finally:
            tasks = [task for _, task in self._runs.values()]
            for task in (*tasks, *ending):
                task.cancel()
            await asyncio.gather(*tasks, *ending, return_exceptions=True)
            self._addresses.close()

    def _started(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._note)
        return task

    def _note(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    def find(self, pod: Made) -> PodRun:
        return self._runs[pod["metadata"]["uid"]][0]

    def _is_to_end(self, pod: Made) -> bool:
        held = current(self._node.store, pod)
        return held is None or "deletionTimestamp" in held["metadata"]

    async def _end(self, uid: str) -> None:
        run, task = self._runs[uid]
        try:
            await run.end(task)
        finally:
            del self._runs[uid]
            self._ends.discard(uid)

    def log(self, pod: Made, container: str) -> str:
        """Return what a container has written."""
        path = self._node.directory / "pods" / pod["metadata"]["uid"] / f"{container}.log"
        with contextlib.suppress(OSError):
            return path.read_text(errors="replace")
        return ""
