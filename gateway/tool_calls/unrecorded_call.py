"""What the caller of a tool call hears whose record the database did not take: did it execute, or did it not?"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import Unavailable

NOT_EXECUTED, WITHHELD = "not_executed", "withheld"
_SAID_LIMIT_CHARS = 200


@dataclass(frozen=True)
class UnrecordedCall:
    """A call by its id. `executed` says whether it did, `said` why the database took no record of it.

    Of one that is `erased` nothing is to be written any more: its thread is deleted, or all of its tenant.
    """

    call_id: str
    executed: bool
    said: str = ""
    erased: bool = False

    def cause(self) -> str:
        """Return what the database said, at most 200 characters."""
        return self.said[:_SAID_LIMIT_CHARS] or "the database did not answer in time"

    def words(self) -> str:
        """Return what people are told."""
        if not self.executed:
            return (
                f"the call {self.call_id} was not executed and changed nothing, for it could not be written down: "
                f"{self.cause()}"
            )
        if self.erased:
            return (
                f"what is stored of the tenant was deleted while the call {self.call_id} was under way, so its result "
                "is withheld"
            )
        return (
            f"what came of the call {self.call_id} could not be written down, so its result is withheld; what it did "
            f"in the sandbox stands, and its record follows as soon as the database takes it: {self.cause()}"
        )

    def error(self) -> Unavailable:
        """Return what is raised."""
        return Unavailable(self.words(), call_id=self.call_id, outcome=WITHHELD if self.executed else NOT_EXECUTED)
