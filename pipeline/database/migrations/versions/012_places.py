"""Where chunks lie, for searches."""

from pipeline.database.migrations.steps import run_sql

revision = "012"
down_revision = "011"


def upgrade() -> None:
    """Let searches read a chunk again at the place where they found it."""
    run_sql("012_places.sql")
