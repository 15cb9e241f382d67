"""An index of what searches must not show."""

from pipeline.database.migrations.steps import run_sql

revision = "011"
down_revision = "010"


def upgrade() -> None:
    """Let searches find hidden documents by an index."""
    run_sql("011_hidden.sql")
