"""The data folder of a new installation, made once in a run of the tests: all others are copies of it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from pipeline.database import migrations
from workers import embedded

FOLDER = "TESTS_TEMPLATE"
"""Names the folder of this run, for all processes that run its tests."""


def choose() -> None:
    """Name a folder for this run; nothing is made yet."""
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="larder-template-")


def remove() -> None:
    """Remove it with all that was made."""
    shutil.rmtree(os.environ[FOLDER], ignore_errors=True)


def prepare(data: Path) -> None:
    """Make the data folder `data`, whose servers have passwords and the current schema and do not run yet."""
    made = Path(os.environ[FOLDER], "data")
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "schema").exists():
            revision = migrations.upgrade(embedded.ensure(made).admin_url)
            embedded.stop(made)
            for port in made.glob("*/port"):
                port.unlink()  # or several copies would want the same
            (made / "schema").write_text(revision)
    # Which belongs in part to another user, and PostgreSQL looks at that.
    subprocess.run(["cp", "-a", made, data], check=True)
