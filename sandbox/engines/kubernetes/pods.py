"""What a Pod's status means for its sandbox: whether it can be reached, will never come up, or has ended, and why."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from sandbox.client.replies import plain_text
from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.copied_volumes import ADOPT
from sandbox.engines.kubernetes.records import owner_in
from sandbox.engines.kubernetes.resources import Made
from sandbox.errors import EngineFull, ImageMissing, SandboxUnavailable
from sandbox.sandbox import Owner

_NO_IMAGE = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"}
_ENDED = {"Failed", "Succeeded"}
_MAIN = "main"
_SHOWN = 300


@dataclass(frozen=True)
class Pod:
    """A Pod as the mirror keeps it. `uid` distinguishes it from an earlier Pod of the same name.

    `waits` says why no node has taken it yet, `refused` why it never comes up, `ended` why its sandbox is lost: each ""
    where that is not so. `unreachable`: its node says nothing any more, so its end will not be seen.
    """

    name: str
    uid: str
    kind: str
    owner: Owner | None
    address: str
    running: bool
    waits: str
    refused: str
    no_image: str | None
    ended: str
    unreachable: bool
    created_s: float

    @classmethod
    def of(cls, made: Made) -> Self:
        metadata, status = made["metadata"], made.get("status") or {}
        conditions = {item["type"]: item for item in status.get("conditions") or ()}
        statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        waiting = [(item, item["state"]["waiting"]) for item in statuses if (item.get("state") or {}).get("waiting")]
        images = [item["image"] for item, why in waiting if why.get("reason") in _NO_IMAGE]
        scheduled = conditions.get("PodScheduled", {})
        main: Made = next((item["state"] for item in statuses if item["name"] == _MAIN and item.get("state")), {})
        disrupted = conditions.get("DisruptionTarget", {})
        return cls(
            created_s=created_s(made),
            name=metadata["name"],
            uid=metadata["uid"],
            kind=(metadata.get("labels") or {}).get(manifests.KIND, ""),
            owner=owner_in(made),
            address=status.get("podIP") or "",
            running="running" in main,
            waits=_shown(scheduled.get("message")) if scheduled.get("reason") == "Unschedulable" else "",
            refused=next(_refusals(statuses, waiting), ""),
            no_image=images[0] if images else None,
            ended=_ended(metadata, status, main, disrupted),
            unreachable=status.get("reason") == "NodeLost" or disrupted.get("reason") == "DeletionByTaintManager",
        )

    def ended_as(self, uid: str) -> str:
        """Return why the sandbox is lost that was in the Pod of a uid, which "" leaves open; "" while it may live."""
        return "its Pod was deleted, and the cluster made another one" if uid not in ("", self.uid) else self.ended

    def refuse_stillborn(self) -> None:
        """Raise SandboxUnavailable, of the fitting class, for a Pod that does not come up by itself."""
        if self.no_image is not None:
            raise ImageMissing(
                f"image {self.no_image!r} cannot be pulled by the cluster: {self.refused}. Correct its name, push it, "
                "or set sandbox.kubernetes.image_pull_secrets",
                self.no_image,
            )
        if self.refused:
            raise SandboxUnavailable(f"the sandbox's Pod did not start: {self.refused}")
        if self.ended:
            raise SandboxUnavailable(f"the sandbox ended before it came up: {self.ended}")

    def full(self) -> EngineFull:
        """Return the error of a Pod that no node takes."""
        return EngineFull(
            f"no node of the cluster takes the sandbox: {self.waits} Add nodes, or lower the limits in the policy's "
            "sandbox section; sandbox.kubernetes.node_selector and .storage_class also narrow the choice"
        )


def created_s(made: Made) -> float:
    """Return when an object was made, in seconds since 1970."""
    return datetime.fromisoformat(made["metadata"]["creationTimestamp"]).timestamp()


def _refusals(statuses: list[Made], waiting: list[tuple[Made, Mapping[str, Any]]]) -> Iterator[str]:
    """Yield why containers do not start."""
    for item, why in waiting:
        if why.get("reason") in _NO_IMAGE | manifests.NOT_STARTED:
            yield _shown(f"{why.get('message') or why['reason']}") or item["name"]
    for item in statuses:
        ended = (item.get("state") or {}).get("terminated") or {}
        if item["name"] in (ADOPT, "prepare") and ended.get("exitCode"):
            said = ended.get("message") or ended.get("reason") or ""
            yield _shown(f"its container {item['name']} ended with exit code {ended['exitCode']}: {said}")


def _ended(metadata: Made, status: Made, main: Mapping[str, Any], disrupted: Mapping[str, Any]) -> str:
    """Return why a sandbox is lost; "" while it may live."""
    terminated = main.get("terminated")
    if status.get("reason") == "Evicted":
        return f"its node evicted it: {_shown(status.get('message'))}"
    if terminated and terminated.get("reason") == "OOMKilled":
        return "it ran out of memory, and the kernel killed it"
    if disrupted.get("reason") == "DeletionByTaintManager" or status.get("reason") == "NodeLost":
        return "its node was lost"
    if disrupted:
        return f"the cluster moved it away ({_shown(disrupted.get('reason'))}): {_shown(disrupted.get('message'))}"
    if metadata.get("deletionTimestamp"):  # its daemon ends with that
        return "its Pod was deleted"
    if terminated:
        return f"its daemon ended with exit code {int(terminated.get('exitCode', -1))}"
    if status.get("phase") in _ENDED:
        return f"its Pod is {status['phase']}: {_shown(status.get('message') or status.get('reason'))}"
    return ""


def _shown(text: object) -> str:
    """Return a text of the cluster for people: short and printable."""
    return plain_text(str(text or ""))[:_SHOWN]
