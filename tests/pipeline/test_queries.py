"""Keywords, intent and synonyms."""

from __future__ import annotations

import pytest

from pipeline.search.question import Synonyms, intent_of, keywords


@pytest.mark.req("001-022", "001-023")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("How do I rotate the signing keys?", ("rotate", "signing", "keys")),
        ("HADOOP-123 fails in ns/tool_call.v2", ("HADOOP-123", "fails", "ns/tool_call.v2")),
        ("disk full, and the disk again: Disk", ("disk", "full")),
        ("Wie wird die Rechnung storniert", ("wird", "Rechnung", "storniert")),
        ("the and of", ()),
        ("", ()),
    ],
)
def test_keywords_are_the_words_that_carry_a_question(text: str, found: tuple[str, ...]) -> None:
    assert keywords(text) == found


def test_keywords_are_few_and_the_repeated_first() -> None:
    text = " ".join(f"word{n}" for n in range(100)) + " kiln kiln"
    assert keywords(text)[0] == "kiln"
    assert len(keywords(text)) == 12


@pytest.mark.req("001-022")
@pytest.mark.parametrize(
    ("text", "intent"),
    [
        ("How do I rotate keys?", "question"),
        ("keys rotate how often?", "question"),
        ("Wie drehe ich Schlüssel", "question"),
        ("Why did we choose Postgres?", "decision"),
        ("the decision about queues", "decision"),
        ("ADR for queues", "decision"),
        ("Rotate signing keys without downtime", "similar_work"),
        ("As an operator I want keys to rotate. " * 20 + "Why?", "similar_work"),
    ],
)
def test_intents(text: str, intent: str) -> None:
    assert intent_of(text) == intent


@pytest.mark.req("001-022")
def test_synonyms_add_what_is_not_there_in_both_directions() -> None:
    known = Synonyms.from_groups([["k8s", "Kubernetes", "container platform"], ["alone"], ["pto", "leave"]])
    assert known.added_to("restart K8S now") == ("kubernetes", "container platform")
    assert known.added_to("our container-platform is down") == ("k8s", "kubernetes")
    assert known.added_to("kubernetes and k8s") == ("container platform",)
    assert known.added_to("k8sx, and a photo") == (), "whole words only"
    assert known.added_to("alone") == ()
    assert Synonyms.from_groups({"k8s": ["kubernetes"]}).added_to("kubernetes") == ("k8s",)
