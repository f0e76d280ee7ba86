"""What is recorded of a thread: its sandbox and its files, in an annotation of the thread's Lease.

A Lease stays as long as the thread has files. Those of threads with a sandbox, or whose gate is shut, have a label that
says so, by which the mirror selects them; the others, of which there may be very many, are read one by one.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, get_args

from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.kubernetes_requests import Made
from sandbox.sandbox import ListedSandbox, Owner
from sandbox.transition import State as Shown

RecordState = Literal["files", "creating", "running", "stopped"]


@dataclass(frozen=True)
class Record:
    """A thread's record; times are in seconds since 1970.

    `sandbox` is its id and the name of its Pod, "" in the state "files", in which there is none. `claim` is the volume
    claim with the thread's files, `fresh` one that was made for a sandbox that has not come up yet. `carrier` and
    `other_claim` are a Pod and a claim that are only there while files are saved or replaced: where the gate is free
    they are to be removed. `made` is the digest of how the sandbox was made, `epoch` the number of its start, `pod` the
    uid of the Pod that it was started in. `thread` is what the owner calls it.
    """

    state: RecordState = "files"
    sandbox: str = ""
    claim: str = ""
    fresh: bool = False
    other_claim: str = ""
    carrier: str = ""
    made: str = ""
    epoch: int = 0
    pod: str = ""
    created_s: float = 0.0
    since_s: float = 0.0
    thread: str = ""
    image: str = ""
    runtime: str = ""
    ended_processes: int = 0

    @classmethod
    def of(cls, lease: Made) -> Self:
        """Return the record of a Lease; an empty one for what cannot be read."""
        try:
            said = json.loads(lease["metadata"]["annotations"][manifests.RECORD])
            known = {field.name: said[field.name] for field in fields(cls) if field.name in said}
            record = cls(**known)
        except (KeyError, TypeError, ValueError, AttributeError):
            return cls()
        return record if record.state in get_args(RecordState) else cls()

    @property
    def has_sandbox(self) -> bool:
        return self.state != "files"

    def without_sandbox(self, *, ended_processes: int = 0) -> Self:
        """Return the record of the same files without a sandbox."""
        return type(self)(
            claim=self.claim,
            other_claim=self.other_claim,
            carrier=self.carrier,
            thread=self.thread,
            ended_processes=ended_processes,
        )

    def annotation(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if value}, sort_keys=True)

    def listed(self, state: Shown, since_s: float | None = None, reason: str = "") -> ListedSandbox:
        return ListedSandbox(
            self.sandbox, self.thread, self.image, self.runtime, self.created_s, state, since_s, reason
        )


def owner_in(made: Made) -> Owner | None:
    """Return whose an object is, by its labels; None where they name no thread."""
    labels: Mapping[str, Any] = made["metadata"].get("labels") or {}
    tenant, thread = labels.get(manifests.TENANT), labels.get(manifests.THREAD)
    return (str(tenant), str(thread)) if tenant and thread else None


@dataclass(frozen=True)
class Known:
    """What the mirror keeps of a Lease."""

    owner: Owner
    record: Record
    at_work: bool

    @classmethod
    def of(cls, lease: Made) -> Self | None:
        owner, labels = owner_in(lease), lease["metadata"].get("labels") or {}
        if owner is None or manifests.STATE not in labels:
            return None
        return cls(owner, Record.of(lease), bool(lease["spec"].get("holderIdentity")))
