"""Tables, roles and row-level security of the whole store."""

from pipeline.database.migrations.steps import run_sql

revision = "001"
down_revision = None


def upgrade() -> None:
    """Create everything."""
    run_sql("001_foundation.sql")
