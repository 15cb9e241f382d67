"""The statement that searches: it filters, finds candidates in both arms, scores them and reads the texts of the best.

Its text depends on the `Shape` of a search alone; all else are parameters. Only the numbers of the search index and of
its dimensions stand in the text, by which the planner knows the partition and the expression of the vector index.

**Arms.** The vector arm takes the nearest chunks, in the order of the index or by comparing all. The keyword arm takes
the best by BM25 of the chunks that hold one of the question's rarest lexemes. Each candidate of either is then scored
in both.

**BM25** is exact and needs no extension. `ts_rank('{1,1,1,1}', v, t)` of one lexeme t is (1 + 1/4 + ... + 1/tf^2) /
1.64493406685, rising to 1 as tf grows; the rest up to 1 is 1 / (1.64493406685 * (tf + 0.5)) within a twentieth, so
rounding gives back the exact count up to the 256 that a tsvector holds. k1 = 1.2, b = 0.75 (Robertson, Zaragoza 2009).
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from pipeline.search.feedback import OF_DOCUMENT
from pipeline.search.records import Filter

MOST_SHAPES = 256
"""Statements whose texts are kept."""
MOST_LEXEMES = 60
"""Rarest lexemes of a question that count; more cost time and change no ranking."""
MOST_UNLISTED = 20
"""The same for lexemes that were in no chunk when they were counted; the first ones of the question."""
EARLY = 350
"""Words at the beginning of a question, about 2,000 characters, whose lexemes go first where not all can take part: a
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
COVERED = 4.0
"""Power of the covered share of a question in `covered`: with a tenth of its weight missing, two thirds are left."""
SATURATION = 1.2
"""k1 of BM25; of titles the whole divisor, since their length says nothing about how much they say."""

ACTIVE = "(select i.id from search_index i where i.status = 'active')"


class Shape(NamedTuple):
    """What the text of a search's statement depends on."""

    number: int
    """Of the search index."""
    dimensions: int
    vector: Literal["", "all", "index"]
    """The vector arm: left out, comparing all chunks that the filter lets through, or in the order of the index."""
    keywords: bool
    """Whether there is a keyword arm."""
    near: int
    """Chunks that the vector arm takes."""
    matching: int
    """Chunks that the keyword arm takes."""
    filter: tuple[str, ...] = ()
    """Names of what the filter asks for."""


_NAMES = (
    "document_id ord version content context title source_type kind source url tags metadata project_id created_at "
    "updated_at marks similarity centroid bm25 overlap title_overlap covered score vector_part keyword_part title_part "
    "covered_part"
)
COLUMNS = tuple(_NAMES.split())
"""Of a row that `search` gives."""


@lru_cache(MOST_SHAPES)
def search(shape: Shape) -> str:
    """The best chunks with their documents and the parts of their scores, in no order, since a join may lose it.

    Parameters: those of the filter, `vector`, `question` those of `TERMS`, the weights `of_meaning`, `of_words`,
    `of_title`, `of_all`, `own` and `share`, then `least` (the similarity from which a chunk counts without a word of
    the question), `dedupe` (one chunk of a document), `top` (rows), `asked` (the question's key for feedback).

    Nothing is found unless the index is the active one.
    """
    arms = [f"near as materialized ({_near(shape)})"] if shape.vector else []
    arms += [
        f"term as materialized ({TERMS})",
        f"matching as materialized ({_matching(shape)})",
    ] * shape.keywords
    places = ["select n.place from near n"] * bool(shape.vector) + [
        "select m.place from matching m"
    ] * shape.keywords
    read = ["c.document_id", "c.ord"]
    read += [f"{_distance(shape)} as distance"] if shape.vector else []
    read += [f"{_LEXEMES} as lexemes", f"{_SATURATION} as k"] if shape.keywords else []
    return f"""
        with {", ".join(arms)},
        found as materialized (
            select {", ".join(read)} from chunk c
            where c.index_id = {shape.number} and c.ctid = any(array({" union ".join(places)}))),
        scored as materialized (
            select f.document_id, f.ord, {_similarity(shape)}, {_WORDS if shape.keywords else _NO_WORDS}),
        parts as (select s.*, %(of_meaning)s::float8 * coalesce(
                             %(own)s::float8 * s.similarity + %(share)s::float8 * s.centroid, s.similarity, 0) as v,
                         %(of_words)s::float8 * coalesce(s.overlap, 0) as k,
                         %(of_title)s::float8 * coalesce(s.title, 0) as t,
                         %(of_all)s::float8 * coalesce(s.covered, 0) as a
                  from scored s where s.bm25 > 0 or s.similarity >= %(least)s::float8),
        ranked as (select p.*, p.v + p.k + p.t + p.a as score, row_number() over (
                       partition by p.document_id order by p.v + p.k + p.t + p.a desc, p.ord) as place from parts p),
        best as (select r.* from ranked r where r.place = 1 or not %(dedupe)s
                 order by r.score desc, r.document_id, r.ord limit %(top)s)
        select c.document_id, c.ord, c.version, c.content, c.context, d.title, d.source_type, d.kind, s.name, d.url,
               d.tags, d.metadata - 'encrypted', d.project_id, d.created_at, d.updated_at,
               {OF_DOCUMENT if shape.keywords else "null"}, w.similarity,
               {"w.centroid" if shape.keywords else _centroid(shape, "w")}, w.bm25, w.overlap, w.title,
               w.covered, w.score, w.v, w.k, w.t, w.a
        from best w
        join chunk c on c.index_id = {shape.number} and c.document_id = w.document_id and c.ord = w.ord
        join document d on d.id = w.document_id
        join source s on s.id = d.source_id
        where {visible(shape.filter)} and {ACTIVE} = {shape.number}"""


# -- the question ----------------------------------------------------------------------------------

# A word has the same place in each language's vector, and none where it is a stop word: that must not become the
# rarest word of the question in a language that has no such word. A stem that no chunk has does not count either where
# another language's stem of the same word is in some.
TERMS = f"""
    select cast(quoted as tsquery) as lexeme, weight, sharp,
           row_number() over rarest = 1
               or least(sum(chunks) over rarest, cast(%(chunks)s as float8)) <= {ROWS_CAP} as chosen
    from (select chunks, times * idf as weight, times * power(idf / most, {SHARPNESS}) as sharp, unlisted, place,
                 $$'$$ || replace(replace(lexeme, $$\\$$, $$\\\\$$), $$'$$, $$''$$) || $$'$$ as quoted
          from (select u.lexeme, u.times, u.unlisted, u.chunks,
                       ln(1 + greatest(n.chunks - u.chunks + 0.5, 0.5) / (u.chunks + 0.5)) as idf,
                       ln(1 + greatest(n.chunks - 0.5, 0.5) / 1.5) as most,
                       row_number() over (partition by u.unlisted
                                          order by u.first > {EARLY}, u.chunks, u.first, u.lexeme) as place
                from (with said as (
                          select l.name, v.lexeme, v.positions, s.chunks
                          from unnest(cast(%(languages)s as text[])) as l(name)
                          cross join lateral unnest(to_tsvector(cast(l.name as regconfig), %(words)s)) as v
                          left join lexeme_stat s on s.tenant_id = %(tenant)s and s.index_id = %(index)s
                                                     and s.lexeme = v.lexeme),
                      word as (
                          select said.lexeme, said.chunks, p.place,
                                 bool_or(said.chunks is not null) over (partition by p.place) as listed,
                                 count(*) over (partition by p.place) as languages
                          from said cross join lateral unnest(said.positions) as p(place))
                      select lexeme, chunks is null as unlisted, coalesce(chunks, 1) as chunks,
                             count(distinct place) as times, min(place) as first
                      from word
                      where listed = (chunks is not null)
                        and languages >= cardinality(cast(%(languages)s as text[]))
                      group by lexeme, chunks) u
                cross join (select cast(%(chunks)s as float8) as chunks) n) w
          where place <= case when unlisted then {MOST_UNLISTED} else {MOST_LEXEMES} end) w
    window rarest as (order by chunks, quoted rows unbounded preceding)"""
"""The question's lexemes: a tsquery of each, its weight (inverse document frequency, times how often the question has
it), its sharp weight (the same to the power SHARPNESS), and whether candidates are chosen by it.

A word counts with its stem of each language that is in use. A lexeme that the last count does not list is new since
then or nowhere at all, as most words of a log are: it counts as being in one chunk.

Parameters: `words` (`documents.searchable` of the question), `languages`, `tenant`, `index`, `chunks` (of all).
"""


# -- the filter, alike in both arms and where texts are read ---------------------------------------

CONDITIONS = {
    "source_types": "d.source_type = any(%(source_types)s)",
    "kinds": "d.kind = any(%(kinds)s)",
    "tags": "d.tags @> cast(%(tags)s as text[])",
    "since": "coalesce(d.updated_at, d.created_at) >= %(since)s",
    "until": "coalesce(d.updated_at, d.created_at) < %(until)s",
    # Equal, not contained: {"path": "x"} is not {"path": "x", "more": 1}.
    "metadata": """not exists (select from jsonb_each(cast(%(metadata)s as jsonb)) m
                   where d.metadata -> m.key is distinct from m.value)""",
    # The document's: a source that changes its project takes it along at once, its chunks when they are next written.
    "projects": "d.project_id = any(%(projects)s)",
    "exclude": "not c.document_id = any(%(exclude)s)",
    "texts": """not exists (select from unnest(cast(%(keys)s as text[]), cast(%(texts)s as text[])) m(key, value)
                where (d.metadata ->> m.key = m.value or jsonb_exists(d.metadata -> m.key, m.value)) is not true)""",
    "only": "d.id = any(%(only)s)",
    # That of the text that is found and, while one of another level is on its way, that one too.
    "security_levels": """d.security_level = any(%(security_levels)s)
        and coalesce(d.served_level, d.security_level) = any(%(security_levels)s)""",
    # The same; a layer that is no list is open to nobody.
    "readers": """(d.acl = '[]' and d.served_acl is null or not exists (
        select from jsonb_array_elements(d.acl || coalesce(d.served_acl, '[]')) l
        where not (jsonb_typeof(l.value) = 'array' and jsonb_exists_any(l.value, cast(%(readers)s as text[])))))""",
    "sources": "d.source_id in (select id from source where name = any(%(sources)s))",
}
"""Part of a filter -> its condition on a chunk `c` and its document `d`."""
CHUNKS_ALONE = {"exclude"}
"""Parts that need no look at the document."""


def names_of(wanted: Filter) -> tuple[str, ...]:
    """What the filter asks for; nothing if it lets all through."""
    return tuple(name for name, value in vars(wanted).items() if value not in ((), None, {}))


def of_documents(names: tuple[str, ...]) -> tuple[str, ...]:
    """The parts that only a look at the document can tell."""
    return tuple(name for name in names if name not in CHUNKS_ALONE)


def visible(names: tuple[str, ...]) -> str:
    """A filter that asks for this, as SQL over `c` (chunk) and `d` (document)."""
    return " and ".join(["not d.hidden", "not d.deleted", *(CONDITIONS[name] for name in names)])


def values_of(wanted: Filter, names: tuple[str, ...]) -> dict[str, Any]:
    """The parameters of the conditions of these names."""
    values = {name: getattr(wanted, name) for name in names}
    for name, value in values.items():
        if isinstance(value, tuple):
            values[name] = [str(v) if isinstance(v, str) else v for v in value]
    if "texts" in values:
        values["keys"], values["texts"] = (list(part) for part in zip(*values["texts"], strict=True))
    if "metadata" in values:
        values["metadata"] = json.dumps(dict(wanted.metadata), default=str)
    return values


# -- the arms --------------------------------------------------------------------------------------


def _distance(shape: Shape) -> str:
    """The very expression that the vector index is built on."""
    return f"((c.embedding::halfvec({shape.dimensions})) <=> %(vector)s)"


def _near(shape: Shape) -> str:
    """The vector arm. What `offset 0` keeps apart no index can order, and each vector is compared once."""
    if shape.vector == "index":
        chunks = f"{_passing(shape, 'chunk')} and c.embedding is not null"
        return f"select c.ctid as place from {chunks} order by {_distance(shape)} limit {shape.near}"
    return f"""
        select x.place from (select c.ctid as place, c.document_id, c.ord, {_distance(shape)} as distance
                             from {_passing(shape, "chunk", documents_first=True)}
                                  and c.embedding is not null offset 0) x
        order by x.distance, x.document_id, x.ord limit {shape.near}"""


def _matching(shape: Shape) -> str:
    """The keyword arm."""
    return f"""
        select x.place
        from (select c.place, c.document_id, c.ord, {_LEXEMES} as lexemes, {_SATURATION} as k
              from {_passing(shape, "searchable_chunk")}
                   and c.lexemes @@ (select cast(string_agg(cast(t.lexeme as text), ' | ') as tsquery)
                                     from term t where t.chosen) offset 0) x
        cross join lateral (select sum(t.weight * (1 - x.k / ({_count("x", "{1,1,1,1}")} + x.k))) as bm25
                            from term t where x.lexemes @@ t.lexeme) b
        order by b.bm25 desc, x.document_id, x.ord limit {shape.matching}"""


def _passing(shape: Shape, rows: str, *, documents_first: bool = False) -> str:
    """Chunks `c` of `rows` that the filter lets through and that are not hidden.

    Laterals with `offset 0` are not merged: each chunk's document is looked up by its key, whatever the planner
    guesses of values that it does not know. Rows come from views where an operator shall use an index: row-level
    security keeps `@@` and `@>` out of an index scan, since they are not leakproof; a view with the same condition and
    an owner that may read all rows does not.
    """
    own = " and ".join(
        [f"c.index_id = {shape.number}", *(CONDITIONS[n] for n in shape.filter if n in CHUNKS_ALONE)]
    )
    asked = of_documents(shape.filter)
    if not asked:
        # Hidden documents are few, so they are read once. One that is both hidden and deleted has lost its chunks in
        # that moment, and all such rows are kept for ever.
        return f"""{rows} c where {own} and c.document_id <> all(array(
            select h.id from searchable_document h where h.hidden <> h.deleted))"""
    documents = f"searchable_document d where {visible(asked)}"
    if documents_first:
        return f"{rows} c where {own} and c.document_id = any(array(select d.id from {documents}))"
    return f"{rows} c cross join lateral (select from {documents} and d.id = c.document_id offset 0) d where {own}"


@lru_cache(MOST_SHAPES)
def passing_count(names: tuple[str, ...], most: int) -> str:
    """How many chunks a filter on documents lets through; of so many documents at most."""
    return f"""
        select coalesce(sum(c.chunk_count), 0)
        from (select d.chunk_count from searchable_document d where {visible(names)} limit {most}) c"""


def any_kept_back(names: tuple[str, ...]) -> str:
    """Whether a filter on documents keeps one back; it asks for something."""
    asked = " and ".join(CONDITIONS[name] for name in names)
    return f"select exists (select from document d where {visible(())} and ({asked}) is not true)"


def any_without_vectors(names: tuple[str, ...]) -> str:
    """Whether a filter on documents lets one through that is not found by meaning yet."""
    waits = "d.state = 'pending' and d.indexed_version is null"
    return f"select exists (select from document d where {waits} and {visible(names)})"


# -- the scores ------------------------------------------------------------------------------------

_LEXEMES = "case when (select count(*) from term) > 8 then c.lexemes || '' else c.lexemes end"
"""`|| ''` unpacks a compressed tsvector once, where each lexeme would do so again; the copy costs some too."""
_SATURATION = f"({SATURATION} * (0.25 + 0.75 * cast(c.length as float8) / %(mean)s::float8))"
"""k1 * (1 - b + b * length / mean) of a chunk `c`."""


def _count(of: str, weights: str) -> str:
    """How often a row holds the lexeme of term `t`, where the tsvector's weights are these."""
    return f"round(1 / (1.64493406685 * (1.0000001 - ts_rank('{weights}', {of}.lexemes, t.lexeme))) - 0.5)"


_WORDS = f"""w.bm25, 1 - {HALF} / (w.sharp + {HALF}) as overlap,
            1 - {HALF_OF_TITLE} / (w.title + {HALF_OF_TITLE}) as title,
            power(coalesce(w.weight / nullif((select sum(t.weight) from term t), 0), 0), {COVERED}) as covered
            from found f cross join lateral (
                select coalesce(2.2 * sum(h.weight * h.body), 0) as bm25, coalesce(sum(h.sharp * h.body), 0) as sharp,
                       coalesce(sum(h.sharp * h.title), 0) as title, coalesce(sum(h.weight), 0) as weight
                from (select t.weight, t.sharp, 1 - f.k / ({_count("f", "{1,1,1,1}")} + f.k) as body,
                             1 - {SATURATION} / ({_count("f", "{0,0,0,1}")} + {SATURATION}) as title
                      from term t where f.lexemes @@ t.lexeme offset 0) h) w"""
"""Scores of words. `overlap`, 0 to 1: how much of what is rare in the question the chunk says; `title`: the same of its
title and headings; `covered`: 1 if it holds all lexemes of the question, falling fast to 0 with those it lacks. None
depends on another candidate or on how large the store is."""
_NO_WORDS = """cast(null as float8) as bm25, cast(null as float8) as overlap, cast(null as float8) as title,
            cast(null as float8) as covered from found f"""


def _similarity(shape: Shape) -> str:
    """Similarity of the chunk and of its whole document in this very index, null while there is no vector.

    The distance to zeros is not a number.
    """
    if not shape.vector:
        return "cast(null as float8) as similarity, cast(null as float8) as centroid"
    # By meaning alone no score needs the document's, so it is looked up for those that come back.
    centroid = _centroid(shape, "f") if shape.keywords else "cast(null as float8)"
    return (
        f"case when f.distance = 'NaN' then 0 else 1 - f.distance end as similarity, {centroid} as centroid"
    )


def _centroid(shape: Shape, of: str) -> str:
    return f"""(select nullif(1 - (m.centroid <=> %(vector)s), 'NaN') from index_document m
             where m.index_id = {shape.number} and m.document_id = {of}.document_id)"""
