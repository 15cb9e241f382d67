"""Exact BM25 as SQL over a tsvector, without an extension.

`ts_rank('{1,1,1,1}', v, t)` of one lexeme t is (1 + 1/4 + ... + 1/tf^2) / 1.64493406685, rising to 1 as tf grows; the
rest up to 1 is 1 / (1.64493406685 * (tf + 0.5)) within a twentieth, so rounding gives back the exact count up to
the 256 that a tsvector holds. k1 = 1.2, b = 0.75 (Robertson and Zaragoza 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pipeline.languages import DEFAULT, LANGUAGES
from pipeline.lexemes import searchable

MOST_LEXEMES = 60
"""Rarest lexemes of a query that count; more cost time and change no ranking."""
MOST_UNLISTED = 20
"""The same for lexemes that were in no chunk when they were counted; the first ones of the query."""
MOST_CHARACTERS = 20_000
"""Of a query; what lies beyond is not read."""
ROWS_CAP = 1000
"""The rarest lexemes choose candidates until about this many rows match; all lexemes count in their scores."""

RARE_CHUNKS = 3
"""A lexeme in at most this many chunks names one thing: an id, an error code, a word of one page."""
RARE_SHARE = 0.006
"""... and in at most this share of all chunks: among a hundred chunks most words are in three."""

MOST_COVERED = 15
"""Of a question with more lexemes than this, which is a text and not a question, no chunk holds much anyway."""

BODY = "{1,1,1,1}"
"""Weights that count a lexeme wherever it stands."""
TITLE = "{0,0,0,1}"
"""Weights that count it in title and headings only."""
_SATURATION = 1.2


@dataclass(frozen=True, kw_only=True)
class Term:
    """A lexeme of a question."""

    lexeme: str
    weight: float
    """Inverse document frequency, times how often the question has it."""
    chunks: int
    """How many chunks hold it, as of the last count."""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What BM25 must know of all chunks, as of the last count; zeros before the first."""

    chunks: int = 0
    mean_length: float = 0.0


_WEIGH = """
    select w.lexeme, w.chunks, w.times * ln(1 + (greatest(%(total)s - w.chunks, 0) + 0.5) / (w.chunks + 0.5)) as weight
    from (select u.lexeme, s.lexeme is null as unlisted, coalesce(cardinality(u.positions), 1) as times,
                 coalesce(s.chunks, 1) as chunks,
                 row_number() over (partition by s.lexeme is null
                                    order by coalesce(s.chunks, 1), u.positions[1], u.lexeme) as place
          from {lexemes} as u
          left join lexeme_stat s on s.tenant_id = %(tenant)s and s.index_id = %(index)s and s.lexeme = u.lexeme) w
    where w.place <= case when w.unlisted then cast(%(most_unlisted)s as bigint) else %(most)s end
    order by w.chunks, w.lexeme"""

_ONE_LANGUAGE = "unnest(to_tsvector('{language}', %(words)s))"
# A word has the same place in each language's vector, and none where it is a stop word: that must not become the
# rarest word of the question in a language that has no such word. A stem that no chunk has does not count either where
# another language's stem of the same word is in some.
_SEVERAL_LANGUAGES = """
    (with said as (select l.name, v.lexeme, p.place, s.lexeme is not null as listed
                   from unnest(cast(%(languages)s as text[])) as l(name),
                        unnest(to_tsvector(cast(l.name as regconfig), %(words)s)) as v
                        cross join lateral unnest(v.positions) as p(place)
                        left join lexeme_stat s
                          on s.tenant_id = %(tenant)s and s.index_id = %(index)s and s.lexeme = v.lexeme),
          words as (select place, bool_or(listed) as listed from said
                    group by place having count(distinct name) = cardinality(cast(%(languages)s as text[])))
     select said.lexeme, array_agg(distinct said.place order by said.place) as positions
     from said join words on words.place = said.place and words.listed = said.listed
     group by said.lexeme)"""


def weigh(
    ask: Callable[..., Sequence[tuple[Any, ...]]],
    index: int,
    tenant_id: UUID,
    question: str,
    counted: Statistics,
    languages: Sequence[str] = (DEFAULT,),
) -> list[Term]:
    """The question's lexemes, rarest first; a word counts with its stem of each language that is in use.

    One that the last count does not list is new since then or nowhere at all, as most words of a log are: it
    counts as being in one chunk, and there is a limit to how many of them take part.
    """
    known = [name for name in languages if name in LANGUAGES] or [DEFAULT]
    lexemes = _SEVERAL_LANGUAGES if len(known) > 1 else _ONE_LANGUAGE.format(language=known[0])
    rows = ask(
        _WEIGH.format(lexemes=lexemes),
        {
            **({"languages": known} if len(known) > 1 else {}),
            "words": searchable(question[:MOST_CHARACTERS]),
            "index": index,
            "tenant": tenant_id,
            "total": counted.chunks,
            "most": MOST_LEXEMES,
            "most_unlisted": MOST_UNLISTED,
        },
        one_plan=True,
    )
    return [Term(lexeme=lexeme, weight=float(weight), chunks=chunks) for lexeme, chunks, weight in rows]


def selector(terms: list[Term], counted: Statistics) -> str:
    """A tsquery that candidates match: any of the rarest lexemes, as many as the cap allows; all in a small store."""
    chosen: list[str] = []
    rows = 0
    for term in terms:
        rows += term.chunks
        if chosen and min(rows, counted.chunks) > ROWS_CAP:
            break
        chosen.append(_quoted(term.lexeme))
    return " | ".join(chosen)


def ranks(terms: int, lexemes: str, where: str = BODY) -> list[str]:
    """Of each term its `ts_rank` in a tsvector, as SQL expressions; their parameters are those of `values`."""
    return [f"ts_rank('{where}', {lexemes}, %(q{n})s::tsquery)" for n in range(terms)]


def score(ranks: Sequence[str], *, k: str) -> str:
    """The BM25 of one row as an SQL expression of its ranks; its parameters are those of `values`.

    `k` names the saturation for the row's length (`saturation`). Each term's part, w * 2.2 * tf / (tf + k), is
    written as w * 2.2 * (1 - k / (tf + k)), which is 0 for an absent one. One expression per term and no join:
    half the time of a subquery over a table of terms.
    """
    parts = [
        f"%(w{n})s::float8 / (round(1 / (1.64493406685 * (1.0000001 - {rank})) - 0.5) + {k})"
        for n, rank in enumerate(ranks)
    ]
    return f"greatest(2.2 * (%(total)s::float8 - {k} * ({' + '.join(parts)})), 0)"


def rare_share(ranks: Sequence[str]) -> str:
    """The share of the question's weight in rare lexemes that this row holds, 0 to 1, as an SQL expression.

    Its parameters are those of `values`.
    """
    return _share(f"{rank} > 0 and {n} < %(rare)s::integer" for n, rank in enumerate(ranks))


def covered_share(ranks: Sequence[str]) -> str:
    """The share of the question's weight in lexemes that this row holds, 0 to 1, as an SQL expression.

    Null for a question of more than MOST_COVERED lexemes; its parameters are those of `values`.
    """
    if len(ranks) > MOST_COVERED:
        return "cast(null as float8)"
    return _share(f"{rank} > 0" for rank in ranks)


def _share(held: Iterable[str]) -> str:
    """The share of the weight of those terms of which this is true."""
    parts = (f"case when {this} then %(w{n})s::float8 else 0 end" for n, this in enumerate(held))
    return f"({' + '.join(parts)}) / nullif(%(total)s::float8, 0)"


def saturation(length: str) -> str:
    """k1 * (1 - b + b * length / mean) of a row whose length stands in this column."""
    return f"({_SATURATION} * (0.25 + 0.75 * cast({length} as float8) / %(mean)s::float8))"


FLAT_SATURATION = str(_SATURATION)
"""For titles, whose length says nothing about how much they say."""


def rare(terms: Sequence[Term], counted: Statistics) -> int:
    """How many of the terms are rare; they stand first."""
    return sum(term.chunks <= min(RARE_CHUNKS, RARE_SHARE * counted.chunks) for term in terms)


def values(terms: list[Term], counted: Statistics) -> Mapping[str, Any]:
    """The parameters of a search for these terms, rarest first: those of its scores, and `any_of`, the selector."""
    found: dict[str, Any] = {
        "mean": max(counted.mean_length, 1.0),
        "total": sum(t.weight for t in terms),
        "rare": rare(terms, counted),
        "any_of": selector(terms, counted),
    }
    for n, term in enumerate(terms):
        found[f"q{n}"] = _quoted(term.lexeme)
        found[f"w{n}"] = term.weight
    return found


def _quoted(lexeme: str) -> str:
    """A lexeme as a literal of tsquery."""
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"
