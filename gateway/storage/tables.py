"""The tables. Times are UTC microseconds since 1970, so that both databases order and compare them alike."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, MetaData, String, Table, Text
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
)

threads = Table(
    "threads",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("name", String(256), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Unique("tenant", "name"),
)

messages = Table(
    "messages",
    metadata,
    Column("thread_id", String(64), ForeignKey("threads.id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("run_id", String(64), nullable=False),
    Column("message", Text, nullable=False),
)

# What lasts as long as the thread: the agent's own, its capabilities' and the gateway's, one value a key.
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
    Index("ix_tool_calls_run_id", "run_id"),
)
