"""BM25 in PostgreSQL against the formula in plain Python, over the very lexemes that PostgreSQL has."""

from __future__ import annotations

import math
import random
import re
import time
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from pipeline.database.engine import Database
from pipeline.documents import Chunk
from pipeline.search import statement, term_statistics
from pipeline.search.question import MOST_READ
from pipeline.search.words import searchable
from tests.pipeline.stores.corpus import Corpus

WORDS = re.findall(
    r"\S+",
    """queue worker broker retry ledger cursor vector chunk fails running HADOOP-123 HADOOP-77 src/main/File3.java
    NameNodeResource the and is timeouts timeout größe 日本語 v2.1 10.0.0.1""",
)


@pytest.fixture(scope="module")
def corpus(shared_database: Database) -> Corpus:
    """A few hundred chunks of 3 to 120 words, some words far more common than others."""
    made = Corpus(shared_database)
    chance = random.Random(7)
    weights = [1 / (n + 1) for n in range(len(WORDS))]
    stock = []
    for n in range(60):
        texts = [
            " ".join([*chance.choices(WORDS, weights, k=chance.randint(3, 120)), f"only{n}x{m}"])
            for m in range(chance.randint(1, 9))
        ]
        context = f"Report {n} > {chance.choice(WORDS)}"
        stock.append(
            (made.document(), [Chunk(ord=m, content=t, context=context) for m, t in enumerate(texts)])
        )
    made.put_all(stock)
    made.count()
    return made


def expected(corpus: Corpus, question: str, *, title: bool = False) -> dict[tuple[UUID, int], float]:
    """BM25 by the book: k1 1.2, b 0.75, terms that the question repeats counted as often."""
    rows = corpus.sql("""
        select document_id, ord, length,
               (select json_object_agg(lexeme, cardinality(positions)) from unnest(lexemes)) as all_of,
               (select coalesce(json_object_agg(lexeme, (select count(*) from unnest(weights) w where w = 'A')), '{}')
                from unnest(lexemes)) as titled
        from chunk""")
    asked = {
        row.lexeme: row.n
        for row in corpus.sql(
            "select lexeme, cardinality(positions) as n from unnest(to_tsvector('english', :words))",
            words=searchable(question),
        )
    }
    total, mean = len(rows), sum(row.length for row in rows) / len(rows)
    having = Counter(lexeme for row in rows for lexeme in row.all_of)
    scores = {}
    for row in rows:
        counts = row.titled if title else row.all_of
        k = 1.2 if title else 1.2 * (0.25 + 0.75 * row.length / mean)
        scores[row.document_id, row.ord] = sum(
            n
            * math.log(1 + (total - having[lexeme] + 0.5) / (having[lexeme] + 0.5))
            * (counts[lexeme] * 2.2 / (counts[lexeme] + k))
            for lexeme, n in asked.items()
            if counts.get(lexeme)
        )
    return scores


QUESTIONS = [
    "queue",
    "why is the worker running into timeouts?",
    "queue queue queue broker",
    "HADOOP-123",
    "HADOOP",
    "File3",
    "NameNodeResource fails at src/main/File3.java",
    "Resource",
    "GRÖSSE größe 日本語",
    "10.0.0.1 v2.1",
    "only3x0 queue",
    " ".join(WORDS),
    "Report 7",
]


@pytest.mark.req("001-093")
@pytest.mark.parametrize("question", QUESTIONS)
def test_scores_are_bm25_by_the_book(corpus: Corpus, question: str) -> None:
    book = expected(corpus, question)
    found = corpus.ask(question, candidates=1000)
    assert found
    assert {(c.document.id, c.chunk.ord) for c in found} <= {place for place, score in book.items() if score}
    for candidate in found:
        assert candidate.bm25 == pytest.approx(book[candidate.document.id, candidate.chunk.ord], rel=1e-3)
    best = sorted(book.values(), reverse=True)[: len(found)]
    assert [c.bm25 for c in sorted(found, key=lambda c: -(c.bm25 or 0))] == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("question", ["queue", "7 worker", "NameNodeResource"])
def test_title_scores_count_titles_and_headings_only(corpus: Corpus, question: str) -> None:
    book = expected(corpus, question, title=True)
    found = corpus.ask(question, candidates=1000)
    in_title = {(c.document.id, c.chunk.ord): (c.title or 0.0) > 0.0 for c in found}
    assert in_title == {place: book[place] > 1e-6 for place in in_title}
    assert set(in_title.values()) == {True, False}
    assert all(0.0 <= (c.title or 0.0) < 1.0 + 1e-9 for c in found)


def test_a_word_that_stands_250_times_is_counted_to_the_last(shared_database: Database) -> None:
    """The rank of one lexeme comes so near to 1 that only rounding tells 250 from 249."""
    corpus = Corpus(shared_database)
    for count in (1, 2, 3, 50, 249, 250):
        corpus.put(*["kestrel " * count + "otter " * (250 - count)])
    corpus.count()
    book = expected(corpus, "kestrel")
    found = corpus.ask("kestrel")
    assert len(found) == 6
    for candidate in found:
        assert candidate.bm25 == pytest.approx(book[candidate.document.id, candidate.chunk.ord], rel=1e-3)
    assert found[0].chunk.content.count("kestrel") == 250


# --- which lexemes take part ---


def terms(corpus: Corpus, question: str, *, chunks: float = 300) -> list[Any]:
    """Rows of (lexeme, weight, sharp, chosen), rarest first, as the statement makes them; of so many chunks."""
    given = {"words": searchable(question), "languages": ["english"], "tenant": corpus.tenant}
    given |= {"index": corpus.index.id, "chunks": chunks}
    columns = "cast(t.lexeme as text), t.weight, t.sharp, t.chosen"
    return corpus.database.fetch(corpus.tenant, f"select {columns} from ({statement.TERMS}) t", given)


def test_rare_lexemes_choose_the_candidates_and_all_count(shared_database: Database) -> None:
    corpus = Corpus(shared_database)

    def choosing(chunks: float, **counts: int) -> list[str]:
        corpus.lexemes.clear()
        for lexeme, n in counts.items():
            corpus.lexemes.add(tenant_id=corpus.tenant, index_id=corpus.index.id, lexeme=lexeme, chunks=n)
        found = terms(corpus, " ".join(counts), chunks=chunks)
        assert len(found) == len(counts)
        return [lexeme.strip("'") for lexeme, _, _, chosen in found if chosen]

    assert choosing(10_000, k700=700, k1=1, k599=599, k400=400) == ["k1", "k400", "k599"]
    assert choosing(900, k700=700, k1=1, k599=599, k400=400) == ["k1", "k400", "k599", "k700"]
    assert choosing(10_000, k9001=9001, k9000=9000) == ["k9000"], "one lexeme always chooses, however common"


def test_words_that_are_nowhere_do_not_crowd_out_those_that_are(corpus: Corpus) -> None:
    log = " ".join(f"zz{n}qq" for n in range(500))
    found = corpus.ask(f"{log} only3x0")
    assert [c.chunk.content.split()[-1] for c in found] == ["only3x0"]


def test_words_that_came_after_the_count_are_found(shared_database: Database) -> None:
    corpus = Corpus(shared_database)
    corpus.put("kestrel")
    corpus.count()
    corpus.put("otter kestrel")
    assert [c.chunk.content for c in corpus.ask("otter")] == ["otter kestrel"]


def test_long_questions_keep_their_rarest_lexemes(corpus: Corpus) -> None:
    rare = " ".join(f"only{n}x0" for n in range(60))
    found = terms(corpus, f"queue worker {rare}")
    assert len(found) == statement.MOST_LEXEMES
    assert all(lexeme.startswith("'only") for lexeme, *_ in found)


def test_so_many_lexemes_that_are_nowhere_take_part_the_first_of_the_question(corpus: Corpus) -> None:
    found = terms(corpus, " ".join(f"zz{n}qq" for n in range(100)) + " queue")
    unlisted = sorted(lexeme for lexeme, *_ in found if lexeme.startswith("'zz"))
    assert unlisted == sorted(f"'zz{n}qq'" for n in range(statement.MOST_UNLISTED))


def test_what_stands_early_goes_first_where_not_all_can_take_part(corpus: Corpus) -> None:
    late = " ".join(f"only{n}x0" for n in range(60))
    found = {lexeme for lexeme, *_ in terms(corpus, f"queue worker {'zz ' * statement.EARLY} {late}")}
    assert {"'queue'", "'worker'"} <= found
    assert len(found) == statement.MOST_LEXEMES + 1


@pytest.mark.parametrize("words", [3_000, 6_000])
def test_a_question_of_a_whole_log_is_weighed_in_no_time(corpus: Corpus, words: int) -> None:
    begun = time.monotonic()
    assert terms(corpus, " ".join(f"w{n % 900} HADOOP-{n}" for n in range(words)))
    assert time.monotonic() - begun < 2


def test_a_question_is_read_up_to_its_limit(corpus: Corpus) -> None:
    assert corpus.ask("zz " * (MOST_READ // 3 + 1) + "queue") == []


@pytest.mark.parametrize(
    "question",
    [
        "",
        "   ",
        "the and is of",
        "' \\ & | ! : * <-> ( ) \" % ; --",
        "it's a 'quoted\\' word:* & !not <-> x'''",
        "\x00",
        "\N{PARTY POPPER}" * 50,
        "x" * 5_000,
        'Traceback (most recent call last):\n  File "/srv/a/b.py", line 3, in f\n' * 130,
        "INFO 2025-01-01T00:00:00,123 [ipc-7] o.a.h.Server: call 0xdeadbeef & retry | 'x' \\n\n" * 110,
        "".join(chr(n) for n in range(1, 0x3000) if not 0xD800 <= n < 0xE000),
    ],
    ids=["empty", "blank", "stop", "marks", "quotes", "nul", "emoji", "long-word", "trace", "log", "unicode"],
)
def test_no_question_raises(corpus: Corpus, question: str) -> None:
    for candidate in corpus.ask(question):
        assert candidate.bm25 is not None
        assert candidate.bm25 > 0


def test_quotes_and_backslashes_in_lexemes_are_literal(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No text makes such a lexeme today; the parser of a later PostgreSQL might."""
    made = "to_tsvector(cast(l.name as regconfig), %(words)s)"
    assert made in statement.TERMS
    odd = statement.TERMS.replace(made, r"cast($x$'a''b\\c':1 'd & e':2$x$ as tsvector)")
    monkeypatch.setattr(statement, "TERMS", odd)
    assert {lexeme for lexeme, *_ in terms(corpus, "any")} == {r"'a''b\\c'", "'d & e'"}


# --- statistics ---


def counts(corpus: Corpus) -> dict[str, int]:
    return dict(corpus.lexemes.values("lexeme", "chunks", index_id=corpus.index.id))


def test_counting_follows_what_is_stored(shared_database: Database) -> None:
    corpus = Corpus(shared_database)
    first = corpus.put("kestrel otter", "kestrel")
    corpus.count()
    assert counts(corpus) == {"kestrel": 2, "otter": 1}
    corpus.put("otter badger")
    corpus.chunks.clear({"document_id": first, "ord": 1})
    corpus.count()
    assert counts(corpus) == {"kestrel": 1, "otter": 2, "badger": 1}
    corpus.chunks.clear()
    corpus.count()
    assert counts(corpus) == {}
    assert corpus.statistics.values("chunks") == [0]


def test_counting_writes_only_what_changed(shared_database: Database) -> None:
    corpus = Corpus(shared_database)
    corpus.put("kestrel otter")
    corpus.count()
    before = {r.lexeme: r.xmin for r in corpus.sql("select lexeme, xmin from lexeme_stat")}
    corpus.put("kestrel")
    corpus.count()
    after = {r.lexeme: r.xmin for r in corpus.sql("select lexeme, xmin from lexeme_stat")}
    assert before["otter"] == after["otter"]
    assert before["kestrel"] != after["kestrel"]


def test_the_first_count_is_made_on_demand_and_only_once(shared_database: Database) -> None:
    corpus = Corpus(shared_database)

    def ensure() -> None:
        with corpus.database.tenant(corpus.tenant) as connection:
            term_statistics.ensure(connection, corpus.tenant, corpus.index.id)

    ensure()
    corpus.put("kestrel")
    ensure()
    assert counts(corpus) == {"kestrel": 1}
    corpus.put("kestrel otter")
    ensure()
    assert counts(corpus) == {"kestrel": 1}, "upkeep counts again, a search does not"


def test_each_tenant_has_its_own_counts(shared_database: Database) -> None:
    one, other = Corpus(shared_database), Corpus(shared_database)
    one.put("kestrel")
    other.put("kestrel", "kestrel otter")
    one.count()
    other.count()
    assert counts(one) == {"kestrel": 1}
    assert counts(other) == {"kestrel": 2, "otter": 1}


# --- words in common ---


@pytest.mark.req("001-093")
def test_a_word_of_one_chunk_counts_more_than_all_common_ones_together(corpus: Corpus) -> None:
    found = {c.chunk.content.split()[-1]: c.overlap or 0.0 for c in corpus.ask("only12x0 queue worker")}
    others = [share for name, share in found.items() if name != "only12x0"]
    assert others
    assert 0.35 < found["only12x0"] < 1
    assert max(others) < found["only12x0"] / 2


def test_the_sharp_weight_is_1_for_a_lexeme_of_one_chunk_and_falls_fast(corpus: Corpus) -> None:
    total = len(corpus.chunks())
    (_, _, rare, _), *_, (_, weight, common, _) = terms(corpus, "only12x0 queue", chunks=total)
    assert rare == pytest.approx(1.0)
    most = math.log(1 + (total - 0.5) / 1.5)
    assert common == pytest.approx((weight / most) ** statement.SHARPNESS)
    assert common < weight / most
