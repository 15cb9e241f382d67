"""What names the state of a tenant's documents."""

from pipeline.database.migrations.steps import run_sql

revision = "004"
down_revision = "003"


def upgrade() -> None:
    """Stamp every change of what searches may show."""
    run_sql("004_change_stamp.sql")
