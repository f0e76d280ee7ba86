"""The head of an audit chain is kept for as long as its records are, and neither is replaced.

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_HELD = "the head of an audit chain goes after its last record"
_TRUNCATED = "the audit is never truncated"
_CHANGED = "a record of the audit is never changed"
_HAS_RECORDS = "EXISTS (SELECT 1 FROM audit_records r WHERE r.tenant = OLD.tenant)"
_IS_THERE = "EXISTS (SELECT 1 FROM audit_records r WHERE r.tenant = NEW.tenant AND r.sequence = NEW.sequence)"
# SQLite's REPLACE deletes the row that is there without firing a trigger for it. A head is begun with ON CONFLICT DO
# NOTHING, so that one more beginning is ignored.
_SQLITE = {
    "audit_heads_held": f"""BEFORE DELETE ON audit_heads WHEN {_HAS_RECORDS}
        BEGIN SELECT RAISE(ABORT, '{_HELD}'); END""",
    "audit_heads_replaced": """BEFORE INSERT ON audit_heads
        WHEN EXISTS (SELECT 1 FROM audit_heads h WHERE h.tenant = NEW.tenant)
        BEGIN SELECT RAISE(IGNORE); END""",
    "audit_records_replaced": f"""BEFORE INSERT ON audit_records WHEN {_IS_THERE}
        BEGIN SELECT RAISE(ABORT, '{_CHANGED}'); END""",
}
_FUNCTIONS = {
    "audit_heads_held": f"""BEGIN IF {_HAS_RECORDS} THEN RAISE EXCEPTION '{_HELD}'; END IF; RETURN OLD; END""",
    "audit_truncated": f"""BEGIN RAISE EXCEPTION '{_TRUNCATED}'; END""",
}
_POSTGRESQL = (
    """CREATE TRIGGER audit_heads_held BEFORE DELETE ON audit_heads
       FOR EACH ROW EXECUTE FUNCTION audit_heads_held()""",
    *(
        f"""CREATE TRIGGER {table}_truncated BEFORE TRUNCATE ON {table}
            FOR EACH STATEMENT EXECUTE FUNCTION audit_truncated()"""
        for table in ("audit_heads", "audit_records")
    ),
)


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for name, body in _SQLITE.items():
            op.execute(sa.text(f"CREATE TRIGGER {name} {body}"))
        return
    for name, body in _FUNCTIONS.items():
        op.execute(sa.text(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$"))
    for statement in _POSTGRESQL:
        op.execute(sa.text(statement))


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for name in _SQLITE:
            op.execute(sa.text(f"DROP TRIGGER {name}"))
        return
    for name in _FUNCTIONS:
        op.execute(sa.text(f"DROP FUNCTION {name}() CASCADE"))
