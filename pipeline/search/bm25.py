"""Exact BM25 as SQL over a tsvector, without an extension.

`ts_rank('{1,1,1,1}', v, t)` of one lexeme t is (1 + 1/4 + ... + 1/tf^2) / 1.64493406685, rising to 1 as tf grows; the
rest up to 1 is 1 / (1.64493406685 * (tf + 0.5)) within a twentieth, so rounding gives back the exact count up to
the 256 that a tsvector holds. k1 = 1.2, b = 0.75 (Robertson and Zaragoza 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, NamedTuple
from uuid import UUID

from pipeline.languages import DEFAULT, LANGUAGES
from pipeline.search.lexemes import searchable

MOST_LEXEMES = 60
"""Rarest lexemes of a query that count; more cost time and change no ranking."""
MOST_UNLISTED = 20
"""The same for lexemes that were in no chunk when they were counted; the first ones of the query."""
MOST_CHARACTERS = 20_000
"""Of a query; what lies beyond is not read."""
EARLY = 350
"""Words at the beginning of a query, about 2,000 characters, whose lexemes go first where not all can take part: a
work item as a question says early what it is about, and ends in logs (docs/search.md)."""
ROWS_CAP = 1000
"""The rarest lexemes choose candidates until about this many rows match; all lexemes count in their scores."""

SHARPNESS = 4.0
"""Power of a lexeme's inverse document frequency, as a share of the greatest there can be, in `overlap`.

A lexeme in a single chunk counts 1, one in a hundredth of 10,000 chunks .07, an everyday word nothing.
"""
HALF = 1.25
"""Sum of shared lexemes at which `overlap` is a half: a little more than one lexeme that names one thing only."""
HALF_OF_TITLE = 0.4
"""The same for title and headings, which are short."""
COVERED = 6.0
"""Power of the covered share of a question in `covered`: with a tenth of its weight missing, half is left."""

MOST_HERE = 24
"""Lexemes of a question that the searching statement weighs itself; for more, that would cost more than it saves."""
LITTLE = frozenset(
    word
    for line in (
        "a an and are as at be by do does for from how i in is it",
        "no not of on or the this to was what",
    )
    for word in line.split()
)
"""Some stop words of English; that a question has them makes no room for lexemes."""

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
    sharp: float
    """The same with the inverse document frequency as a share of the greatest, to the power SHARPNESS."""
    chunks: int
    """How many chunks hold it, as of the last count."""


class Terms(NamedTuple):
    """The lexemes of a question as a statement names them, rarest first: columns of `question`, or parameters."""

    most: int = 0
    """How many there are; at most, if the statement weighs them itself."""
    here: bool = False
    """The statement weighs them itself, in its relation `question`, which is `weighed_here`."""

    def lexeme(self, n: int) -> str:
        """A tsquery of one lexeme."""
        return f"question.q{n}" if self.here else f"%(q{n})s::tsquery"

    def weight(self, n: int) -> str:
        """Its weight."""
        return f"question.w{n}" if self.here else f"%(w{n})s::float8"

    def sharp(self, n: int) -> str:
        """Its weight in `overlap`."""
        return f"question.s{n}" if self.here else f"%(s{n})s::float8"

    @property
    def total(self) -> str:
        """The weight of all."""
        return "question.total" if self.here else "%(total)s::float8"

    @property
    def any_of(self) -> str:
        """A tsquery that candidates match."""
        return "(select any_of from question)" if self.here else "cast(%(any_of)s as tsquery)"

    @property
    def joined(self) -> str:
        """What follows a relation whose rows are scored."""
        return "cross join question" if self.here else ""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What BM25 must know of all chunks, as of the last count; zeros before the first."""

    chunks: int = 0
    mean_length: float = 0.0


_WEIGH = f"""
    select w.lexeme, w.chunks, w.times * w.idf as weight, w.times * power(w.idf / w.most, {SHARPNESS}) as sharp
    from (select u.lexeme, s.lexeme is null as unlisted, coalesce(cardinality(u.positions), 1) as times,
                 coalesce(s.chunks, 1) as chunks,
                 ln(1 + greatest(n.chunks - coalesce(s.chunks, 1) + 0.5, 0.5) / (coalesce(s.chunks, 1) + 0.5)) as idf,
                 ln(1 + greatest(n.chunks - 0.5, 0.5) / 1.5) as most,
                 row_number() over (partition by s.lexeme is null
                                    order by u.positions[1] > {EARLY}, coalesce(s.chunks, 1), u.positions[1],
                                             u.lexeme) as place
          from {{lexemes}} as u cross join (select cast(%(all_chunks)s as float8) as chunks) n
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
    known = _known(languages)
    lexemes = _SEVERAL_LANGUAGES if len(known) > 1 else _ONE_LANGUAGE.format(language=known[0])
    given = {
        **({"languages": known} if len(known) > 1 else {}),
        **_given(index, tenant_id, question, counted),
    }
    rows = ask(_WEIGH.format(lexemes=lexemes), given, one_plan=True)
    return [
        Term(lexeme=lexeme, weight=weight, sharp=sharp, chunks=chunks)
        for lexeme, chunks, weight, sharp in rows
    ]


def _known(languages: Sequence[str]) -> list[str]:
    return [name for name in languages if name in LANGUAGES] or [DEFAULT]


def _given(index: int, tenant_id: UUID, question: str, counted: Statistics) -> dict[str, Any]:
    return {
        "words": searchable(question[:MOST_CHARACTERS]),
        "index": index,
        "tenant": tenant_id,
        "all_chunks": counted.chunks,
        "most": MOST_LEXEMES,
        "most_unlisted": MOST_UNLISTED,
    }


_HERE = r"""
    select t.count, t.any_of, t.total, {columns}
    from (select count(*) as count, coalesce(sum(weight order by chunks, lexeme), 0) as total,
                 cast(string_agg(quoted, ' | ' order by chunks, lexeme)
                      filter (where place = 1 or least(rows, %(all_chunks)s) <= {cap}) as tsquery) as any_of,
                 array_agg(cast(quoted as tsquery) order by chunks, lexeme) as lexemes,
                 array_agg(weight order by chunks, lexeme) as weights,
                 array_agg(sharp order by chunks, lexeme) as sharps
          from (select lexeme, chunks, weight, sharp, row_number() over rarest as place,
                       sum(chunks) over rarest as rows,
                       $$'$$ || replace(replace(lexeme, $$\$$, $$\\$$), $$'$$, $$''$$) || $$'$$ as quoted
                from ({weigh}) w window rarest as (order by chunks, lexeme rows unbounded preceding)) w) t"""


def weighed_here(terms: Terms, language: str) -> str:
    """One row with what `Terms` names, as `weigh` and `values` make it; `count` is how many lexemes there are.

    Lexemes that are not there are empty and weigh nothing. The parameters are those of `given_here`.
    """
    columns = ", ".join(
        f"coalesce(t.lexemes[{n + 1}], '') as q{n}, coalesce(t.weights[{n + 1}], 0) as w{n},"
        f" coalesce(t.sharps[{n + 1}], 0) as s{n}"
        for n in range(terms.most)
    )
    return _HERE.format(
        columns=columns,
        cap=ROWS_CAP,
        weigh=_WEIGH.format(lexemes=_ONE_LANGUAGE.format(language=language)),
    )


def given_here(
    index: int, tenant_id: UUID, question: str, counted: Statistics, languages: Sequence[str]
) -> tuple[Terms, str, dict[str, Any]] | None:
    """How many lexemes a short question has at most, its language, and the parameters of `weighed_here`.

    None for a long one, or one in several languages. It has more than that if a word falls into several lexemes.
    """
    known = _known(languages)
    given = _given(index, tenant_id, question, counted)
    words = set(given["words"].lower().split()) - (LITTLE if known == ["english"] else frozenset())
    if len(known) > 1 or not 0 < len(words) <= MOST_HERE:
        return None
    return Terms(len(words), here=True), known[0], {**given, "mean": _mean(counted)}


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


def ranks(terms: Terms, lexemes: str, where: str = BODY) -> list[str]:
    """Of each term its `ts_rank` in a tsvector, as SQL expressions."""
    return [f"ts_rank('{where}', {lexemes}, {terms.lexeme(n)})" for n in range(terms.most)]


def score(terms: Terms, ranks: Sequence[str], *, k: str) -> str:
    """The BM25 of one row as an SQL expression of its ranks.

    `k` names the saturation for the row's length (`saturation`). Each term's part, w * 2.2 * tf / (tf + k), is
    written as w * 2.2 * (1 - k / (tf + k)), which is 0 for an absent one. One expression per term and no join:
    half the time of a subquery over a table of terms.
    """
    parts = [
        f"{terms.weight(n)} / (round(1 / (1.64493406685 * (1.0000001 - {rank})) - 0.5) + {k})"
        for n, rank in enumerate(ranks)
    ]
    return f"greatest(2.2 * ({terms.total} - {k} * ({' + '.join(parts)})), 0)"


def overlap(terms: Terms, ranks: Sequence[str], *, k: str, half: float) -> str:
    """How much of what is rare in the question a row says, 0 to 1, as an SQL expression of its ranks.

    The sum x of the terms' sharp weights, each times tf / (tf + k) as in `score`, brought to x / (x + half): no
    candidate's overlap depends on another's, nor on how large the store is.
    """
    parts = [f"{terms.sharp(n)} * {_saturated(rank, k)}" for n, rank in enumerate(ranks)]
    return f"1 - {half} / ({' + '.join(parts)} + {half})"


def covered(terms: Terms, ranks: Sequence[str]) -> str:
    """1 for a row that holds all lexemes of the question, falling fast to 0 with those that it lacks, as SQL.

    The share of the question's weight in lexemes of this row, to the power COVERED: a phrase lifted from a text finds
    it again, and a long text as a question is covered by none but its copy.
    """
    parts = (f"case when {rank} > 0 then {terms.weight(n)} else 0 end" for n, rank in enumerate(ranks))
    return f"power(coalesce(({' + '.join(parts)}) / nullif({terms.total}, 0), 0), {COVERED})"


def _saturated(rank: str, k: str) -> str:
    """Tf / (tf + k) of a term with this `ts_rank`; 0 for an absent one."""
    return f"(1 - {k} / (round(1 / (1.64493406685 * (1.0000001 - {rank})) - 0.5) + {k}))"


def saturation(length: str) -> str:
    """k1 * (1 - b + b * length / mean) of a row whose length stands in this column."""
    return f"({_SATURATION} * (0.25 + 0.75 * cast({length} as float8) / %(mean)s::float8))"


FLAT_SATURATION = str(_SATURATION)
"""For titles, whose length says nothing about how much they say."""


def values(terms: list[Term], counted: Statistics) -> Mapping[str, Any]:
    """The parameters of a search for these terms, rarest first: those of its scores, and `any_of`, the selector."""
    found: dict[str, Any] = {
        "mean": _mean(counted),
        "total": reduce(
            add, (t.weight for t in terms), 0.0
        ),  # one by one, as the server does; `sum` may be closer
        "any_of": selector(terms, counted),
    }
    for n, term in enumerate(terms):
        found[f"q{n}"] = _quoted(term.lexeme)
        found[f"w{n}"] = term.weight
        found[f"s{n}"] = term.sharp
    return found


def _mean(counted: Statistics) -> float:
    return max(counted.mean_length, 1.0)


def _quoted(lexeme: str) -> str:
    """A lexeme as a literal of tsquery."""
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"
