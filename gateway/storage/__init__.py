"""What the gateway keeps: tables, migrations and queries. Nothing else in the gateway knows SQLAlchemy.

The database, whichever it is:
    connecting, migration, tables       SQLite or PostgreSQL, the revisions of the schema, and the schema
    database, writer, refusals          opening it; its one writer, and what the log says when it refuses
    readers, slices, prepared           its readers, shared fairly; long answers in slices; statements compiled once
    schema_check, first_0005            whether the tables are as the revision says; completing an early form of 0005
    settings_store, channel_store       what all gateways of a database agree on, and those of an engine
    database_identity                   what tells a database from a copy of it
Threads and runs:
    store                               what a call and a run write to, put together from these four
    thread_queries, run_queries, call_journal, queries    one thread, one run and its events, the journal of calls
    entities, stored_message            what queries give
    thread_store, recorded_calls        lists: threads, runs, calls for a replay
    run_writes, run_audit               what only the host of a run may write, and what the audit is told with it
    interrupted_calls                   calls whose gateway was lost
    waiting_store, lease_store          runs that nobody hosts; the leases of those who serve
    engine_store, request_store         on which engine a thread's files are; request ids
Tenants:
    key_store, key_runs                 API keys, and the runs that one has started
    policy_store, quota_store           versions of policies; what was used of quotas
    approval_store, approval_writes, approval_expiry, grant_store    approvals, and what was granted with them
    audit_store, audit_reader           the audit's chains, written and read
    snapshot_store, restore_store, fork_store, thread_marks    what was kept of threads' files, put back, and forked
    transition_store                    what became of sandboxes
    retention_store, erasure_store, tenant_rows    what is too old, what is deleted, and what is there
"""
