"""What every source's documents go through, whichever connector makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors import protected
from connectors.documents.options import USUAL, LevelRule, SourceContext
from pipeline.documents import Document, Kind, SourceType
from tests.connectors.folders import file_options, walk

MAIL, IP = "ann@corp.com", "10.1.2.3"


def made(**changes: Any) -> Document:
    plain: dict[str, Any] = {
        "external_id": "a", "title": "A", "text": "Text", "source_type": SourceType.TEXT, "kind": Kind.REFERENCE,
    }  # fmt: skip
    return Document(**(plain | changes))


def cleaned(document: Document, *kinds: str) -> Document:
    return protected(document, file_options(name="a", type="text", paths=("*",), redact=kinds or USUAL))


@pytest.mark.req("001-113")
@pytest.mark.parametrize(
    ("kind", "name", "content"),
    [
        ("markdown", "a.md", f"---\nauthor: {MAIL}\ntags: [{MAIL}]\n---\n# To {MAIL}\n\nWrite to {MAIL}, password=hunter2\n"),
        ("text", "a.txt", f"To {MAIL}\n\nWrite to {MAIL}, password=hunter2\n"),
        ("pbi_json", "a.json", f'{{"pbis": [{{"id": 1, "title": "To {MAIL}", "labels": ["{MAIL}"], "notes": "password=hunter2"}}]}}'),
        ("json", "b.json", f'{{"title": "To {MAIL}", "password": "hunter2"}}'),
    ],
)  # fmt: skip
def test_whatever_reads_it_nothing_of_a_document_keeps_a_mail_address_or_a_secret(
    tmp_path: Path, kind: str, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    given: dict[str, Any] = {"name": "a", "type": kind, "root": tmp_path, "paths": (name,)}
    (found,) = walk(file_options(**given))[0].values()
    assert MAIL not in repr(found)
    assert "hunter2" not in repr(found)
    assert "[email]" in found.title
    (open_,) = walk(file_options(**given, redact=()))[0].values()
    assert MAIL in open_.title
    assert "hunter2" not in repr(open_)


def test_who_may_read_a_document_and_where_it_is_are_no_personal_data() -> None:
    facts = {
        "acl": [[f"user:{MAIL}"]], "source_path": f"people/{MAIL}.md", "links": [f"people/{MAIL}.md"], "rev": 3,
        "fields": {"reporter": [MAIL, 4]},
    }  # fmt: skip
    document = cleaned(made(metadata=facts, url=f"file:///people/{MAIL}.md"))
    assert document.metadata == {**facts, "fields": {"reporter": ["[email]", 4]}}
    assert document.url == f"file:///people/{MAIL}.md"


def test_addresses_of_machines_go_only_where_that_is_asked_for() -> None:
    document = made(text=f"{IP} {MAIL}")
    assert cleaned(document).text == f"{IP} [email]"
    assert cleaned(document, "ip").text == f"[ip] {MAIL}"


@pytest.mark.req("001-113")
def test_names_go_that_metadata_and_comments_tell() -> None:
    text = (
        "Ann Archer asked Ben.\n\n- **Cem Can, 2025-03-03**: Dora, too\n\n### Eve Ex, 2025-03-04\n\n"
        "- Closed 2025-03-05 by Finn Fir: done\n\nEvelyn, Bennet and Cem Can stay here."
    )
    facts = {"author": "Ann Archer <ann@corp.com>", "deciders": ["Ben", "Al"], "space": "Ann Archer"}
    document = cleaned(made(text=text, metadata=facts), "names", "email")
    assert document.text == (
        "[name] asked [name].\n\n- **[name], 2025-03-03**: Dora, too\n\n### [name], 2025-03-04\n\n"
        "- Closed 2025-03-05 by [name]: done\n\nEvelyn, Bennet and [name] stay here."
    )
    assert document.metadata == {
        "author": "[name] <[email]>",
        "deciders": ["[name]", "Al"],
        "space": "[name]",
    }
    assert cleaned(made(text=text, metadata=facts)).text == text


def test_a_redacted_document_is_the_same_again() -> None:
    document = made(text=f"Write to {MAIL} or +49 30 901820", metadata={"author": MAIL})
    assert cleaned(cleaned(document)).content_hash == cleaned(document).content_hash != document.content_hash


PAGE = {"space": "HR", "breadcrumb": ["Salaries", "2025"], "labels": ["Board"]}
ITEM = {"area": "Shop\\Payments\\Fraud"}


@pytest.mark.req("001-114")
@pytest.mark.parametrize(
    ("rule", "facts", "fits"),
    [
        ({}, {}, True),
        ({"labels": ["board"]}, PAGE, True),
        ({"tags": ["Secret"]}, {}, True),
        ({"tags": ["other"], "labels": ["secret"]}, {}, True),
        ({"labels": ["secre"]}, PAGE, False),
        ({"spaces": ["IT", "HR"]}, PAGE, True),
        ({"spaces": ["H"]}, PAGE, False),
        ({"spaces": ["HR"]}, {}, False),
        ({"paths": ["HR/Salaries/**"]}, PAGE, True),
        ({"paths": ["HR/*"]}, PAGE, False),
        ({"paths": ["hr/**/*.md"]}, {"source_path": "hr/2025/pay.md"}, True),
        ({"paths": ["hr/**"]}, {"source_path": "docs/hr/pay.md"}, False),
        ({"areaPaths": ["shop\\payments"]}, ITEM, True),
        ({"areaPaths": ["Shop\\Pay"]}, ITEM, False),
        ({"types": ["text"]}, {}, True),
        ({"types": ["confluence", "markdown"]}, {}, False),
        ({"sources": ["a"]}, {}, True),
        ({"sources": ["b"]}, {}, False),
        ({"titlePattern": "*pay of*"}, {}, True),
        ({"titlePattern": "pay"}, {}, False),
        ({"spaces": ["HR"], "labels": ["board"], "titlePattern": "the*"}, PAGE, True),
        ({"spaces": ["HR"], "labels": ["nobody"], "titlePattern": "the*"}, PAGE, False),
    ],
)
def test_a_rule_fits_when_all_of_its_keys_hold(
    rule: dict[str, Any], facts: dict[str, Any], fits: bool
) -> None:
    document = made(title="The Pay of 2025", tags=("secret",), metadata=facts)
    assert LevelRule.model_validate({"level": "restricted", **rule}).fits(document, "a") is fits


@pytest.mark.req("001-114")
@pytest.mark.parametrize(
    ("asked", "own", "level"),
    [
        (None, None, "confidential"),
        ("public", None, "confidential"),
        ("Restricted", None, "restricted"),
        (None, "secret", "public"),
        ("internal", "secret", "internal"),
        (None, "other", "restricted"),
    ],
)
def test_the_first_rule_counts_and_a_document_may_ask_for_more_but_not_for_less(
    asked: str | None, own: str | None, level: str
) -> None:
    rules = [
        LevelRule(level="public", tags=("secret",)),
        LevelRule(level="restricted", tags=("other",)),
        LevelRule(level="internal", tags=("other",)),
    ]
    options = file_options(name="a", type="text", paths=("*",), security_level="confidential")
    facts = {"security_level": asked} if asked else {}
    document = made(metadata=facts, tags=(own,) if own else ())
    found = protected(document, options.with_context(SourceContext(levels=rules)))
    assert found.security_level == level
    assert "security_level" not in found.metadata


def test_a_document_that_asks_for_an_unknown_level_is_told_and_not_stored(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\nsecurity_level: top secret\n---\n# A\n\nText\n")
    (tmp_path / "b.md").write_text("---\nsecurity_level: restricted\n---\n# B\n\nText\n")
    documents, failed, _ = walk(file_options(name="a", type="markdown", root=tmp_path, paths=("*.md",)))
    assert {name: one.security_level for name, one in documents.items()} == {"b.md": "restricted"}
    assert failed["a.md"].startswith("a.md: its security_level is unknown")
    assert "restricted" in failed["a.md"]
    assert "top secret" not in failed["a.md"]
