"""One document that is made to take for ever, or too much, is a problem of its own: the others are read."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from connectors.documents import values
from connectors.documents.values import bounded, build_document
from connectors.markup.elements import to_markdown
from connectors.pbi.record import PbiRecord, pbi_record
from connectors.pbi.shapes import PbiItem
from pipeline.documents import Document, Kind, SourceType
from pipeline.errors import DocumentRejected, SourceDenied
from tests.connectors.folders import file_options, walk, write
from tests.connectors.notes import read

MERGES = "a0: &a0 {k0: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], k{n}: 1}}\n" for n in range(1, 41)
)
DIGITS = "f" * 5000


def documents_beside(root: Path, text: str) -> tuple[list[str], dict[str, str]]:
    write(root, "bad.md", text=text)
    write(root, "good.md")
    documents, failed, _ = read(root)
    for document in documents.values():
        assert document.content_hash
        json.dumps(document.metadata)
    return sorted(documents), {name: problem.reason for name, problem in failed.items()}


def test_merge_keys_that_multiply_are_read_as_lines_at_once(tmp_path: Path) -> None:
    begun = time.monotonic()
    assert documents_beside(tmp_path, f"---\ntitle: Merged\n{MERGES}---\ntext") == (["bad.md", "good.md"], {})
    note = read(tmp_path)[0]["bad.md"].metadata["reading_note"]
    assert "header is not valid YAML" in note
    assert time.monotonic() - begun < 5


def test_merge_keys_as_people_use_them_are_read(tmp_path: Path) -> None:
    head = "base: &base {title: Tides}\nother: {<<: *base, x: 1}\n<<: *base\n"
    write(tmp_path, "a.md", text=f"---\n{head}---\ntext")
    assert read(tmp_path)[0]["a.md"].title == "Tides"


@pytest.mark.parametrize("key", ["category", "title", "status", "tags", "created", "date", "type"])
@pytest.mark.parametrize("number", [f"0x{DIGITS}", "9" * 5000, "1:" * 3000 + "1", f"[0x{DIGITS}]"])
def test_a_number_of_too_many_digits_stays_text(tmp_path: Path, key: str, number: str) -> None:
    found, failed = documents_beside(tmp_path, f"---\n{key}: {number}\n---\ntext")
    assert (found, failed) == (["bad.md", "good.md"], {})


@pytest.mark.parametrize("value", ["!!int", "!!int x", "!!bool perhaps", "!!float much", "!!timestamp then"])
def test_a_value_that_is_not_what_its_tag_says_stays_text(tmp_path: Path, value: str) -> None:
    assert documents_beside(tmp_path, f"---\ncategory: {value}\n---\ntext") == (["bad.md", "good.md"], {})


@pytest.mark.parametrize("nested", ["[" * 200_000 + "]" * 200_000, "- " * 200_000 + "x", "{a: " * 200_000])
def test_a_header_that_is_nested_without_end_is_read_as_lines(tmp_path: Path, nested: str) -> None:
    text = f"---\ntitle: Nested\nx:\n  {nested}\n---\ntext"
    assert documents_beside(tmp_path, text) == (["bad.md", "good.md"], {})
    bad = read(tmp_path)[0]["bad.md"]
    assert (bad.title, bad.text) == ("Nested", "text")
    assert bad.metadata["reading_note"] == "the header is not valid YAML at line 4; it was read line by line"


@pytest.mark.parametrize("html", ["<p>a&#{};b</p>", "<p>a<a href='x&#{};'>y</a>b</p>", "a&#{}"])
def test_a_number_of_no_character_shows_as_browsers_show_it(html: str) -> None:
    assert "a" in to_markdown(html.format("9" * 4400)).text
    assert "\ufffd" in to_markdown("x &#" + "9" * 4400 + "; y").text
    assert to_markdown("&#65;&#0000065;").text == "AA"


def test_a_pbi_that_cannot_be_read_leaves_the_others_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_for_one(item: PbiItem, run: Mapping[str, Any]) -> PbiRecord | None:
        if item.index == 1:
            raise KeyError("secret")
        return pbi_record(item, run)

    monkeypatch.setattr("connectors.pbi.sources.pbi_record", fails_for_one)
    items = [{"id": f"P-{n}", "title": f"Title {n}", "description": "d"} for n in range(3)]
    write(tmp_path, "a.json", text=json.dumps({"pbis": items}))
    given = file_options(name="pbis", type="pbi_json", root=tmp_path, paths=("*.json",))
    documents, failed, _ = walk(given)
    assert sorted(documents) == ["P-0", "P-2"]
    assert "PBI number 2 cannot be read: KeyError" in failed["a.json#1"]
    assert "secret" not in failed["a.json#1"]


def for_ever() -> None:
    while True:
        pass


def for_ever_in_spite_of_errors() -> None:
    while True:
        try:
            for_ever()
        except Exception:  # noqa: BLE001, S112
            continue


@pytest.mark.parametrize("spin", [for_ever, for_ever_in_spite_of_errors])
def test_a_document_that_takes_too_long_is_stopped(
    spin: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "MOST_SECONDS", 0.2)
    for _ in range(2):  # the bounds hold for the next one as well
        with pytest.raises(DocumentRejected, match=r"x\.md takes more than 0\.2 seconds"), bounded("x.md"):
            spin()


def test_a_document_that_takes_too_much_memory_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MOST_BYTES", 50 * 1024**2)

    def hoard() -> None:
        taken = []
        while True:
            taken.append(bytearray(b"x" * 100_000))

    with pytest.raises(DocumentRejected, match="takes more than 50 MB"), bounded("x.md"):
        hoard()


def test_what_waits_or_is_quick_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MOST_SECONDS", 0.1)
    for _ in range(5):
        with bounded("x.md"):
            time.sleep(0.05)
            sum(range(100_000))


def test_every_error_is_the_documents_and_its_text_is_not_told() -> None:
    def fail() -> Document:
        raise ValueError("the secret text")

    with pytest.raises(DocumentRejected) as caught:
        build_document(fail, "x.md")
    assert "x.md cannot be read: ValueError in test_bounds.py, line" in str(caught.value)
    assert "secret" not in str(caught.value)

    def dive() -> Document:
        return dive()

    with pytest.raises(DocumentRejected, match=r"x\.md is nested too deeply"):
        build_document(dive, "x.md")
    with pytest.raises(SourceDenied), bounded("x.md"):
        raise SourceDenied


def test_a_document_that_cannot_be_hashed_is_a_problem_before_it_reaches_the_ledger() -> None:
    document = Document(
        external_id="x",
        title="x",
        text="x",
        source_type=SourceType.TEXT,
        kind=Kind.REFERENCE,
        metadata={"n": 16**5000},
    )
    with pytest.raises(DocumentRejected, match=r"x\.md cannot be read: ValueError"):
        build_document(lambda: document, "x.md")


def test_bounds_in_a_thread_tell_errors_all_the_same() -> None:
    told: list[str] = []

    def run() -> None:
        try:
            with bounded("x.md"):
                raise KeyError
        except DocumentRejected as error:
            told.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "KeyError" in told[0]


def test_bounds_within_bounds_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MOST_SECONDS", 0.2)

    def outlast_the_inner() -> None:
        with bounded("inner"):
            pass
        for_ever()

    with pytest.raises(DocumentRejected, match="outer takes more than"), bounded("outer"):
        outlast_the_inner()
