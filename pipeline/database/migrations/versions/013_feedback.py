"""What people say of documents that answers showed."""

from pipeline.database.migrations.steps import run_sql

revision = "013"
down_revision = "012"


def upgrade() -> None:
    """Keep with each verdict what the question was, and let it change what searches may show."""
    run_sql("013_feedback.sql")
