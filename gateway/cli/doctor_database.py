"""The check of a configuration's database by `airlock doctor`; it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.cli.finding import Finding

if TYPE_CHECKING:
    from gateway.config.config import Config


def database_finding(config: Config) -> Finding:
    """Check the database of a configuration."""
    from gateway.errors import Misconfigured
    from gateway.storage.connecting import file_of

    what = "database"
    try:
        from gateway.storage.migration import missing_from, revision_of, shortened

        url = config.resolved_database_url()
        file = file_of(url)
        if file is not None and not file.exists():
            return Finding(what, "ok", "SQLite: the first start creates it")
        revision = revision_of(url)
        missing = missing_from(url) if revision.current == revision.newest else []
    except (Misconfigured, ValueError) as error:
        return Finding(what, "failed", "does not open", f"{error}. See docs/storage.md")
    kind = "SQLite" if file else "PostgreSQL"
    if missing:
        fix = "restore a backup (docs/storage.md)"
        return Finding(what, "failed", f"{kind}, revision {revision.current}, lacks {shortened(missing)}", fix)
    if revision.current == revision.newest:
        return Finding(what, "ok", f"{kind}, revision {revision.current}, the newest")
    if revision.current is None:
        return Finding(what, "ok", f"{kind}, empty: the first start creates the tables")
    if not revision.known:
        fix = "a newer airlock upgraded it: run that release, or restore a backup from before the upgrade"
        return Finding(what, "failed", f"{kind}, revision {revision.current}, newer than {revision.newest}", fix)
    detail = f"{kind}, revision {revision.current}: the next start upgrades it to {revision.newest}"
    return Finding(what, "warning", detail, "make a backup before that start (docs/storage.md)")


def is_migrated(config: Config) -> bool:
    """Return whether the database exists and needs no upgrade. Raises Misconfigured."""
    from gateway.storage.connecting import file_of
    from gateway.storage.migration import revision_of

    url = config.resolved_database_url()
    file = file_of(url)
    if file is not None and not file.exists():
        return False
    revision = revision_of(url)
    return revision.current == revision.newest
