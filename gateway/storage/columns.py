"""What the tables are made of: their metadata, and columns that several of them have."""

from typing import Any

from sqlalchemy import Column, ForeignKey, MetaData, String
from sqlalchemy.types import TypeEngine

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)


def columns(kind: TypeEngine[Any], *names: str, nullable: bool = False) -> list[Column[Any]]:
    """Return columns of one type."""
    return [Column(name, kind, nullable=nullable) for name in names]


def key(*names: str, length: int = 64) -> list[Column[Any]]:
    """Return the columns of a primary key."""
    return [Column(name, String(length), primary_key=True) for name in names]


def of_thread(*, index: bool = False, primary_key: bool = False) -> Column[Any]:
    """Return the column that names the thread of a row."""
    return Column(
        "thread_id", String(64), ForeignKey("threads.id"), nullable=False, index=index, primary_key=primary_key
    )


def requested() -> list[Column[Any]]:
    """Return the request id that made a row, if any, and the digest of that request."""
    return [Column("request_id", String(128)), Column("request_digest", String(64))]
