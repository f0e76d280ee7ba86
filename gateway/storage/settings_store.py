"""The queries of what all gateways of a database share: names and the values that they agreed on."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select

from gateway.storage.database import ConstraintViolated, Database
from gateway.storage.tables import settings

# A table is read, since SQLite does not look at its file for a mere SELECT 1.
_SIGN = select(settings.c.name).limit(1)


async def agreed(database: Database, name: str, *, offered: str) -> str:
    """Return the value of a name, which is the offered one where there was none."""

    def work(connection: Connection) -> str:
        found = connection.execute(select(settings.c.value).where(settings.c.name == name)).scalar_one_or_none()
        if found is None:
            connection.execute(insert(settings).values(name=name, value=offered))
            return offered
        return str(found)

    try:
        return await database.transact(work)
    except ConstraintViolated:  # another gateway was faster
        return await database.transact(work)


async def sign_of_life(database: Database) -> None:
    """Return once the database answers; Unavailable where it does not."""
    # As who calls is asked for: behind no tenant's long question.
    await database.rows(_SIGN, foremost=True)
