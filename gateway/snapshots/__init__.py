"""Snapshots: a thread's files as they were, kept by the gateway, and put back into the same thread or another.

    snapshots              taken, listed, deleted, restored
    taking                 one is taken: room made for it, its files, its row, its audit record
    restoring              files put in the place of a thread's
    forks, fork_points     a thread made of another, and at which moments that can be
    snapshot_directory     one tenant's: who may change it, what a crash left, and what it takes of the disk
    snapshot_files         one snapshot written and read: its manifest, and the pieces of its files
    blob_directory         pieces by their SHA-256, compressed, each kept once in a tenant
    tidying                what a crash left of both, removed when a gateway starts

Nothing is shared between tenants, for what costs no room would tell one what another has.
"""
