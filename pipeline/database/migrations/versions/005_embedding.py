"""What embedding for money needs."""

from pipeline.database.migrations.steps import run_sql

revision = "005"
down_revision = "004"


def upgrade() -> None:
    """Add waits, holds, claims on texts, and usage."""
    run_sql("005_embedding.sql")
