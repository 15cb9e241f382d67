"""What the id walk of a source compares, and where it goes on."""

from pipeline.database.migrations.steps import run_sql

revision = "002"
down_revision = "001"


def upgrade() -> None:
    """Add both columns."""
    run_sql("002_fingerprint.sql")
