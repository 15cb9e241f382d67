"""How many texts a run's model had to cut."""

from pipeline.database.migrations.steps import run_sql

revision = "009"
down_revision = "008"


def upgrade() -> None:
    """Make room for one more count of a run."""
    run_sql("009_texts_cut.sql")
