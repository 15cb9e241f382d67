"""Enrichment jobs that may be asked twice, crash, and fail with a reason."""

from pipeline.database.migrations.steps import run_sql

revision = "003"
down_revision = "002"


def upgrade() -> None:
    """Add their columns and rights."""
    run_sql("003_enrichment.sql")
