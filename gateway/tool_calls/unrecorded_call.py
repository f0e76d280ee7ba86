"""The error of a tool call that could not be recorded: it says whether the call executed."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import Unavailable

NOT_EXECUTED, WITHHELD = "not_executed", "withheld"
_SAID_LIMIT_CHARS = 200


@dataclass(frozen=True)
class UnrecordedCall:
    """A call that could not be recorded. `said` is the database's error.

    `erased`: its thread or its tenant was deleted, and nothing more is written.
    """

    call_id: str
    executed: bool
    said: str = ""
    erased: bool = False

    def cause(self) -> str:
        """Return the database's error, at most 200 characters."""
        return self.said[:_SAID_LIMIT_CHARS] or "the database did not answer in time"

    def words(self) -> str:
        """Return the text of the error."""
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
        """Return the error to raise."""
        return Unavailable(self.words(), call_id=self.call_id, outcome=WITHHELD if self.executed else NOT_EXECUTED)
