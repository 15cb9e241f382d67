"""What sources that read backlog items are told."""

from __future__ import annotations

from typing import ClassVar

from connectors.files.options import FileOptions


class PbiOptions(FileOptions):
    """Backlog items in JSON files."""

    strategy: ClassVar = "pbi_aware"
    example: ClassVar = {
        "name": "pipeline_outputs",
        "type": "pbi_json",
        "paths": ["./output/run-*/final-output.json", "./output/run-*/step-*.json"],
    }
