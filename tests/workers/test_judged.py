"""Sets of judged questions as people save them: other encodings, lines twice, names that fit nothing."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from pipeline.errors import ConfigurationError
from workers.judged import read

FILES = {
    "corpus.jsonl": '{"_id": "d1", "text": "kestrel"}\n{"_id": "d2", "text": "otter"}\n',
    "queries.jsonl": '{"_id": "q1", "text": "bird"}\n{"_id": "q2", "text": "swims"}\n',
    "qrels.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\n",
    "meta.json": '{"self_exclude": true}',
}
RELEVANT = {"q1": frozenset({"d1"}), "q2": frozenset({"d2"})}


def write(folder: Path, **changed: bytes) -> Path:
    """The set; `corpus=b"..."` is another content of corpus.jsonl."""
    for name, content in FILES.items():
        (folder / name).write_bytes(changed.get(name.partition(".")[0], content.encode()))
    return folder


def test_what_windows_saves_is_read_as_it_is_meant(tmp_path: Path) -> None:
    saved = {n.partition(".")[0]: c.replace("\n", "\r\n").encode("utf-8-sig") for n, c in FILES.items()}
    judged = read(write(tmp_path, **saved))
    assert judged.relevant == RELEVANT
    assert [d.external_id for d in judged.documents] == ["d1", "d2"]
    assert judged.self_exclude
    # The mark must not end in the first column either, where no header line takes it.
    headless = codecs.BOM_UTF8 + b"q1\td1\t1\r\nq2\td2\t1\r\n"
    assert read(write(tmp_path, qrels=headless)).relevant == RELEVANT


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("corpus", FILES["corpus.jsonl"].encode() + "Köln".encode("latin-1"), "line 3 is no text in UTF-8"),
        ("queries", FILES["queries.jsonl"].encode("utf-16"), "line 1 is no text in UTF-8"),
        ("qrels", "q1\tdö\t1".encode("latin-1"), "line 1 is no text in UTF-8"),
        ("corpus", FILES["corpus.jsonl"].encode() * 2, "line 3 has the _id 'd1' of line 1"),
        ("queries", FILES["queries.jsonl"].encode() * 2, "line 3 has the _id 'q1' of line 1"),
        ("queries", b'{"_id": "q1", "text": " "}', "line 1 has an empty text"),
        ("qrels", b"h\th\th\nq1\td3\t1", "line 2 names the document 'd3', which corpus.jsonl does not hold"),
        ("corpus", b"[" * 100_000, "line 1 is no JSON object with _id"),
    ],
)
def test_what_would_spoil_the_figures_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(write(tmp_path, **{name: content}))
    assert said in caught.value.message
    assert str(tmp_path / name) in caught.value.message
    assert caught.value.fix


def test_a_document_that_is_called_wrong_need_not_be_there(tmp_path: Path) -> None:
    judged = read(write(tmp_path, qrels=b"q1\td1\t1\nq1\tgone\t0\nq2\td2\t1\n"))
    assert judged.relevant == RELEVANT


def test_a_folder_that_is_not_there_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere is not a folder"):
        read(tmp_path / "nowhere")
