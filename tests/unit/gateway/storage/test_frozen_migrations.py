"""A migration that was released is never edited: databases that ran its first form would lack what was added."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gateway.storage import migration

# To add a migration, add its line here. To change the schema again, write another migration; never update a line.
LANDED = {
    "0001_first_tables.py": "04a2b115c23061044afac27404ac2070fee62af80538e79c87cb40e3643fa02e",
    "0002_thread_metadata.py": "c52da10e6fc5ef5c643f07097edb9d90ea65daa4fb322353fc176f5a71bc0d6e",
    "0003_policies_approvals_quotas.py": "9602de68a8ba4d29e79908c6e8fd8735f5daca0270c4165a01a1e52a39d8fa52",
    "0004_the_service.py": "7962db7ebc2aa590006eae8c255501caf75af38a3facb75562cbff82d88d64ad",
    "0005_sandboxes.py": "b38197ba8d31947f8fe13a9d249c8d73b7f190b8ef1d284105f6db0d12548005",
    "0006_snapshots_of_pruned_threads.py": "d97a318945b887bca8cd6009710f733df2e4e09c450cd1ce35c44705e97bc723",
    "0007_audit_heads_guarded.py": "7d32f1c2999192d23269d34d7b6dd18a8a8d41187ddcd6eb931199a4cae028df",
}


def test_no_migration_that_landed_is_edited_or_removed() -> None:
    versions = Path(migration.__file__).parent / "migrations" / "versions"
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in versions.glob("*.py")}
    changed = sorted(name for name, digest in LANDED.items() if found.get(name) != digest)
    assert not changed, f"{changed} landed and were edited or removed: restore them, and write a new migration"
    new = "\n".join(f'    "{name}": "{digest}",' for name, digest in sorted(found.items()) if name not in LANDED)
    assert not new, f"a new migration: add its line to LANDED\n{new}"
