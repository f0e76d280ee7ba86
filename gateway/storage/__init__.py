"""The gateway's database: tables, migrations and queries. Nothing else in the gateway uses SQLAlchemy.

The database, whichever it is:
    connecting, migration               SQLite or PostgreSQL; the revisions of the schema
    columns, tables, triggers           the schema
    database, writer                    opening and identifying it; its readers, shared fairly; its one writer
    insertion, prepared                 rows that may be there; statements compiled once
    queries                             what every store has: rows as dataclasses, filters, pages, slices
    engine_store                        what gateways of one engine share
Threads and runs:
    store                               one thread, one run and its events
    call_journal                        the journal of calls, and their request ids
    entities                            what queries return
    thread_store                        lists: threads and runs; marks of closed threads
    run_writes                          what only the host of a run may write, and the audit entries with it
    usage_store                         what runs use of models, by run and by day
    waiting_store                       the leases of gateway processes; unhosted runs
Tenants:
    key_store                           API keys, and the runs that a key started
    policy_store, quota_store           versions of policies; use of quotas
    mcp_pin_store                       which tools of MCP servers were accepted, and which were seen
    approval_store                      approvals and grants
    audit_store, audit_reader           the audit chains, written and read
    connection_store                    the connections of sandboxes that are open, and their records
    snapshot_store                      snapshots of threads' files; restores and forks
    lock_store                          locks on snapshots in a bucket
    transition_store                    state transitions of sandboxes
    e2b_store                           threads as the sandboxes of E2B's SDKs
    retention_store, erasure_store      removing what is too old; deleting, and counting what is left

Start at `tables.py` and `database.py`. Imports gateway layers below 5, agent and airlock.
"""
