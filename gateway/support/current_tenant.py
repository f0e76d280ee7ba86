"""The tenant that the current task works for: its callbacks and its database reads are scheduled fairly by tenant."""

from contextvars import ContextVar

CURRENT_TENANT: ContextVar[str | None] = ContextVar("current_tenant", default=None)
"""The tenant's name, "" for an operator, None for the gateway itself. Tasks inherit it from their parent."""
