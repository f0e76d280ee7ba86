"""What the gateway keeps: SQLAlchemy tables, migrations and queries."""
