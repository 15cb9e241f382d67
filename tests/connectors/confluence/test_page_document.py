"""What a document of a page holds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from connectors.documents.options import DecisionRules
from pipeline.documents import Document, Kind, SourceType
from tests.connectors.confluence.world import Store, source_for
from tests.fakes.confluence import FakeConfluence


def _documents(fake: FakeConfluence, **changes: Any) -> dict[str, Document]:
    store = Store()
    store.sync(source_for(fake, **changes))
    assert store.failed == []
    return store.documents


@pytest.mark.req("001-053")
def test_a_page_says_where_it_is_from_and_who_wrote_it(fake: FakeConfluence) -> None:
    fake.add_user("ann", "Ann Archer")
    root = fake.add_page("ENG", "Handbook")
    middle = fake.add_page("ENG", "Operations", parent=root)
    page = fake.add_page(
        "ENG", "Deploy & Run", "<h1>How</h1><p>Press it.</p>", parent=middle, labels=["ops", "adr-not"]
    )
    fake.advance(days=1)
    fake.edit(page, "<h1>How</h1><p>Press it twice.</p>", author="ben")

    document = _documents(fake, metadata={"category": "knowledge_base", "space": "fixed"})[page]

    webui = fake._rendering.webui(fake.get(page))
    assert document.url == f"{fake.base}{webui}"
    assert document.title == "Deploy & Run"
    assert document.text == "# How\n\nPress it twice."
    assert document.tags == ("adr-not", "ops")
    assert document.source_type is SourceType.CONFLUENCE
    assert document.kind is Kind.REFERENCE
    assert document.metadata == {
        "category": "knowledge_base",
        "space": "ENG",
        "space_name": "Engineering",
        "breadcrumb": ["Handbook", "Operations"],
        "author": "Ann Archer",
        "version": 2,
        "labels": ["adr-not", "ops"],
        "source_path": document.url,
    }
    assert document.created_at == datetime(2025, 3, 3, 12, 0, 30, 123000, tzinfo=UTC)
    assert document.updated_at == datetime(2025, 3, 4, 12, 0, 30, 123000, tzinfo=UTC)


def test_comments_are_a_section_with_replies_below_what_they_answer(fake: FakeConfluence) -> None:
    fake.add_user("ben", "Ben Baker")
    page = fake.add_page("ENG", "Page", "<p>Text</p>")
    question = fake.comment(page, "<p>Why <strong>so</strong>?</p><p>Really.</p>")
    fake.advance(days=1)
    inline = fake.comment(page, "<p>Here</p>", "inline", creator="cem")
    fake.comment(page, "<p>Done</p>", "resolved", creator="cem")
    reply = fake.comment(page, "<p>Because.</p>", parent=question, creator="dora")
    fake.comment(page, "<p>I see.</p>", parent=reply)
    fake.comment(page, "<p>There</p>", parent=inline)

    text = _documents(fake)[page].text

    assert text == (
        "Text\n\n## Comments\n\n"
        "- **Ben Baker, 2025-03-03**: Why **so**?\n\n  Really.\n"
        "  - **dora, 2025-03-04**: Because.\n"
        "    - **Ben Baker, 2025-03-04**: I see.\n"
        "- **cem, 2025-03-04, inline**: Here\n"
        "  - **Ben Baker, 2025-03-04**: There\n"
        "- **cem, 2025-03-04, inline, resolved**: Done"
    )


def test_a_page_with_more_comments_than_one_answer_holds_shows_them_all(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>Text</p>")
    for n in range(130):
        fake.comment(page, f"<p>word{n}x</p>")

    text = _documents(fake)[page].text

    assert all(f"word{n}x" in text for n in range(130))


def test_links_lead_to_pages_files_and_people(fake: FakeConfluence) -> None:
    fake.add_user("ann", "Ann Archer")
    key = "account-id" if fake.cloud else "userkey"
    body = (
        '<p><ac:link><ri:page ri:content-title="Other Page" /></ac:link> '
        '<ac:link><ri:page ri:content-title="A/B?" ri:space-key="OPS" /></ac:link> '
        '<ac:link><ri:attachment ri:filename="plan 1.txt" /></ac:link> '
        f'<ac:link><ri:user ri:{key}="{fake.user_id("ann")}" /></ac:link> '
        '<a href="/relative">rel</a> <a href="#here">anchor</a> <a href="https://example.org/x">out</a></p>'
    )
    page = fake.add_page("ENG", "Page", body)

    text = _documents(fake)[page].text

    base = fake.base
    assert f"[Other Page]({base}/display/ENG/Other+Page)" in text
    assert f"{base}/pages/viewpage.action?spaceKey=OPS&title=A%2FB%3F" in text
    assert f"[plan 1.txt]({base}/download/attachments/{page}/plan%201.txt)" in text
    assert "@Ann Archer" in text
    assert f"[rel]({fake.address}/relative)" in text
    assert "anchor" in text
    assert "#here" not in text
    assert "https://example.org/x" in text


def test_secrets_in_addresses_are_redacted_before_a_document_is_made(fake: FakeConfluence) -> None:
    leak = "https://user:hunter2@example.org/x?token=abc123secret"
    page = fake.add_page("ENG", f"See {leak}", f'<p>{leak}</p><p><a href="{leak}">here</a></p>')
    fake.comment(page, f"<p>{leak}</p>")

    document = _documents(fake)[page]

    shown = f"{document.title} {document.text} {document.metadata}"
    assert "hunter2" not in shown
    assert "abc123secret" not in shown
    assert "REDACTED" in document.text


@pytest.mark.parametrize(
    ("body", "labels"),
    [
        ("<h2>Status</h2><p>Accepted</p><h2>Decision</h2><p>We do it.</p>", []),
        (
            "<table><tbody><tr><th>Status</th><td>ACCEPTED</td></tr></tbody></table><p>We do it.</p>",
            ["decision"],
        ),
        (
            '<p>Status: <ac:structured-macro ac:name="status"><ac:parameter ac:name="title">ACCEPTED</ac:parameter></ac:structured-macro></p><p>We do it.</p>',
            ["adr"],
        ),
    ],
)
def test_decisions_carry_their_status(fake: FakeConfluence, body: str, labels: list[str]) -> None:
    page = fake.add_page("ENG", "Use queues", body, labels=labels)

    document = _documents(fake)[page]

    assert document.kind is Kind.DECISION
    assert document.metadata["decision_status"] == "accepted"


def test_decisions_are_found_by_their_place_too(fake: FakeConfluence) -> None:
    parent = fake.add_page("ENG", "Decisions", "<p>List</p>")
    page = fake.add_page("ENG", "Use queues", "<h2>Decision</h2><p>We do it.</p>", parent=parent)
    named = fake.add_page("ENG", "ADR 7: Queues / topics", "<p>We do it.</p>")
    other = fake.add_page("ENG", "Photos", "<p>We do it.</p>", parent=parent)

    found = _documents(fake, decisions=DecisionRules(tags=(), headings=(), frontmatter_types=()))

    assert found[page].kind is found[named].kind is Kind.DECISION
    assert found[other].kind is Kind.REFERENCE
    assert found[parent].kind is Kind.REFERENCE


def test_a_page_without_text_is_left_out_with_its_name(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Only a list of children", '<ac:structured-macro ac:name="children" />')
    store = Store()

    store.sync(source_for(fake))

    assert store.documents == {}
    (problem,) = store.skipped
    assert problem.external_id == page
    assert "Only a list of children" in problem.reason
    assert problem.url.startswith(fake.base)


def test_a_page_that_lost_its_text_is_deleted(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    fake.advance(hours=1)
    store = Store()
    store.sync(source_for(fake))
    fake.edit(page, "<p></p>")

    store.sync(source_for(fake))

    assert store.documents == {}


def test_a_body_of_megabytes_comes_whole(fake: FakeConfluence) -> None:
    rows = "".join(f"<p>line {n} of the log{' and on' * 50}</p>" for n in range(4_000))
    page = fake.add_page("ENG", "Log", rows)

    document = _documents(fake)[page]

    assert "line 3999 of the log" in document.text
    assert "capped" not in document.metadata


def test_the_source_type_can_be_set(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")

    document = _documents(fake, source_type=SourceType.DOCUMENTATION)[page]

    assert document.source_type is SourceType.DOCUMENTATION
