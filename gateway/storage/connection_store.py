"""The connections of sandboxes: those that are open, and the audit records of those that are over.

A connection's row is deleted in the transaction of its record. So the rows of a process that is lost say which
connections it had.
"""

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, delete, insert

from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.queries import Queries
from gateway.storage.tables import open_connections

_COLUMNS = open_connections.c


class ConnectionStore(Queries):
    """Writes the connections of this process."""

    async def write(self, opened: Mapping[str, AuditEntry], ended: Sequence[tuple[str, AuditEntry | None]]) -> None:
        """Write what is open, by new ids, and record what is over, each with its id, "" if that was never written.

        The entry of an open one is what is recorded if this process is lost. If another process took this one for lost
        and has recorded it, it is not recorded again; nor is one whose tenant was erased.
        """
        at_us = self.clock()
        rows = [
            {
                "id": id_,
                "tenant": entry.tenant,
                "gateway": self.gateway,
                "entry": json.dumps({**vars(entry), "at_us": at_us}),
            }
            for id_, entry in opened.items()
        ]
        ids = [id_ for id_, _ in ended if id_]

        def work(connection: Connection) -> None:
            if rows:
                connection.execute(insert(open_connections), rows)
            were_open = {""}
            if ids:
                gone = delete(open_connections).where(_COLUMNS.id.in_(ids)).returning(_COLUMNS.id)
                were_open.update(connection.execute(gone).scalars())
            self.audit.append(connection, *(entry for id_, entry in ended if entry is not None and id_ in were_open))

        await self._database.transact(work, apart=False)


def interrupt_connections(connection: Connection, audit: AuditStore, which: ColumnElement[bool]) -> None:
    """Record the open connections of lost gateways, with the times at which they were written."""
    gone = delete(open_connections).where(which).returning(_COLUMNS.entry)
    entries = [AuditEntry(**json.loads(entry)) for entry in connection.execute(gone).scalars()]
    audit.append(connection, *sorted(entries, key=lambda entry: entry.at_us or 0))
