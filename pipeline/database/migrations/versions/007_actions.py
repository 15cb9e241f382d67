"""Collections of the actions of YAML engines, and their remote calls."""

from pipeline.database.migrations.steps import run_sql

revision = "007"
down_revision = "006"


def upgrade() -> None:
    """Make room for named collections, and let the jobs carry more than enrichments."""
    run_sql("007_actions.sql")
