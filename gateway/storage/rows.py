"""Rows as dataclasses, conditions and pages of lists, and long results in slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Row, Select, Table, literal, tuple_

from gateway.support.paging import Place

T = TypeVar("T")


def mapped(kind: type[T], row: Row[Any], **given: Any) -> T:
    """Return a dataclass with the values of a row's columns of the same names, and the `given` fields."""
    names: Mapping[str, object] = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return kind(**{name: getattr(row, name) for name in names if name not in given}, **given)


def matching(wanted: Mapping[Any, object]) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter: each column has its value, or one of a tuple; an empty value matches all."""
    return [
        column.in_(value) if isinstance(value, tuple) else column == value for column, value in wanted.items() if value
    ]


def page_of(
    query: Select[Any], table: Table, before: Place | None, limit: int | None, column: str = "created_us"
) -> Select[Any]:
    """Return the query of a page, newest first; `before` is the time and the id of the previous page's last row."""
    if before is not None:
        query = query.where(tuple_(table.c[column], table.c.id) < tuple_(literal(before[0]), literal(before[1])))
    return query.order_by(table.c[column].desc(), table.c.id.desc()).limit(limit)


def slice_of(rows: Iterable[Row[Any]], parse: Callable[[Row[Any]], T], limit_chars: int) -> tuple[list[T], Any]:
    """Return the first rows, parsed: as many as fit the limit together, and at least one.

    So a reader's thread is soon free for others. Also returns the key of the last one if there are more rows. The key
    is a row's first column; its last one may be long.
    """
    parsed: list[T] = []
    chars, last = 0, None
    for row in rows:
        chars += len(row[-1])
        if parsed and chars > limit_chars:
            return parsed, last
        parsed.append(parse(row))
        last = row[0]
    return parsed, None
