"""The tables. Times are UTC microseconds since 1970, which both databases order and compare alike.

A new database is created from them and `triggers.py`, an older one is migrated (migration.py). The order of a table's
columns has no meaning.
"""

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Table, Text, text
from sqlalchemy import UniqueConstraint as Unique

from gateway.storage.columns import columns as _columns
from gateway.storage.columns import key as _key
from gateway.storage.columns import metadata as metadata  # noqa: PLC0414 - part of what a table module is
from gateway.storage.columns import of_thread as _of_thread
from gateway.storage.columns import requested as _requested

api_keys = Table(
    "api_keys",
    metadata,
    *_key("id"),
    # The tenant is "" for an operator's key.
    Column("tenant", String(64), nullable=False, index=True),
    Column("shown", String(32), nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    # Comma-separated: run, tool, files, approve, operate, audit.
    Column("scopes", String(128), nullable=False, server_default="run,tool,files"),
    Column("name", String(128), nullable=False, server_default=""),
    Column("replaced_by", String(64)),
    Column("created_us", BigInteger, nullable=False),
    # The first use of a key that was created with a request id: until then the request may be repeated, since its
    # secret may not have arrived.
    *_columns(BigInteger(), "revoked_us", "expires_us", "used_us", nullable=True),
    *_requested(),
    Unique("request_id", name="uq_api_keys_request_id"),
)

WHERE = "where"
"""Of an index, which rows it has; create_schema() says so to the database (sqlite_where would load each dialect)."""

RUNS_UNDER_WAY = ("running", "waiting")
"""The statuses of a run that has not ended."""

# What all gateways on this database share, by name: "instance" labels their containers and volumes.
settings = Table("settings", metadata, *_key("name"), *_columns(Text(), "value"))

# The gateway processes, each with a lease: the runs of a process whose lease has expired may be taken over.
gateways = Table(
    "gateways",
    metadata,
    *_key("id"),
    # Its Docker engine and the directory of its sandboxes' sockets: a gateway that shares both can take over its runs.
    Column("engine", String(128), nullable=False),
    Column("channels", Text, nullable=False),
    Column("address", String(256), nullable=False, server_default=""),
    *_columns(BigInteger(), "started_us", "expires_us"),
)

threads = Table(
    "threads",
    metadata,
    *_key("id"),
    Column("tenant", String(64), nullable=False),
    Column("name", String(256), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    # The engine that has its workspace, since its first sandbox.
    Column("engine", String(128)),
    # When a run last added messages or a caller set its metadata; NULL for never.
    Column("used_us", BigInteger),
    # The deletion that is removing its files: a trigger refuses runs and calls in it (triggers.py).
    Column("deletion", String(64)),
    Unique("tenant", "name"),
    Index("ix_threads_tenant_created", "tenant", "created_us", "id"),
)

messages = Table(
    "messages",
    metadata,
    _of_thread(primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("run_id", String(64), nullable=False),
    Column("message", Text, nullable=False),
)

# What lasts as long as the thread, of the agent, its capabilities and the gateway: one value per key.
thread_metadata = Table(
    "thread_metadata",
    metadata,
    _of_thread(primary_key=True),
    *_key("key", length=512),
    Column("value", Text, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    *_key("id"),
    Column("tenant", String(64), nullable=False, index=True),
    _of_thread(index=True),
    *_columns(String(64), "agent", "policy_version"),
    Column("task", Text, nullable=False),
    Column("status", String(16), nullable=False, index=True),
    *_columns(String(128), "stop_hook", "stop_rule", nullable=True),
    Column("last_sequence", Integer, nullable=False),
    Column("started_us", BigInteger, nullable=False),
    # When it ended, and when its end was requested, on any gateway.
    *_columns(BigInteger(), "finished_us", "cancel_us", nullable=True),
    # The process (gateways.id) that hosts it; pin or follow; and the state that it continues from, as JSON.
    Column("gateway", String(64)),
    Column("policy_mode", String(8), nullable=False, server_default="pin"),
    *_columns(Text(), "checkpoint", "stop_reason", nullable=True),
    # Increases whenever a gateway takes the run: writes under an earlier epoch are refused.
    Column("epoch", Integer, nullable=False, server_default="0"),
    # The credential that started it, as the audit shows it; "" for none.
    Column("started_by", String(128), nullable=False, server_default=""),
    Column("steps", Integer, nullable=False, server_default="0"),
    *_requested(),
    Unique("tenant", "request_id", name="uq_runs_request_id"),
    Index("ix_runs_tenant_started", "tenant", "started_us"),
    # One run at a time in a thread, since two would write the same history.
    Index("uq_runs_under_way", "thread_id", unique=True, info={WHERE: "status IN ('running', 'waiting')"}),
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


def _used(*, of: str = "") -> list[Column[Any]]:
    """Return what models were used for: requests, tokens as in agent.messages.Usage, and billionths of a dollar."""
    counted = ("requests", "input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")
    return _columns(BigInteger(), *(f"{of}{name}" for name in (*counted, "estimated_tokens", "nano_usd")))


# What each agent of a run has used of each model; `open_...` is the estimate for its requests under way, which it is
# charged if their gateway is lost.
run_usage = Table(
    "run_usage",
    metadata,
    Column("run_id", String(64), ForeignKey("runs.id"), primary_key=True),
    *_key("agent"),
    *_key("model", length=256),
    *_used(),
    *_used(of="open_"),
    Column("first_token_us", BigInteger),
)

# The same of all runs of a tenant, by the day in UTC: it stays when the runs are removed.
usage_days = Table(
    "usage_days",
    metadata,
    *_key("tenant"),
    Column("day_us", BigInteger, primary_key=True, autoincrement=False),
    *_key("agent"),
    *_key("model", length=256),
    *_used(),
)

tool_calls = Table(
    "tool_calls",
    metadata,
    *_key("id"),
    _of_thread(index=True),
    *_columns(String(64), "tenant", "arguments_digest", "policy_version"),
    *_columns(String(64), "run_id", "gateway", "approval_id", nullable=True),
    Column("name", String(128), nullable=False),
    Column("arguments", Text, nullable=False),
    Column("state", String(16), nullable=False),
    # `would_be` is the verdict with the shadow rules, if it differs.
    *_columns(String(16), "verdict", "would_be", nullable=True),
    *_columns(String(128), "rule", "would_be_rule", nullable=True),
    Column("reason", Text),
    Column("outcome", String(32)),
    Column("exit_code", Integer),
    Column("is_error", Boolean),
    Column("started_us", BigInteger, nullable=False),
    *_columns(BigInteger(), "result_bytes", "finished_us", nullable=True),
    # Whether it may be repeated after a crash; and the result as JSON: of a run's call until its step is stored, of a
    # call with a request id as long as that is remembered.
    Column("read_only", Boolean, nullable=False, server_default=text("false")),
    Column("result", Text),
    *_requested(),
    Unique("tenant", "request_id", name="uq_tool_calls_request_id"),
    Index("ix_tool_calls_run_id", "run_id"),
    Index("ix_tool_calls_tenant", "tenant", "started_us"),
)

# Snapshots of threads' files, which are in snapshots_dir or a bucket. Those taken on request survive their thread; the
# automatic ones (`step`, `run`, `fork`) are deleted with it.
snapshots = Table(
    "snapshots",
    metadata,
    *_key("id"),
    *_columns(String(64), "tenant", "run_id"),
    *_columns(String(256), "thread", "created_by"),
    Column("comment", Text, nullable=False),
    *_columns(BigInteger(), "created_us", "size_bytes", "stored_bytes"),
    *_columns(Integer(), "messages", "files", "skipped", "stripped"),
    # The thread, which may be gone; asked, step, run or fork; the step of run_id that it follows.
    Column("thread_id", String(64), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("step", Integer, nullable=False),
    *_requested(),
    Unique("tenant", "request_id", name="uq_snapshots_request_id"),
    Index("ix_snapshots_tenant_created", "tenant", "created_us", "id"),
    Index("ix_snapshots_thread_id", "thread_id", "run_id", "step"),
)

# Who has a lock on a tenant's snapshots in a bucket; each is renewed while it is held.
snapshot_locks = Table(
    "snapshot_locks",
    metadata,
    *_key("id"),
    Column("scope", String(128), nullable=False, index=True),
    Column("exclusive", Boolean, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
)

# Restores and forks with a request id, and the answer once they are done. They are deleted with their thread.
workspace_requests = Table(
    "workspace_requests",
    metadata,
    *_key("tenant"),
    *_key("request_id", length=128),
    Column("request_digest", String(64), nullable=False),
    _of_thread(index=True),
    Column("answer", Text),
    Column("at_us", BigInteger, nullable=False),
)

# State transitions of sandboxes (creating, running, idle_stopped, failed, removed), and their reasons.
sandbox_transitions = Table(
    "sandbox_transitions",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    _of_thread(),
    *_columns(String(64), "tenant", "sandbox"),
    Column("engine", String(128), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", String(512), nullable=False),
    Column("at_us", BigInteger, nullable=False, index=True),
    Index("ix_sandbox_transitions_thread_id", "thread_id", "id"),
    Index("ix_sandbox_transitions_tenant", "tenant", "id"),
    Index("ix_sandbox_transitions_sandbox", "sandbox", "id"),
    sqlite_autoincrement=True,
)

# E2B's view of threads: each is a sandbox to E2B's SDKs.
e2b_sandboxes = Table(
    "e2b_sandboxes",
    metadata,
    *_key("id"),
    Column("tenant", String(64), nullable=False),
    _of_thread(index=True),
    Column("state", String(16), nullable=False),  # running, paused or ending
    Column("created_us", BigInteger, nullable=False),
    Column("ends_us", BigInteger, index=True),  # when it is killed or paused; NULL while it is paused
    # What its creator asked for, as JSON, and the keys (api_keys.id) that hold an access token, the newest last.
    *_columns(Text(), "options", "key_ids"),
    Column("secret", String(64), nullable=False),  # of its access tokens
    Index("ix_e2b_sandboxes_tenant_created", "tenant", "created_us", "id"),
)

# Every version of a policy that was ever applied, by the SHA-256 of its text.
policies = Table(
    "policies", metadata, *_key("digest"), *_columns(Text(), "text"), *_columns(BigInteger(), "created_us")
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
    *_key("id"),
    _of_thread(),
    Column("run_id", String(64), index=True),
    *_columns(String(64), "tenant", "call_id", "digest", "policy_version"),
    *_columns(String(128), "tool", "rule"),
    *_columns(Text(), "arguments", "reason", "asked"),
    *_columns(Text(), "proposed_rule", "message", "edited_arguments", nullable=True),
    Column("arguments_bytes", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("answer", String(16)),
    Column("edited_digest", String(64)),
    Column("resolved_by", String(128)),
    Column("resolved_us", BigInteger),
    # changed_us increases with every change, so that watchers can query for what is new.
    *_columns(BigInteger(), "created_us", "expires_us", "changed_us"),
    Index("ix_approvals_tenant", "tenant", "status"),
    Index("ix_approvals_thread_id", "thread_id", "digest"),
    Index("ix_approvals_changed_us", "changed_us"),
)

# Narrow rules that an approver granted to a run or a thread.
grants = Table(
    "grants",
    metadata,
    *_key("id"),
    Column("tenant", String(64), nullable=False),
    _of_thread(index=True),
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
    *_key("tenant"),
    *_key("name", length=160),
    Column("window_us", BigInteger, primary_key=True),
    Column("used", BigInteger, nullable=False),
)

# The current uses of quotas that limit concurrency.
holds = Table(
    "holds",
    metadata,
    *_key("id"),
    *_columns(String(64), "tenant", "gateway"),
    Column("name", String(160), nullable=False),
    Column("since_us", BigInteger, nullable=False),
    Index("ix_holds_tenant", "tenant", "name"),
)

# The connections of sandboxes that are open, by the process (gateways.id) that has them. `entry` is the audit record of
# each, as JSON, in case that process is lost.
open_connections = Table(
    "open_connections", metadata, *_key("id"), *_columns(String(64), "tenant", "gateway"), *_columns(Text(), "entry")
)

# The tools of an agent's MCP servers, as JSON: those that were accepted, and those that were seen last.
mcp_pins = Table(
    "mcp_pins",
    metadata,
    *_key("tenant", "agent", "server"),
    *_columns(Text(), "pinned", "seen", "left_out"),
    *_columns(String(64), "pinned_digest", "seen_digest"),
    Column("pinned_by", String(256), nullable=False),
    *_columns(BigInteger(), "pinned_us", "seen_us"),
)

# A tenant's number of threads, and its stored bytes: of its rows' long texts, and 256 per row. Triggers maintain it
# (triggers.py), so it is always exact.
storage_use = Table("storage_use", metadata, *_key("tenant"), *_columns(BigInteger(), "threads", "bytes"))

# The audit: a chain of records for each tenant; the operators' own has the tenant "".
audit_records = Table(
    "audit_records",
    metadata,
    *_key("tenant"),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    *_columns(String(64), "run_id", "call_id", "arguments_digest", "policy_version", "previous_digest", "digest"),
    *_columns(String(256), "actor", "thread"),
    *_columns(String(128), "tool", "rule"),
    *_columns(String(32), "kind", "outcome"),
    Column("verdict", String(16), nullable=False),
    Column("details", Text, nullable=False),
    *_columns(BigInteger(), "at_us", "size_bytes", "duration_us"),
    Index("ix_audit_records_tenant", "tenant", "at_us"),
    Index("ix_audit_records_run_id", "tenant", "run_id"),
)

# The end of each chain, and its beginning since older records were pruned.
audit_heads = Table(
    "audit_heads",
    metadata,
    *_key("tenant"),
    *_columns(String(64), "digest", "before_digest"),
    Column("sequence", BigInteger, nullable=False),
    Column("first_sequence", BigInteger, nullable=False, server_default="1"),
)
