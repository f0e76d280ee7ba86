"""Startup checks: refuse configurations that are open to more callers than the operator intends."""

import stat
from collections.abc import Iterator
from pathlib import Path

from gateway.config.config import Config
from gateway.credentials.keys import digest_of
from gateway.errors import Misconfigured
from gateway.serving.listening import is_loopback
from gateway.storage.connecting import file_of
from gateway.storage.database import Database
from gateway.storage.key_store import KeyStore

# Keys in documentation, examples and tests, and therefore public.
KNOWN_KEYS = ("alk_...", "alk_x", "alk_guess", "alk_wrong", "alk_nobodys", "alk_test", "alk_example", "alk_changeme")


def refuse_open_files(config: Config) -> None:
    """Raise Misconfigured for a state directory or a database that every user of the machine can read."""
    for path in _private(config):
        try:
            mode = path.stat().st_mode
        except OSError:
            continue  # it is created at the start, for its owner alone
        if mode & stat.S_IRWXO and _reachable(path):
            wanted = "700" if path.is_dir() else "600"
            raise Misconfigured(
                f"{path} is readable by every user of this machine and contains key digests, policies and agents' "
                f"records: run `chmod {wanted} {path}`"
            )


def refuse_plaintext(config: Config, listen: str, *, insecure: bool) -> None:
    """Raise Misconfigured if keys and results would cross a network unencrypted."""
    if config.tls is None and not insecure and not is_loopback(listen):
        raise Misconfigured(
            f"--listen {listen} is reachable from other machines, and without TLS, keys and results cross the "
            f"network unencrypted: configure `tls: {{certificate: FILE, key: FILE}}`, listen on 127.0.0.1, or "
            f"pass --insecure-plaintext if a proxy in front of the gateway terminates TLS"
        )


def refuse_unconfined(config: Config, listen: str, *, workers: int) -> None:
    """Raise Misconfigured if other machines could run commands in the in-memory engine.

    That engine confines nothing: its callers have the rights of the gateway.
    """
    if config.sandbox.engine != "memory":
        return
    if not is_loopback(listen):
        raise Misconfigured(
            f"--listen {listen} is reachable from other machines, and with `sandbox.engine: memory` every command "
            "runs unconfined on this machine as the gateway's user: listen on 127.0.0.1, or use `engine: docker`"
        )
    if workers > 1:
        raise Misconfigured(
            "--workers: `sandbox.engine: memory` works in one process only: omit --workers, or use `engine: docker`"
        )


async def refuse_known_keys(database: Database) -> None:
    """Raise Misconfigured if a public key is valid."""
    store = KeyStore(database)
    for key in KNOWN_KEYS:
        found = await store.find(digest_of(key))
        if found is not None:
            raise Misconfigured(
                f"the example key {key} from the documentation is valid for tenant "
                f"{found.tenant or 'of operators'}: revoke it with `airlock key revoke {found.id}` and create "
                "another with `airlock key create`"
            )


def _private(config: Config) -> Iterator[Path]:
    yield config.path(config.state_dir)
    file = file_of(config.resolved_database_url())
    if file is not None:
        yield config.path(file)


def _reachable(path: Path) -> bool:
    """Return whether other users can reach a path; one closed directory above it keeps them out."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)
