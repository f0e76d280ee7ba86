"""Snapshots: a thread's files as they were, kept by the gateway, and put back into the same thread or another.

    snapshots              taken, listed, deleted, restored, with their quotas, rows and audit records
    snapshot_directory     one tenant's: who may change it, what a crash left, and what it takes of the disk
    snapshot_files         one snapshot written and read: its manifest, and the pieces of its files
    blob_directory         pieces by their SHA-256, compressed, each kept once in a tenant
    settings               where they are

Nothing is shared between tenants, for what costs no room would tell one what another has.
"""
