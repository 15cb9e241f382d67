"""The version of a pipeline is composed and read in one way, in Python and in SQL."""

from __future__ import annotations

import pytest

from pipeline.ingest.pipeline_version import PipelineVersion, record_chunkers
from tests.pipeline.source_ledger import SourceLedger, document


@pytest.mark.parametrize(
    ("version", "extractor", "chunker"),
    [("files-3|structure-2", "files-3", "structure-2"), ("test-1|new|m", "test-1", "new|m"), ("|c", "", "c")],
)
def test_what_was_composed_is_read(version: str, extractor: str, chunker: str) -> None:
    parsed = PipelineVersion.parse(version)
    assert parsed == (extractor, chunker)
    assert str(parsed) == version


def test_a_source_that_was_never_read_has_no_version() -> None:
    assert PipelineVersion.parse("") == ("", "")


def test_sql_replaces_the_chunker_as_python_does_and_writes_no_row_that_is_right(notes: SourceLedger) -> None:
    notes.admit(document("a"), document("b"), document("c"))
    version = PipelineVersion.parse(notes.row("a")["pipeline_version"])
    notes.sql("update document set pipeline_version = 'x|y|z' where external_id = 'b'")
    written = "select external_id from document where xmin = pg_current_xact_id()::xid order by 1"
    with notes.database.tenant(notes.tenant) as connection:
        record_chunkers(
            connection, {notes.id("a"): "new|m", notes.id("b"): "new|m", notes.id("c"): version.chunker}
        )
        assert connection.exec_driver_sql(written).scalars().all() == ["a", "b"]
    assert notes.row("a")["pipeline_version"] == str(version._replace(chunker="new|m"))
    assert notes.row("b")["pipeline_version"] == str(PipelineVersion("x", "new|m"))
    assert notes.row("c")["pipeline_version"] == str(version)
