"""The gateway's database: tables, migrations and queries. Nothing else in the gateway uses SQLAlchemy.

The database, whichever it is:
    connecting, migration, tables       SQLite or PostgreSQL, the revisions of the schema, and the schema
    database, writer, refusals          opening it; its one writer, and the log of refused writes
    readers, slices, prepared           its readers, shared fairly; long results in slices; statements compiled once
    rows                                rows as dataclasses, and pages of them
    schema_check, first_0005            whether the tables match the revision; completing an early form of 0005
    settings_store, channel_store       what all gateways of a database share, and those of one engine
    database_identity                   distinguishes a database from a copy of it
Threads and runs:
    store                               what calls and runs write, composed of the next four
    thread_queries, run_queries, call_journal, queries    one thread, one run and its events, the journal of calls
    entities, stored_message            what queries return
    thread_store, recorded_calls        lists: threads, runs, calls for a replay
    run_writes, run_audit               what only the host of a run may write, and the audit entries with it
    interrupted_calls                   calls whose gateway was lost
    waiting_store, lease_store          unhosted runs; the leases of gateway processes
    engine_store, request_store         which engine has a thread's files; request ids
Tenants:
    key_store, key_runs                 API keys, and the runs that a key started
    policy_store, quota_store           versions of policies; use of quotas
    approval_store, approval_writes, approval_expiry, grant_store    approvals and grants
    audit_store, audit_reader           the audit chains, written and read
    snapshot_store, restore_store, fork_store, thread_marks    snapshots of threads' files, restores and forks
    transition_store                    state transitions of sandboxes
    retention_store, erasure_store, tenant_rows    removing what is too old, deleting, and counting what is left
"""
