"""Prepared: a statement that every call executes, compiled once for each dialect and set of parameters.

SQLAlchemy's work for each execution is more than half of the cost of a small write. The text is the one that SQLAlchemy
would send; SQLite's driver gets it directly. Parameters and results are the driver's own, so only types without
conversion work: text, integers, written booleans.
"""

import sqlite3
from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Connection, CursorResult, Executable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ClauseElement

from gateway.storage.connecting import as_sqlalchemy, driver_of, without_nul


@dataclass(frozen=True)
class _Compiled:
    text: str
    # Positional in this order, or by name if the driver takes names.
    order: Sequence[str] | None
    given: Mapping[str, Any]

    def laid_out(self, parameters: Mapping[str, Any]) -> Any:
        values = {**self.given, **parameters} if self.given else parameters
        return values if self.order is None else tuple([values[name] for name in self.order])


@dataclass(frozen=True)
class Executed:
    """What a statement did: how many rows it changed, and all rows that it returns."""

    rowcount: int
    rows: Sequence[Any]

    def first(self) -> Any:
        return self.rows[0] if self.rows else None

    def scalar(self) -> Any:
        return self.rows[0][0] if self.rows else None


class Prepared:
    """A statement without lists of parameters (IN)."""

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        self._compiled: dict[tuple[str, ...], _Compiled] = {}

    def execute(self, connection: Connection, parameters: Mapping[str, Any]) -> Executed:
        """Execute it in the transaction of a connection; raises SQLAlchemy's errors."""
        if connection.dialect.name == "sqlite":
            try:
                return self._executed(connection, parameters)
            except sqlite3.Error as error:
                raise as_sqlalchemy(error) from error
        result = self.ask(connection, parameters)
        return Executed(result.rowcount, result.all() if result.returns_rows else [])

    def ask(self, connection: Connection, parameters: Mapping[str, Any]) -> CursorResult[Any]:
        """Execute it through SQLAlchemy; return the open result."""
        compiled = self._for(connection, parameters)
        return connection.exec_driver_sql(compiled.text, compiled.laid_out(parameters))

    def look(self, connection: Connection, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Return a query's rows through SQLite's own driver; raises sqlite3.Error."""
        return self._executed(connection, parameters).rows

    def execute_all(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute it for each row; all have the same keys, and there is at least one."""
        if len(rows) == 1:
            self.execute(connection, rows[0])
            return
        compiled = self._for(connection, rows[0])
        connection.exec_driver_sql(compiled.text, [compiled.laid_out(row) for row in rows])

    def _executed(self, connection: Connection, parameters: Mapping[str, Any]) -> Executed:
        """Execute it by SQLite's driver."""
        compiled = self._for(connection, parameters)
        cursor = driver_of(connection).execute(compiled.text, without_nul(compiled.laid_out(parameters)))
        found = cursor.fetchall()  # to the end: an open cursor would pin the log at its current state
        if not found:
            return Executed(cursor.rowcount, [])
        row = _row_of(tuple(column[0] for column in cursor.description))
        return Executed(cursor.rowcount, [row(*values) for values in found])

    def _for(self, connection: Connection, parameters: Mapping[str, Any]) -> _Compiled:
        key = (connection.dialect.name, *parameters)
        found = self._compiled.get(key)
        if found is None:
            found = self._compiled[key] = self._compile(connection, list(parameters))
        return found

    def _compile(self, connection: Connection, names: list[str]) -> _Compiled:
        statement = self._statement
        if not isinstance(statement, ClauseElement):
            raise TypeError(f"{type(statement).__name__} is no statement that can be compiled")
        compiled = statement.compile(dialect=connection.dialect, column_keys=names)
        if not isinstance(compiled, SQLCompiler) or compiled.post_compile_params:
            raise TypeError("a statement with lists of parameters cannot be prepared")
        given = {name: value for name, value in compiled.params.items() if name not in names}
        order = compiled.positiontup if compiled.positional else None
        return _Compiled(compiled.string, order, given)


@cache
def _row_of(columns: tuple[str, ...]) -> Any:
    """Return the class of a query's rows; there is one for each prepared query."""
    return namedtuple("Row", columns)  # noqa: PYI024 - the names are the query's
