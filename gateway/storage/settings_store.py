"""The settings that all gateways of a database share, as values by name."""

from collections.abc import Callable

from sqlalchemy import Connection, insert, select, update

from gateway.storage.database import ConstraintViolated, Database
from gateway.storage.tables import settings

# A table is read, because SQLite does not access its file for a plain SELECT 1.
_ANY_ROW = select(settings.c.name).limit(1)


async def agreed(database: Database, name: str, *, offered: str) -> str:
    """Return the value of a name; if it has none, it becomes the offered one."""
    return await changed(database, name, lambda found: offered if found is None else found)


async def changed(database: Database, name: str, change: Callable[[str | None], str]) -> str:
    """Replace the value of a name by `change(value)`, where None is no value; return the new value."""

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
    """Return the value of a name; None if it has none."""
    value: str | None = await database.scalar(select(settings.c.value).where(settings.c.name == name))
    return value


async def sign_of_life(database: Database) -> None:
    """Return once the database answers; Unavailable if it does not."""
    # Like authentication, it does not wait for tenants' reads.
    await database.rows(_ANY_ROW, foremost=True)
