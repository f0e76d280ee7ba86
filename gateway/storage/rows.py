"""Rows as dataclasses, and pages of rows by a sort key."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Row, Table, literal, tuple_

from gateway.support.paging import Place

T = TypeVar("T")


def mapped(kind: type[T], row: Row[Any], **given: Any) -> T:
    """Return a dataclass with the values of a row's columns of the same names, and the `given` fields."""
    names = {field.name for field in fields(kind)} - given.keys()  # type: ignore[arg-type]
    return kind(**{name: getattr(row, name) for name in names}, **given)


def older(table: Table, place: Place, column: str = "created_us") -> ColumnElement[bool]:
    """Return the condition for the rows of the next page, newest first, after a row's time and id."""
    return tuple_(table.c[column], table.c.id) < tuple_(literal(place[0]), literal(place[1]))


def newest_first(table: Table, column: str = "created_us") -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """Return the order of such pages."""
    return table.c[column].desc(), table.c.id.desc()
