"""Text files attached to pages are documents of their own when they are wanted."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.confluence.source import ConfluenceSource
from pipeline.errors import SourceDenied
from tests.connectors.confluence.world import Store, options_for, source_for
from tests.fakes.confluence import FakeConfluence
from tests.fakes.server import FakeServer, Fault, Seen


def _store(fake: FakeConfluence, **changes: Any) -> Store:
    store = Store()
    store.sync(source_for(fake, include_attachments=True, **changes))
    return store


@pytest.mark.req("001-053")
def test_files_are_left_alone_unless_wanted(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    fake.attach(page, "notes.txt", b"Some notes")
    store = Store()

    store.sync(source_for(fake))

    assert set(store.documents) == {page}
    assert "notes.txt" not in store.documents[page].text
    assert fake.requests("download") == []


def test_text_files_are_documents_linked_to_their_page_and_others_are_named(fake: FakeConfluence) -> None:
    parent = fake.add_page("ENG", "Handbook")
    page = fake.add_page("ENG", "Page", "<p>x</p>", parent=parent)
    fake.advance(hours=1)
    texts = {
        "notes.md": (b"# Notes\n\nRead *me*.", "# Notes\n\nRead *me*."),
        "list.csv": (b"a,b\n1,2\n", "a,b\n1,2\n"),
        "old.TXT": ("Größe".encode("cp1252"), "Größe"),
        "data.json": (b'{"name": "Larder", "size": 3}', "name: Larder\nsize: 3"),
        "page.html": (b"<html><body><h1>Head</h1><p>Body</p></body></html>", "# Head\n\nBody"),
    }
    made = {fake.attach(page, name, data): text for name, (data, text) in texts.items()}
    fake.attach(page, "plan 1.pdf", b"%PDF", "application/pdf")

    store = _store(fake, metadata={"category": "kb"})

    assert set(store.documents) == {parent, page, *made}
    assert {i: store.documents[i].text for i in made} == made
    encodings = {d.title: d.metadata.get("encoding") for d in store.documents.values()}
    assert {name for name, one in encodings.items() if one} == {"old.TXT"}
    assert encodings["old.TXT"] == "windows-1252"
    document = store.documents[next(iter(made))]
    assert document.title == "notes.md"
    assert document.url.startswith(f"{fake.base}/")
    assert document.updated_at == fake.now
    assert {k: v for k, v in document.metadata.items() if k != "source_path"} == {
        "category": "kb", "space": "ENG", "space_name": "Engineering", "breadcrumb": ["Handbook", "Page"],
        "author": "ben", "version": 1, "page_id": page, "page_title": "Page",
    }  # fmt: skip
    assert document.metadata["source_path"] == document.url
    assert store.documents[page].text == "x\n\n## Attachments\n\n- plan 1.pdf"
    assert (store.failed, store.skipped) == ([], [])


def test_the_walk_of_ids_knows_files_and_their_fingerprints(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    fake.attach(page, "notes.txt", b"Some notes")
    fake.attach(page, "plan.pdf", b"%PDF", "application/pdf")
    store = _store(fake)

    listing = source_for(fake, include_attachments=True).ids()

    assert listing.complete
    assert dict(listing.versions) == {i: d.fingerprint for i, d in store.documents.items()}


def test_a_new_version_of_a_file_comes_with_the_next_sync(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    file = fake.attach(page, "notes.txt", b"Some notes")
    fake.advance(hours=1)
    store = _store(fake)
    fake.replace_attachment(file, b"Better notes")

    store.sync(source_for(fake, include_attachments=True))

    assert store.documents[file].text == "Better notes"


def test_files_come_and_go_by_their_own_ids(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    kept, gone = fake.attach(page, "kept.txt", b"kept"), fake.attach(page, "gone.txt", b"gone")
    fake.detach(gone)

    for known in (False, True):
        source = source_for(fake, include_attachments=True)
        if known:
            source.ids()
        store = Store()
        store.take(source.read([kept, gone, "att99999"]), cursors=False)
        assert set(store.documents) == {kept}
        assert set(store.deleted) == {gone, "att99999"}


def test_a_detached_file_is_noticed_on_a_page_that_was_counted_before(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    file = fake.attach(page, "notes.txt", b"notes")
    source = source_for(fake, include_attachments=True)
    source.ids()
    fake.detach(file)
    store = Store()

    store.take(source.read([file]), cursors=False)

    assert store.deleted == [file]


def test_files_of_a_page_that_became_restricted_go_with_it(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    file = fake.attach(page, "notes.txt", b"notes")
    store = _store(fake)
    fake.restrict(page, [("user", "bot")])

    source = source_for(fake, include_attachments=True, include_restricted=False)
    store.take(source.read([page]), cursors=False)

    assert store.documents == {}
    assert set(store.deleted) == {page, file}


def test_files_of_restricted_pages_carry_the_layers_of_their_page(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>", restricted_to=[("group", "confluence-users")])
    file = fake.attach(page, "notes.txt", b"notes")

    store = _store(fake)

    assert store.documents[file].metadata["acl"] == [["group:confluence-users"]]


def test_large_empty_binary_and_broken_files_are_named(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    large = fake.attach(page, "large.txt", b"x" * 2000)
    empty = fake.attach(page, "empty.txt", b" \n")
    binary = fake.attach(page, "binary.txt", b"\0\1\2" * 50)
    broken = fake.attach(page, "broken.json", b'{"a": ')

    store = _store(fake, attachment_max_bytes=1000)

    assert set(store.documents) == {page}
    assert "large.txt" in store.documents[page].text
    assert {p.external_id for p in store.skipped} == {empty}
    assert {p.external_id for p in store.failed} == {binary, broken}
    assert all(p.url and p.reason for p in (*store.failed, *store.skipped))
    assert not [seen for seen in fake.requests("download") if "large" in seen.path], large


def test_secrets_in_files_are_redacted(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    file = fake.attach(page, "notes.txt", b"see https://me:hunter2@example.org/")

    assert "hunter2" not in _store(fake).documents[file].text


def test_a_file_that_lies_on_another_host_is_not_followed_there(cloud: FakeConfluence) -> None:
    page = cloud.add_page("ENG", "Page", "<p>x</p>")
    files = {cloud.attach(page, f"{n}.txt", b"notes") for n in range(3)}
    with FakeServer() as elsewhere:
        cloud.media_at = elsewhere.address

        store = _store(cloud)

        assert elsewhere.log == []
    assert set(store.documents) == {page}
    assert {p.external_id for p in store.failed} == files
    # Only the first refusal needs proof that it is not the credentials.
    assert len(cloud.requests("user/current")) == 2


def test_credentials_that_are_revoked_while_files_are_read_stop_the_sync(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    fake.attach(page, "notes.txt", b"notes")

    def revoke(seen: Seen) -> None:
        if "type = attachment and" in seen.first("cql"):
            fake.token = fake.password = "another"

    options = options_for(fake, include_attachments=True)
    fake.on_request(revoke)

    # Not even the first page may come: its file would count as broken.
    with pytest.raises(SourceDenied):
        next(ConfluenceSource(options).pages(None))


def test_a_sign_in_page_is_no_file(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    file = fake.attach(page, "notes.txt", b"notes")
    fake.faults.next(Fault.html(200), when=lambda seen: "/download/" in seen.path)

    store = _store(fake)

    assert set(store.documents) == {page}
    assert [p.external_id for p in store.failed] == [file]
