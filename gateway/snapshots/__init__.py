"""Snapshots of threads' files, stored by the gateway and restored into the same thread or another.

    snapshots              take, list, delete, restore
    taking                 taking one: space for it, its files, its row, its audit entry
    forks                  creating a thread from another, and the moments at which that is possible
    places                 where the snapshots of all tenants are: a directory, or an S3 bucket
    snapshot_directory     one tenant's snapshots: their locks, how much they take, and cleaning up after a crash
    snapshot_files         writing and reading one snapshot: its manifest, and the pieces of its files
    volume_copies          snapshots whose files the engine keeps, as copies of volumes
    blobs                  pieces by their SHA-256, compressed, each stored once per tenant
    locks                  who may change a tenant's snapshots: files, or rows of the database
    objects                bytes by name, as the modules above store them
    directory_objects      objects as files
    bucket_objects         objects in an S3 bucket
    bucket                 the requests to a bucket, and its errors with how to fix them
    bucket_owner           which database's gateways use a bucket

Tenants share nothing: that storing a file takes no space would reveal that another tenant has it.

Start at `snapshots.py`. Imports gateway layers below 13, agent and sandbox.
"""
