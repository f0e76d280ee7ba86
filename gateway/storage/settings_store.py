"""The queries of what all gateways of a database share: names and the values that they agreed on."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, insert, select, update

from gateway.storage.database import ConstraintViolated, Database
from gateway.storage.tables import settings

# A table is read, since SQLite does not look at its file for a mere SELECT 1.
_SIGN = select(settings.c.name).limit(1)


async def agreed(database: Database, name: str, *, offered: str) -> str:
    """Return the value of a name, which is the offered one where there was none."""
    return await changed(database, name, lambda found: offered if found is None else found)


async def changed(database: Database, name: str, change: Callable[[str | None], str]) -> str:
    """Replace the value of a name by what `change` makes of it, None where there was none; return the new value."""

    def work(connection: Connection) -> str:
        found = connection.execute(select(settings.c.value).where(settings.c.name == name)).scalar_one_or_none()
        value = change(found)
        if found is None:
            connection.execute(insert(settings).values(name=name, value=value))
        elif value != found:
            connection.execute(update(settings).where(settings.c.name == name).values(value=value))
        return value

    try:
        return await database.transact(work)
    except ConstraintViolated:  # another gateway was faster
        return await database.transact(work)


async def value_of(database: Database, name: str) -> str | None:
    """Return the value that gateways agreed on for a name; None where there is none."""
    found = await database.rows(select(settings.c.value).where(settings.c.name == name))
    return str(found[0].value) if found else None


async def sign_of_life(database: Database) -> None:
    """Return once the database answers; Unavailable where it does not."""
    # As who calls is asked for: behind no tenant's long question.
    await database.rows(_SIGN, foremost=True)
