"""The triggers of the tables: they guard the audit, keep work out of deleted threads and count what a tenant stores.

Each is the text after `CREATE TRIGGER name`, by its name. In PostgreSQL they call FUNCTIONS. A migration that has
SQLite replace a table (batch_alter_table) loses the table's triggers, and must create them again.
"""

TRIGGERS: dict[str, dict[str, str]] = {"sqlite": {}, "postgresql": {}}
FUNCTIONS: dict[str, str] = {}
"""The bodies of PostgreSQL's functions, by their names."""

_SQLITE, _POSTGRESQL = TRIGGERS["sqlite"], TRIGGERS["postgresql"]

# --- the audit ---

# A guard against mistakes, not against the database's owner: a record is never changed, and is deleted only once
# its chain's head says that it was pruned, or is gone (the tenant was erased). A head never goes back, and is deleted
# only after its records.
_CHANGED = "a record of the audit is never changed"
_KEPT = "a record of the audit is deleted by retention or with its tenant only"
_BACK = "the end of an audit chain never goes back"
_HEAD_KEPT = "the head of an audit chain goes after its last record"
_IS_KEPT = "EXISTS (SELECT 1 FROM audit_heads h WHERE h.tenant = OLD.tenant AND h.first_sequence <= OLD.sequence)"
_GOES_BACK = "NEW.sequence < OLD.sequence OR NEW.first_sequence < OLD.first_sequence"
_HAS_RECORDS = "EXISTS (SELECT 1 FROM audit_records r WHERE r.tenant = OLD.tenant)"
_IS_THERE = "EXISTS (SELECT 1 FROM audit_records r WHERE r.tenant = NEW.tenant AND r.sequence = NEW.sequence)"
_HAS_HEAD = "EXISTS (SELECT 1 FROM audit_heads h WHERE h.tenant = NEW.tenant)"


def _raise(text: str) -> str:
    return f"BEGIN SELECT RAISE(ABORT, '{text}'); END"


_SQLITE |= {
    "audit_records_changed": f"BEFORE UPDATE ON audit_records {_raise(_CHANGED)}",
    "audit_records_held": f"BEFORE DELETE ON audit_records WHEN {_IS_KEPT} {_raise(_KEPT)}",
    "audit_heads_back": f"BEFORE UPDATE ON audit_heads WHEN {_GOES_BACK} {_raise(_BACK)}",
    "audit_heads_held": f"BEFORE DELETE ON audit_heads WHEN {_HAS_RECORDS} {_raise(_HEAD_KEPT)}",
    # SQLite's REPLACE deletes the row that is there without firing a trigger for it. A head is begun with ON CONFLICT
    # DO NOTHING, so that one more beginning is ignored.
    "audit_records_replaced": f"BEFORE INSERT ON audit_records WHEN {_IS_THERE} {_raise(_CHANGED)}",
    "audit_heads_replaced": f"BEFORE INSERT ON audit_heads WHEN {_HAS_HEAD} BEGIN SELECT RAISE(IGNORE); END",
}
FUNCTIONS |= {
    "audit_records_guard": f"""IF TG_OP = 'UPDATE' THEN RAISE EXCEPTION '{_CHANGED}'; END IF;
        IF {_IS_KEPT} THEN RAISE EXCEPTION '{_KEPT}'; END IF; RETURN OLD;""",
    "audit_heads_guard": f"IF {_GOES_BACK} THEN RAISE EXCEPTION '{_BACK}'; END IF; RETURN NEW;",
    "audit_heads_held": f"IF {_HAS_RECORDS} THEN RAISE EXCEPTION '{_HEAD_KEPT}'; END IF; RETURN OLD;",
    "audit_truncated": "RAISE EXCEPTION 'the audit is never truncated';",
}
_POSTGRESQL |= {
    "audit_records_guard": """BEFORE UPDATE OR DELETE ON audit_records
        FOR EACH ROW EXECUTE FUNCTION audit_records_guard()""",
    "audit_heads_guard": "BEFORE UPDATE ON audit_heads FOR EACH ROW EXECUTE FUNCTION audit_heads_guard()",
    "audit_heads_held": "BEFORE DELETE ON audit_heads FOR EACH ROW EXECUTE FUNCTION audit_heads_held()",
    **{
        f"{table}_truncated": f"BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION audit_truncated()"
        for table in ("audit_heads", "audit_records")
    },
}

# --- threads that are being deleted ---

# Once a deletion has begun to remove a thread's files, no run or call begins in it.
_DELETED = "the thread is being deleted"
_IS_DELETED = "EXISTS (SELECT 1 FROM threads t WHERE t.id = NEW.thread_id AND t.deletion IS NOT NULL)"

FUNCTIONS["refuse_beginning"] = f"""IF {_IS_DELETED} THEN
    RAISE EXCEPTION '{_DELETED}' USING ERRCODE = 'restrict_violation'; END IF; RETURN NEW;"""
for _table, _begins in (("tool_calls", "NEW.state = 'executing'"), ("runs", "NEW.status = 'running'")):
    _name, _event = f"{_table}_refused", f"BEFORE INSERT ON {_table}"
    _SQLITE[_name] = f"{_event} WHEN {_begins} AND {_IS_DELETED} {_raise(_DELETED)}"
    _POSTGRESQL[_name] = f"{_event} FOR EACH ROW WHEN ({_begins}) EXECUTE FUNCTION refuse_beginning()"

# --- what a tenant stores ---

# It is counted in the transaction that changes it: the long texts of these tables by their columns, and _ROW_BYTES for
# each row. A row's tenant is in it, or in its thread or run, which is there before the row and deleted after it.
_ROW_BYTES = 256
_OF_THREAD = "(SELECT o.tenant FROM threads o WHERE o.id = {row}.thread_id)"
_OF_RUN = "(SELECT o.tenant FROM runs o WHERE o.id = {row}.run_id)"
_OF_ROW = "{row}.tenant"
_COUNTED = {
    "messages": (("message",), _OF_THREAD),
    "thread_metadata": (("value",), _OF_THREAD),
    "runs": (("task",), _OF_ROW),
    "events": (("payload",), _OF_RUN),
    "tool_calls": (("arguments", "result"), _OF_ROW),
    "approvals": (("arguments", "edited_arguments"), _OF_ROW),
}
_LENGTH = {"sqlite": "length(CAST(coalesce({}, '') AS BLOB))", "postgresql": "octet_length(coalesce({}, ''))"}
# The columns that are written after the row.
_CHANGING = {"tool_calls": "result", "approvals": "edited_arguments"}
_THREADS_LESS = "UPDATE storage_use SET threads = threads - 1 WHERE tenant = OLD.tenant;"
_THREADS_MORE = """INSERT INTO storage_use (tenant, threads, bytes) VALUES (NEW.tenant, 1, 0)
    ON CONFLICT (tenant) DO UPDATE SET threads = storage_use.threads + 1;"""


def _bytes_of(table: str, row: str, dialect: str) -> str:
    lengths = (_LENGTH[dialect].format(f"{row}.{column}") for column in _COUNTED[table][0])
    return " + ".join([str(_ROW_BYTES), *lengths])


def _add(table: str, count: str, row: str) -> str:
    tenant = _COUNTED[table][1].format(row=row)
    return f"UPDATE storage_use SET bytes = bytes {count} WHERE tenant = {tenant};"  # noqa: S608 - names of ours


def _count_in_sqlite(table: str) -> dict[str, str]:
    new, old = (_bytes_of(table, row, "sqlite") for row in ("NEW", "OLD"))
    triggers = {
        f"{table}_counted": f"AFTER INSERT ON {table} BEGIN {_add(table, f'+ {new}', 'NEW')} END",
        f"{table}_uncounted": f"AFTER DELETE ON {table} BEGIN {_add(table, f'- ({old})', 'OLD')} END",
    }
    if (column := _CHANGING.get(table)) is not None:
        triggers[f"{table}_recounted"] = f"""AFTER UPDATE OF {column} ON {table}
            WHEN NEW.{column} IS NOT OLD.{column} BEGIN {_add(table, f"+ {new} - ({old})", "NEW")} END"""
    return triggers


def _count_in_postgresql(table: str) -> dict[str, str]:
    """Count the rows of one statement at once: one by one, each would leave a dead version of the count."""
    new, old, changed = (_bytes_of(table, row, "postgresql") for row in ("NEW", "OLD", "r"))
    FUNCTIONS[f"count_{table}"] = f"""
        UPDATE storage_use u SET bytes = u.bytes + (CASE TG_OP WHEN 'DELETE' THEN -1 ELSE 1 END) * c.bytes
        FROM (SELECT {_COUNTED[table][1].format(row="r")} AS tenant, CAST(sum({changed}) AS bigint)
            AS bytes FROM changed r GROUP BY 1) c
        WHERE u.tenant = c.tenant; RETURN NULL;"""  # noqa: S608 - names of ours
    triggers = {
        f"{table}_{name}": f"""AFTER {event} ON {table} REFERENCING {rows} TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION count_{table}()"""
        for name, event, rows in (("counted", "INSERT", "NEW"), ("uncounted", "DELETE", "OLD"))
    }
    if (column := _CHANGING.get(table)) is not None:
        FUNCTIONS[f"recount_{table}"] = f"{_add(table, f'+ {new} - ({old})', 'NEW')} RETURN NULL;"
        triggers[f"{table}_recounted"] = f"""AFTER UPDATE OF {column} ON {table} FOR EACH ROW
            WHEN (NEW.{column} IS DISTINCT FROM OLD.{column}) EXECUTE FUNCTION recount_{table}()"""
    return triggers


_SQLITE["threads_counted"] = f"AFTER INSERT ON threads BEGIN {_THREADS_MORE} END"
_SQLITE["threads_uncounted"] = f"AFTER DELETE ON threads BEGIN {_THREADS_LESS} END"
FUNCTIONS["count_threads"] = f"IF TG_OP = 'DELETE' THEN {_THREADS_LESS} ELSE {_THREADS_MORE} END IF; RETURN NULL;"
_POSTGRESQL["threads_counted"] = "AFTER INSERT OR DELETE ON threads FOR EACH ROW EXECUTE FUNCTION count_threads()"
for _table in _COUNTED:
    _SQLITE |= _count_in_sqlite(_table)
    _POSTGRESQL |= _count_in_postgresql(_table)
