"""A folder for connectors that read as somebody else."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can reach; those of tmp_path are root's alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        for path in sorted(folder.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755)
