"""Snapshots of threads' files, stored by the gateway and restored into the same thread or another.

    snapshots              take, list, delete, restore
    taking                 taking one: space for it, its files, its row, its audit entry
    forks                  creating a thread from another, and the moments at which that is possible
    snapshot_directory     one tenant's directory: its locks, its disk use, and cleaning up after a crash
    snapshot_files         writing and reading one snapshot: its manifest, and the pieces of its files
    blob_directory         pieces by their SHA-256, compressed, each stored once per tenant

Tenants share nothing: that storing a file takes no space would reveal that another tenant has it.

Start at `snapshots.py`. Imports gateway layers below 13, agent and sandbox.
"""
