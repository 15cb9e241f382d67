"""Several search indexes side by side."""

from pipeline.database.migrations.steps import run_sql

revision = "006"
down_revision = "005"


def upgrade() -> None:
    """Note per index what it holds of each document."""
    run_sql("006_reindex.sql")
