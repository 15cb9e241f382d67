"""Indexes for comparing search indexes with the ledger."""

from pipeline.database.migrations.steps import run_sql

revision = "010"
down_revision = "009"


def upgrade() -> None:
    """Let the comparison read versions only."""
    run_sql("010_followers.sql")
