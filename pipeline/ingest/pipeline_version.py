"""The version of a pipeline: what makes a document's chunks, which are made anew where it changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self
from uuid import UUID

from sqlalchemy import Connection, text


class PipelineVersion(NamedTuple):
    """Versions of extractor and chunker, as text `EXTRACTOR|CHUNKER`.

    The model is that of the search index: another one is a matter of `larder reindex`.
    """

    extractor: str
    chunker: str

    @classmethod
    def parse(cls, version: str) -> Self:
        """Read a text that `str` composed; a source that was never read has an empty one."""
        extractor, _, chunker = version.partition("|")
        return cls(extractor, chunker)

    def __str__(self) -> str:
        return f"{self.extractor}|{self.chunker}"


_WITH_CHUNKER = "split_part(d.pipeline_version, '|', 1) || '|' || m.chunker"
"""SQL of `PipelineVersion` for a document `d` with the chunker `m.chunker`."""
_RECORD_CHUNKERS = text(f"""
    update document d set pipeline_version = {_WITH_CHUNKER}
    from unnest(cast(:ids as uuid[]), cast(:chunkers as text[])) as m(id, chunker)
    where d.id = m.id and d.pipeline_version <> {_WITH_CHUNKER}""")


def record_chunkers(connection: Connection, chunkers: Mapping[UUID, str]) -> None:
    """Store the chunker's version of claimed documents, if it differs from that at admission.

    Two processes may have two configurations for a while. The next sync queues these documents anew.
    """
    connection.execute(_RECORD_CHUNKERS, {"ids": list(chunkers), "chunkers": list(chunkers.values())})
