"""Words brought to their stems in the language of their document, and questions in all that are in use."""

from __future__ import annotations

from uuid import UUID

import pytest

from pipeline.database.engine import Database
from pipeline.documents import LANGUAGE_KEY, LANGUAGES, language_metadata, language_of
from tests.pipeline.stores.depot import Depot

BOTH = ("english", "german")
FILLER = "Der Hafen hat viele Kräne und eine Schleuse."


@pytest.fixture
def depot(database: Database) -> Depot:
    made = Depot(database)
    for n in range(20):
        made.put(f"{FILLER} Nummer {n}.", metadata=language_metadata("german"))
        made.put(f"The harbour has cranes and a lock, number {n}.")
    return made


def found(depot: Depot, words: str, *languages: str) -> list[UUID]:
    """Documents by words alone, the best first."""
    hits = depot.ask(words, languages=languages or ("english",))
    return [hit.document_id for hit in sorted(hits, key=lambda hit: -(hit.bm25 or 0)) if hit.bm25]


def test_a_german_word_is_found_in_another_form_only_if_its_document_is_german(depot: Depot) -> None:
    german = depot.put(
        "Benutzer werden nach der Abmeldung benachrichtigt.", metadata=language_metadata("german")
    )
    unsaid = depot.put("Fahrer werden nach der Abmeldung benachrichtigt.")
    depot.count()
    assert found(depot, "Abmeldungen", "german") == [german]
    assert found(depot, "Abmeldungen") == []
    assert unsaid in found(depot, "Abmeldung")


def test_one_question_finds_documents_of_all_languages_in_use(depot: Depot) -> None:
    german = depot.put("Die Sitzungen laufen ab.", metadata=language_metadata("german"))
    english = depot.put("Sessions expire.")
    depot.count()
    assert found(depot, "Sitzungen session", *BOTH) == found(depot, "session Sitzungen", *reversed(BOTH))
    assert set(found(depot, "Sitzungen session", *BOTH)) == {german, english}


def test_a_word_counts_once_and_no_stop_word_of_any_language_does(depot: Depot) -> None:
    german = depot.put("Der Server meldet eine Sitzung.", metadata=language_metadata("german"))
    depot.put("We hat the die and was.")
    depot.count()
    assert found(depot, "Hat die Sitzung?", *BOTH) == [german]
    alone, both = (
        {h.document_id: h for h in depot.ask("Server", languages=languages)}[german]
        for languages in (("german",), BOTH)
    )
    assert both.bm25 == pytest.approx(alone.bm25)
    assert both.overlap == pytest.approx(alone.overlap)


def test_a_stem_that_is_nowhere_takes_no_weight_from_the_stem_that_is_there(depot: Depot) -> None:
    """German makes `vessel` of `vessels`, too, but another stem of `boarding` that stands in no chunk."""
    english = depot.put("Pilots board vessels.")
    depot.count()
    one, both = (
        next(h for h in depot.ask("pilots boarding vessels", languages=of) if h.document_id == english)
        for of in (("english",), BOTH)
    )
    assert both.overlap == pytest.approx(one.overlap)
    assert both.covered == pytest.approx(one.covered)


def test_names_and_long_texts_are_found_in_every_language(depot: Depot) -> None:
    named = depot.put("Siehe HADOOP-123 und parse_config_file().", metadata=language_metadata("german"))
    depot.count()
    for words in ("HADOOP-123", "hadoop 123", "config file"):
        assert found(depot, words, *BOTH)[0] == named
    log = "java.io.IOException: no space left\n\tat org.apache.Foo.bar(Foo.java:12)\n" * 200
    assert isinstance(found(depot, log + "'\\ :* & | !", *BOTH), list)
    assert found(depot, "?!", *BOTH) == []


def test_postgresql_knows_every_language(database: Database) -> None:
    depot = Depot(database)
    there = {
        name: depot.put(f"1234 {5000 + n}", metadata={LANGUAGE_KEY: name}) for n, name in enumerate(LANGUAGES)
    }
    depot.count()
    for n, name in enumerate(LANGUAGES):
        assert found(depot, str(5000 + n), name) == [there[name]], name


@pytest.mark.parametrize("told", ["klingon", "", None, 7, ["german"], "german'; drop table chunk"])
def test_an_unknown_language_is_the_default_one(told: object) -> None:
    assert language_of({LANGUAGE_KEY: told}) == "english"
    assert language_of({}) == "english"
    assert language_of(language_metadata("german")) == "german"
    assert language_metadata("english") == {}
