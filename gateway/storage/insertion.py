"""Rows that are inserted unless they are there, which each database writes in its own words."""

from importlib import import_module
from typing import Any

from sqlalchemy import Table


def insert_new(table: Table, dialect: str) -> Any:
    """Return an INSERT that passes over rows whose key is taken.

    Only the dialect that is used is loaded: that of PostgreSQL takes 2 MiB.
    """
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table).on_conflict_do_nothing()
