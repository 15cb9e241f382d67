"""Running one numbered SQL file as a migration step."""

from pathlib import Path

from alembic import op


def run_sql(name: str) -> None:
    """Execute `sql/<name>` as it stands, on the driver's own connection.

    SQLAlchemy would read the colons and percent signs of the file as parameters.
    """
    script = (Path(__file__).parent / "sql" / name).read_text(encoding="utf-8")
    op.get_bind().connection.driver_connection.execute(script)  # type: ignore[union-attr]
