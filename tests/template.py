"""Where a run of the tests keeps its files, and in it a new installation, of which all others are copies."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from multiprocessing import util
from pathlib import Path

import psutil

from pipeline.database import migrations
from workers.local import embedded

FOLDER = "TESTS_TEMPLATE"
"""Names the template's folder in this run, for all processes that run its tests."""

MEMORY = Path("/dev/shm")  # noqa: S108 (the folder that is made in it is ours alone)
ROOM = 6 << 30
"""Bytes that must be free to test in memory; four files at a time use two thirds of it at most."""


def choose() -> None:
    """Make the folder of this run, and let it be where temporary files lie until this process ends.

    It is in memory where there is room: each test's database is some 500 small files, which ext4 makes and removes
    at .3 s of a core, and memory at .02. Whoever sets TMPDIR decides otherwise.
    """
    parent = MEMORY if "TMPDIR" not in os.environ and _roomy() else Path(tempfile.gettempdir())
    for left in parent.glob("larder-run-*"):
        with suppress(OSError), (left / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises as long as its run lives
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix="larder-run-", dir=parent))
    folder.chmod(0o711)  # some tests become another user
    held = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)  # as long as this process lives
    fcntl.flock(held, fcntl.LOCK_SH)
    os.environ |= {"TMPDIR": str(folder), FOLDER: str(folder / "template")}
    Path(os.environ[FOLDER]).mkdir()
    tempfile.tempdir = None  # which remembers where it was
    # Last of all, since multiprocessing removes a folder of its own in it (-100).
    util.Finalize(None, shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True}, exitpriority=-101)


def _roomy() -> bool:
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        return False
    found = os.statvfs(MEMORY)
    runs_programs = not found.f_flag & os.ST_NOEXEC
    return runs_programs and min(found.f_bavail * found.f_frsize, psutil.virtual_memory().available) >= ROOM


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
