"""Files of the backlog pipeline in a folder, as their source reads them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from connectors import open_source
from pipeline.documents import Document, Problem
from tests.connectors.folders import file_options

PATHS = ("./output/run-*/final-output.json", "./output/run-*/step-*.json")
ONE = {"id": "PBI-1", "title": "One"}
TWO = {"id": "PBI-2", "title": "Two"}


def source(root: Path, *paths: str, max_bytes: int = 1_000_000, **more: Any) -> Any:
    return open_source(
        file_options(
            name="pipeline_outputs",
            type="pbi_json",
            root=root,
            paths=paths or PATHS,
            metadata={"category": "historical"},
            max_bytes=max_bytes,
            **more,
        )
    )


def write(root: Path, name: str, data: Any, age: float = 0) -> Path:
    path = root / "output" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def read(
    root: Path, *paths: str, max_bytes: int = 1_000_000
) -> tuple[dict[str, Document], dict[str, Problem], dict[str, Problem]]:
    pages = list(source(root, *paths, max_bytes=max_bytes).pages(None))
    return (
        {d.external_id: d for page in pages for d in page.documents},
        {p.external_id: p for page in pages for p in page.failed},
        {p.external_id: p for page in pages for p in page.skipped},
    )
