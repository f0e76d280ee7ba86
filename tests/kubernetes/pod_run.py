"""One Pod on a node, from its volumes to its end: init containers, containers, probes, restarts, grace."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kubernetes import kinds
from tests.kubernetes.access import Access
from tests.kubernetes.containers import ContainerStart, Image, Process
from tests.kubernetes.deletion import now
from tests.kubernetes.pod_files import NotMounted, PodFiles, expanded
from tests.kubernetes.pod_status import container_status, current, event, with_condition, write_status
from tests.kubernetes.probes import passes
from tests.kubernetes.store import Made, Store

_RETRY_S = 0.1
_RESTART_S = 0.1
# A real kubelet counts in seconds; tests do not wait as long.
_PROBE_SECOND_S = 0.05


@dataclass
class Node:
    """What the Pods of a node share."""

    store: Store
    access: Access
    images: Mapping[str, Image]
    """What is run for each image; one that is not there cannot be pulled."""
    directory: Path


@dataclass
class _Container:
    """A container of a Pod: what is reported of it, and its process while it runs."""

    spec: Made
    status: Made
    process: Process | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def is_sidecar(self) -> bool:
        return self.spec.get("restartPolicy") == "Always"

    @property
    def exit_code(self) -> int | None:
        code = self.status["state"].get("terminated", {}).get("exitCode")
        return None if code is None else int(code)


class PodRun:
    """A Pod that has been placed on a node."""

    def __init__(self, node: Node, pod: Made, address: str) -> None:
        self.pod = pod
        self._node = node
        self._address = address
        self._files = PodFiles(node.store, node.access, pod, node.directory / "pods" / pod["metadata"]["uid"])
        self._conditions: list[Made] = list(pod["status"].get("conditions", ()))
        waiting = {
            "waiting": {"reason": "PodInitializing" if pod["spec"].get("initContainers") else "ContainerCreating"}
        }
        uid = pod["metadata"]["uid"]
        self.init = [
            _Container(spec, container_status(spec, waiting, uid)) for spec in pod["spec"].get("initContainers", ())
        ]
        self.main = [_Container(spec, container_status(spec, waiting, uid)) for spec in pod["spec"]["containers"]]
        self._volumes: dict[str, Path] = {}
        self._failure: Made = {}
        self.silent = False
        """Whether nothing is reported any more, as the node is lost."""

    async def run(self) -> None:
        """Run the Pod until it ends or is cancelled; all that it started is gone then."""
        try:
            await self._mount()
            self._report(podIP=self._address, podIPs=[{"ip": self._address}], hostIP="127.0.0.1", startTime=now())
            for container in self.init:
                if not await self._initialize(container):
                    self._report(phase="Failed")
                    return
            self._set("Initialized", "True")
            for container in self.main:
                container.tasks.append(asyncio.create_task(self._keep(container)))
            await asyncio.gather(*(task for container in self.main for task in container.tasks))
            failed = any(container.exit_code for container in self.main)
            self._report(phase="Failed" if failed else "Succeeded")
        finally:
            self._kill_all()

    async def end(self, running: asyncio.Task[None]) -> None:
        """Terminate the Pod with its grace, then remove the object; at once if that has been removed."""
        while not running.done() and (held := current(self._node.store, self.pod)) is not None:
            grace_s = held["metadata"]["deletionGracePeriodSeconds"]
            for container in (*self.init, *self.main):
                if container.process is not None:
                    container.process.terminate()
                    container.spec = {**container.spec, "restartPolicy": "Never"}
            self.pod = {**self.pod, "spec": {**self.pod["spec"], "restartPolicy": "Never"}}
            if not any(container.process for container in (*self.init, *self.main)):
                break
            if not await self._all_ended(grace_s):
                break
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        held = current(self._node.store, self.pod)
        if held is not None and not self.silent and not held["metadata"].get("finalizers"):
            self._node.store.remove(kinds.POD, held["metadata"]["namespace"], held["metadata"]["name"])

    async def _all_ended(self, grace_s: float) -> bool:
        """Wait for the grace; return whether to look again because it has been changed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_s
        while any(container.process for container in (*self.init, *self.main)) and loop.time() < end:
            await asyncio.sleep(0.01)
            held = current(self._node.store, self.pod)
            if held is None:
                return False
            if held["metadata"]["deletionGracePeriodSeconds"] < grace_s:
                return True
        return False

    def fail(self, reason: str, message: str) -> None:
        """End the Pod as the kubelet evicts one: it is Failed and stays."""
        self._failure = {"phase": "Failed", "reason": reason, "message": message}
        self._conditions = with_condition(self._conditions, "DisruptionTarget", "True", "TerminationByKubelet", message)
        self._kill_all()
        for container in (*self.init, *self.main):
            if "terminated" not in container.status["state"]:
                ended = {"exitCode": 137, "reason": "Error", "finishedAt": now()}
                container.status = {
                    **container.status,
                    "state": {"terminated": ended},
                    "ready": False,
                    "started": False,
                }
        self._report()

    def stop(self) -> None:
        """End all that runs, and report nothing of it if the Pod is silent."""
        self._kill_all()

    def kill(self, container_name: str, reason: str) -> None:
        """Kill one container, for example as OOMKilled."""
        for container in (*self.init, *self.main):
            if container.spec["name"] == container_name and container.process is not None:
                container.process.kill(reason)

    def _kill_all(self) -> None:
        for container in (*self.init, *self.main):
            for task in container.tasks:
                task.cancel()
            if container.process is not None:
                container.process.kill()

    async def _mount(self) -> None:
        while True:
            try:
                self._volumes = self._files.mount_all(self.pod)
                return
            except NotMounted as missing:
                event(self._node.store, self.pod, "FailedMount", f"MountVolume.SetUp failed for volume: {missing}")
                await asyncio.sleep(_RETRY_S)

    async def _initialize(self, container: _Container) -> bool:
        """Run an init container to its end, a sidecar until it has started; return whether the Pod may go on."""
        if container.is_sidecar:
            container.tasks.append(asyncio.create_task(self._keep(container)))
            while not container.status["started"]:
                await asyncio.sleep(0.005)
            return True
        while True:
            await self._run_once(container)
            if container.exit_code == 0:
                return True
            if self.pod["spec"]["restartPolicy"] == "Never":
                return False
            await self._back_off(container)

    async def _keep(self, container: _Container) -> None:
        """Run a container, again and again as the policy says."""
        while True:
            await self._run_once(container)
            policy = container.spec.get("restartPolicy", self.pod["spec"]["restartPolicy"])
            if policy == "Never" or (policy == "OnFailure" and container.exit_code == 0) or self._failure:
                return
            await self._back_off(container)

    async def _back_off(self, container: _Container) -> None:
        last = container.status["state"]
        waiting = {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}
        count = container.status["restartCount"]
        if count:  # the first restart comes at once
            self._change(container, state={"waiting": waiting}, lastState=last)
            await asyncio.sleep(min(_RESTART_S * 2**count, 5))
        self._change(container, restartCount=count + 1, lastState=last)

    async def _run_once(self, container: _Container) -> None:
        image = await self._pulled(container)
        try:
            start = self._start_of(container)
        except NotMounted as missing:
            waiting = {"reason": "CreateContainerConfigError", "message": str(missing)}
            self._change(container, state={"waiting": waiting})
            await asyncio.sleep(_RETRY_S)
            return
        began = now()
        uid = self.pod["metadata"]["uid"]
        try:
            process = Process(image(start), self._files.log_of(container.spec["name"]))
        except (OSError, ValueError) as error:
            why = {
                "exitCode": 128,
                "reason": "StartError",
                "message": str(error),
                "startedAt": began,
                "finishedAt": began,
            }
            self._change(container, state={"terminated": why})
            return
        container.process = process
        kept = {key: container.status[key] for key in ("restartCount", "lastState") if key in container.status}
        container.status = container_status(container.spec, {"running": {"startedAt": began}}, uid, **kept)
        probing = asyncio.create_task(self._probe(container, start))
        self._report()
        try:
            code = await process.ended()
        finally:
            probing.cancel()
            process.reap()
            container.process = None
        ended = {"exitCode": code, "startedAt": began, "finishedAt": now()}
        ended["reason"] = process.reason or ("Completed" if code == 0 else "Error")
        self._change(container, state={"terminated": ended}, ready=False, started=False)

    async def _pulled(self, container: _Container) -> Image:
        name = container.spec["image"]
        reason, pause_s = "ErrImagePull", _RETRY_S
        while name not in self._node.images:
            message = f'failed to pull and unpack image "{name}": not found'
            if container.spec.get("imagePullPolicy") == "Never":
                reason, message = (
                    "ErrImageNeverPull",
                    f'Container image "{name}" is not present with pull policy of Never',
                )
            elif reason == "ImagePullBackOff":
                message = f'Back-off pulling image "{name}": ErrImagePull: {message}'
            self._change(container, state={"waiting": {"reason": reason, "message": message}})
            event(self._node.store, self.pod, "Failed", message)
            reason = "ImagePullBackOff"
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 2)
        return self._node.images[name]

    def _start_of(self, container: _Container) -> ContainerStart:
        pod = current(self._node.store, self.pod) or self.pod
        pod = {**pod, "status": {**pod["status"], "podIP": self._address}}
        mounts = self._files.mounts_of(container.spec, self._volumes)
        environment = self._files.environment(pod, container.spec)
        words = (*container.spec.get("command", ()), *container.spec.get("args", ()))
        command = [expanded(word, environment) for word in words]
        return ContainerStart(pod, container.spec, command, environment, self._files.root_of(container.spec), mounts)

    async def _probe(self, container: _Container, start: ContainerStart) -> None:
        """Ask the startup probe until it passes, then the readiness probe for ever."""
        startup, readiness = container.spec.get("startupProbe"), container.spec.get("readinessProbe")
        if startup is not None:
            await self._until_started(container, startup, start)
        self._change(container, started=True, ready=readiness is None)
        failures = 0
        while readiness is not None:
            passed = await passes(readiness, start)
            failures = 0 if passed else failures + 1
            if passed or failures >= readiness["failureThreshold"]:
                self._change(container, ready=passed)
            await asyncio.sleep(readiness["periodSeconds"] * _PROBE_SECOND_S)

    async def _until_started(self, container: _Container, probe: Made, start: ContainerStart) -> None:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0) * _PROBE_SECOND_S)
        failures = 0
        while not await passes(probe, start):
            failures += 1
            if failures >= probe["failureThreshold"] and container.process is not None:
                container.process.kill("Error")
            await asyncio.sleep(probe["periodSeconds"] * _PROBE_SECOND_S)

    def _change(self, container: _Container, **change: Any) -> None:
        container.status = {**container.status, **change}
        self._report()

    def _set(self, condition: str, value: str, reason: str = "", message: str = "") -> None:
        self._conditions = with_condition(self._conditions, condition, value, reason, message)

    def _report(self, **change: Any) -> None:
        if self.silent:
            return
        unready = [item.spec["name"] for item in self.main if not item.status["ready"]]
        finished = change.get("phase") in {"Succeeded", "Failed"} or self._failure
        reason = (
            "PodCompleted" if change.get("phase") == "Succeeded" else "PodFailed" if finished else "ContainersNotReady"
        )
        message = f"containers with unready status: [{' '.join(unready)}]"
        self._set("PodReadyToStartContainers", "True")
        if not any(item["type"] == "Initialized" for item in self._conditions):
            self._set("Initialized", "False" if self.init else "True")
        for condition in ("ContainersReady", "Ready"):
            self._set(condition, *(("False", reason, message) if unready or finished else ("True",)))
        started = any("running" in item.status["state"] or "terminated" in item.status["state"] for item in self.main)
        status = {
            "phase": "Running" if started else "Pending",
            "conditions": self._conditions,
            "containerStatuses": [item.status for item in self.main],
            **({"initContainerStatuses": [item.status for item in self.init]} if self.init else {}),
        }
        write_status(self._node.store, self.pod, {**status, **change, **self._failure})
