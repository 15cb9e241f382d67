"""Words brought to their stems in the language of their document, and questions in all that are in use."""

from __future__ import annotations

from uuid import UUID

import pytest

from pipeline.database.engine import Database
from pipeline.documents import LANGUAGE_KEY, LANGUAGES, language_metadata, language_of
from tests.pipeline.stores.corpus import Corpus

BOTH = ("english", "german")
FILLER = "Der Hafen hat viele Kräne und eine Schleuse."


@pytest.fixture
def corpus(database: Database) -> Corpus:
    made = Corpus(database)
    for n in range(20):
        made.put(f"{FILLER} Nummer {n}.", metadata=language_metadata("german"))
        made.put(f"The harbour has cranes and a lock, number {n}.")
    return made


def found(corpus: Corpus, words: str, *languages: str) -> list[UUID]:
    """Documents by words alone, the best first."""
    hits = corpus.ask(words, languages=languages or ("english",))
    return [hit.document_id for hit in sorted(hits, key=lambda hit: -(hit.bm25 or 0)) if hit.bm25]


def test_a_german_word_is_found_in_another_form_only_if_its_document_is_german(corpus: Corpus) -> None:
    german = corpus.put(
        "Benutzer werden nach der Abmeldung benachrichtigt.", metadata=language_metadata("german")
    )
    unsaid = corpus.put("Fahrer werden nach der Abmeldung benachrichtigt.")
    corpus.count()
    assert found(corpus, "Abmeldungen", "german") == [german]
    assert found(corpus, "Abmeldungen") == []
    assert unsaid in found(corpus, "Abmeldung")


def test_one_question_finds_documents_of_all_languages_in_use(corpus: Corpus) -> None:
    german = corpus.put("Die Sitzungen laufen ab.", metadata=language_metadata("german"))
    english = corpus.put("Sessions expire.")
    corpus.count()
    assert found(corpus, "Sitzungen session", *BOTH) == found(corpus, "session Sitzungen", *reversed(BOTH))
    assert set(found(corpus, "Sitzungen session", *BOTH)) == {german, english}


def test_a_word_counts_once_and_no_stop_word_of_any_language_does(corpus: Corpus) -> None:
    german = corpus.put("Der Server meldet eine Sitzung.", metadata=language_metadata("german"))
    corpus.put("We hat the die and was.")
    corpus.count()
    assert found(corpus, "Hat die Sitzung?", *BOTH) == [german]
    alone, both = (
        {h.document_id: h for h in corpus.ask("Server", languages=languages)}[german]
        for languages in (("german",), BOTH)
    )
    assert both.bm25 == pytest.approx(alone.bm25)
    assert both.overlap == pytest.approx(alone.overlap)


def test_a_stem_that_is_nowhere_takes_no_weight_from_the_stem_that_is_there(corpus: Corpus) -> None:
    """German makes `vessel` of `vessels`, too, but another stem of `boarding` that stands in no chunk."""
    english = corpus.put("Pilots board vessels.")
    corpus.count()
    one, both = (
        next(h for h in corpus.ask("pilots boarding vessels", languages=of) if h.document_id == english)
        for of in (("english",), BOTH)
    )
    assert both.overlap == pytest.approx(one.overlap)
    assert both.covered == pytest.approx(one.covered)


def test_names_and_long_texts_are_found_in_every_language(corpus: Corpus) -> None:
    named = corpus.put("Siehe HADOOP-123 und parse_config_file().", metadata=language_metadata("german"))
    corpus.count()
    for words in ("HADOOP-123", "hadoop 123", "config file"):
        assert found(corpus, words, *BOTH)[0] == named
    log = "java.io.IOException: no space left\n\tat org.apache.Foo.bar(Foo.java:12)\n" * 200
    assert isinstance(found(corpus, log + "'\\ :* & | !", *BOTH), list)
    assert found(corpus, "?!", *BOTH) == []


def test_postgresql_knows_every_language(database: Database) -> None:
    corpus = Corpus(database)
    there = {
        name: corpus.put(f"1234 {5000 + n}", metadata={LANGUAGE_KEY: name})
        for n, name in enumerate(LANGUAGES)
    }
    corpus.count()
    for n, name in enumerate(LANGUAGES):
        assert found(corpus, str(5000 + n), name) == [there[name]], name


@pytest.mark.parametrize("told", ["klingon", "", None, 7, ["german"], "german'; drop table chunk"])
def test_an_unknown_language_is_the_default_one(told: object) -> None:
    assert language_of({LANGUAGE_KEY: told}) == "english"
    assert language_of({}) == "english"
    assert language_of(language_metadata("german")) == "german"
    assert language_metadata("english") == {}
