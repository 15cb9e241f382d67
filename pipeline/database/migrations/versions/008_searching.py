"""A view of documents that filters search by an index."""

from pipeline.database.migrations.steps import run_sql

revision = "008"
down_revision = "007"


def upgrade() -> None:
    """Show the application the columns of its own documents that filters read."""
    run_sql("008_searching.sql")
