"""The tables. Times are UTC microseconds since 1970, which both databases order and compare alike."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, MetaData, String, Table, Text, text
from sqlalchemy import UniqueConstraint as Unique

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False, index=True),
    Column("shown", String(32), nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("created_us", BigInteger, nullable=False),
    Column("revoked_us", BigInteger),
    # Comma-separated: run, tool, files, approve, operate, audit.
    Column("scopes", String(128), nullable=False, server_default="run,tool,files"),
    # The tenant is "" for an operator's key.
    Column("name", String(128), nullable=False, server_default=""),
    Column("expires_us", BigInteger),
    Column("replaced_by", String(64)),
    # The request id that created it, if any, and the first use of such a key: until then the request may be repeated,
    # since its secret may not have arrived.
    Column("request_id", String(128)),
    Column("request_digest", String(64)),
    Column("used_us", BigInteger),
    Unique("request_id", name="uq_api_keys_request_id"),
)

RUNS_UNDER_WAY = ("running", "waiting")
"""The statuses of a run that has not ended."""

# What all gateways on this database share, by name: "instance" labels their containers and volumes.
settings = Table(
    "settings",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

# The gateway processes, each with a lease: the runs of a process whose lease has expired may be taken over.
gateways = Table(
    "gateways",
    metadata,
    Column("id", String(64), primary_key=True),
    # Its Docker engine and the directory of its sandboxes' sockets: a gateway that shares both can take over its runs.
    Column("engine", String(128), nullable=False),
    Column("channels", Text, nullable=False),
    Column("address", String(256), nullable=False, server_default=""),
    Column("started_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
)

threads = Table(
    "threads",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("name", String(256), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    # The engine that has its workspace, since its first sandbox.
    Column("engine", String(128)),
    # When a run last added messages or a caller set its metadata; NULL for never.
    Column("used_us", BigInteger),
    # The deletion that is removing its files: a trigger refuses runs and calls in it (migrations/versions/0004).
    Column("deletion", String(64)),
    Unique("tenant", "name"),
    Index("ix_threads_tenant_created", "tenant", "created_us", "id"),
)

messages = Table(
    "messages",
    metadata,
    Column("thread_id", String(64), ForeignKey("threads.id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("run_id", String(64), nullable=False),
    Column("message", Text, nullable=False),
)

# What lasts as long as the thread, of the agent, its capabilities and the gateway: one value per key.
thread_metadata = Table(
    "thread_metadata",
    metadata,
    Column("thread_id", String(64), ForeignKey("threads.id"), primary_key=True),
    Column("key", String(512), primary_key=True),
    Column("value", Text, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False, index=True),
    Column("thread_id", String(64), ForeignKey("threads.id"), nullable=False, index=True),
    Column("agent", String(64), nullable=False),
    Column("task", Text, nullable=False),
    Column("policy_version", String(64), nullable=False),
    Column("status", String(16), nullable=False, index=True),
    Column("stop_hook", String(128)),
    Column("stop_rule", String(128)),
    Column("stop_reason", Text),
    Column("last_sequence", Integer, nullable=False),
    Column("started_us", BigInteger, nullable=False),
    Column("finished_us", BigInteger),
    # The process (gateways.id) that hosts it; pin or follow; and the state that it continues from, as JSON.
    Column("gateway", String(64)),
    Column("policy_mode", String(8), nullable=False, server_default="pin"),
    Column("checkpoint", Text),
    # Increases whenever a gateway takes the run: writes under an earlier epoch are refused.
    Column("epoch", Integer, nullable=False, server_default="0"),
    # When its end was requested, on any gateway.
    Column("cancel_us", BigInteger),
    # The credential that started it, as the audit shows it; "" for none.
    Column("started_by", String(128), nullable=False, server_default=""),
    Column("request_id", String(128)),
    Column("request_digest", String(64)),
    Unique("tenant", "request_id", name="uq_runs_request_id"),
    Index("ix_runs_tenant_started", "tenant", "started_us"),
    # One run at a time in a thread, since two would write the same history.
    Index(
        "uq_runs_under_way",
        "thread_id",
        unique=True,
        sqlite_where=text("status IN ('running', 'waiting')"),
        postgresql_where=text("status IN ('running', 'waiting')"),
    ),
)

events = Table(
    "events",
    metadata,
    Column("run_id", String(64), ForeignKey("runs.id"), primary_key=True),
    Column("sequence", Integer, primary_key=True),
    Column("type", String(64), nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("payload", Text, nullable=False),
)

tool_calls = Table(
    "tool_calls",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("thread_id", String(64), ForeignKey("threads.id"), nullable=False, index=True),
    Column("run_id", String(64)),
    Column("name", String(128), nullable=False),
    Column("arguments", Text, nullable=False),
    Column("arguments_digest", String(64), nullable=False),
    Column("policy_version", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("verdict", String(16)),
    Column("rule", String(128)),
    Column("reason", Text),
    Column("outcome", String(32)),
    Column("exit_code", Integer),
    Column("is_error", Boolean),
    Column("result_bytes", BigInteger),
    Column("started_us", BigInteger, nullable=False),
    Column("finished_us", BigInteger),
    Column("gateway", String(64)),
    # The verdict with the shadow rules, if it differs.
    Column("would_be", String(16)),
    Column("would_be_rule", String(128)),
    Column("approval_id", String(64)),
    # Whether it may be repeated after a crash; and the result as JSON: of a run's call until its step is stored, of a
    # call with a request id as long as that is remembered.
    Column("read_only", Boolean, nullable=False, server_default=text("false")),
    Column("result", Text),
    Column("request_id", String(128)),
    Column("request_digest", String(64)),
    Unique("tenant", "request_id", name="uq_tool_calls_request_id"),
    Index("ix_tool_calls_run_id", "run_id"),
    Index("ix_tool_calls_tenant", "tenant", "started_us"),
)

# Snapshots of threads' files, which are in snapshots_dir. Those taken on request survive their thread; the automatic
# ones (`step`, `run`, `fork`) are deleted with it.
snapshots = Table(
    "snapshots",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("thread", String(256), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("created_by", String(256), nullable=False),
    Column("comment", Text, nullable=False),
    Column("run_id", String(64), nullable=False),
    Column("messages", Integer, nullable=False),
    Column("files", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("stored_bytes", BigInteger, nullable=False),
    Column("skipped", Integer, nullable=False),
    Column("stripped", Integer, nullable=False),
    # The thread, which may be gone; asked, step, run or fork; the step of run_id that it follows.
    Column("thread_id", String(64), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("step", Integer, nullable=False),
    Column("request_id", String(128)),
    Column("request_digest", String(64)),
    Unique("tenant", "request_id", name="uq_snapshots_request_id"),
    Index("ix_snapshots_tenant_created", "tenant", "created_us", "id"),
    Index("ix_snapshots_thread_id", "thread_id", "run_id", "step"),
)

# Restores and forks with a request id, and the answer once they are done. They are deleted with their thread.
workspace_requests = Table(
    "workspace_requests",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("request_id", String(128), primary_key=True),
    Column("request_digest", String(64), nullable=False),
    Column("thread_id", String(64), ForeignKey("threads.id"), nullable=False, index=True),
    Column("answer", Text),
    Column("at_us", BigInteger, nullable=False),
)

# State transitions of sandboxes (creating, running, idle_stopped, failed, removed), and their reasons.
sandbox_transitions = Table(
    "sandbox_transitions",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("tenant", String(64), nullable=False),
    Column("thread_id", String(64), ForeignKey("threads.id"), nullable=False),
    Column("engine", String(128), nullable=False),
    Column("sandbox", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", String(512), nullable=False),
    Column("at_us", BigInteger, nullable=False, index=True),
    Index("ix_sandbox_transitions_thread_id", "thread_id", "id"),
    Index("ix_sandbox_transitions_tenant", "tenant", "id"),
    Index("ix_sandbox_transitions_sandbox", "sandbox", "id"),
    sqlite_autoincrement=True,
)

# Every version of a policy that was ever applied, by the SHA-256 of its text.
policies = Table(
    "policies",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("text", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)

# The changes of policies; a tenant's last one is in force. The operator's layer has the tenant "".
policy_changes = Table(
    "policy_changes",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("tenant", String(64), nullable=False, index=True),
    Column("digest", String(64), ForeignKey("policies.digest"), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("by", String(256), nullable=False),
    Column("comment", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)

approvals = Table(
    "approvals",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("thread_id", String(64), ForeignKey("threads.id"), nullable=False),
    Column("run_id", String(64), index=True),
    Column("call_id", String(64), nullable=False),
    Column("tool", String(128), nullable=False),
    Column("arguments", Text, nullable=False),
    Column("arguments_bytes", Integer, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("policy_version", String(64), nullable=False),
    Column("rule", String(128), nullable=False),
    Column("reason", Text, nullable=False),
    Column("asked", Text, nullable=False),
    Column("proposed_rule", Text),
    Column("status", String(16), nullable=False),
    Column("answer", String(16)),
    Column("message", Text),
    Column("edited_arguments", Text),
    Column("edited_digest", String(64)),
    Column("resolved_by", String(128)),
    Column("created_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
    Column("resolved_us", BigInteger),
    # Increases with every change, so that watchers can query for what is new.
    Column("changed_us", BigInteger, nullable=False),
    Index("ix_approvals_tenant", "tenant", "status"),
    Index("ix_approvals_thread_id", "thread_id", "digest"),
    Index("ix_approvals_changed_us", "changed_us"),
)

# Narrow rules that an approver granted to a run or a thread.
grants = Table(
    "grants",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("thread_id", String(64), ForeignKey("threads.id"), nullable=False, index=True),
    Column("run_id", String(64)),
    Column("rule", Text, nullable=False),
    Column("approval_id", String(64), ForeignKey("approvals.id"), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("revoked_us", BigInteger),
)

# The use of a quota in one window of the clock, by its start; 0 for a counter without windows.
counters = Table(
    "counters",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("name", String(160), primary_key=True),
    Column("window_us", BigInteger, primary_key=True),
    Column("used", BigInteger, nullable=False),
)

# The current uses of quotas that limit concurrency.
holds = Table(
    "holds",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("name", String(160), nullable=False),
    Column("gateway", String(64), nullable=False),
    Column("since_us", BigInteger, nullable=False),
    Index("ix_holds_tenant", "tenant", "name"),
)

# A tenant's number of threads, and its stored bytes: of its rows' long texts, and 256 per row. Triggers maintain it
# (migrations/versions/0004), so it is always exact.
storage_use = Table(
    "storage_use",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("threads", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)

# The audit: a chain of records for each tenant; the operators' own has the tenant "".
audit_records = Table(
    "audit_records",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("at_us", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("actor", String(256), nullable=False),
    Column("thread", String(256), nullable=False),
    Column("run_id", String(64), nullable=False),
    Column("call_id", String(64), nullable=False),
    Column("tool", String(128), nullable=False),
    Column("arguments_digest", String(64), nullable=False),
    Column("verdict", String(16), nullable=False),
    Column("rule", String(128), nullable=False),
    Column("policy_version", String(64), nullable=False),
    Column("outcome", String(32), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("duration_us", BigInteger, nullable=False),
    Column("details", Text, nullable=False),
    Column("previous_digest", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
    Index("ix_audit_records_tenant", "tenant", "at_us"),
    Index("ix_audit_records_run_id", "tenant", "run_id"),
)

# The end of each chain, and its beginning since older records were pruned.
audit_heads = Table(
    "audit_heads",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("first_sequence", BigInteger, nullable=False, server_default="1"),
    Column("before_digest", String(64), nullable=False),
)
