"""The search statement: it filters, selects candidates in both arms, scores them and reads the texts of the best.

Its text depends only on the `Shape` of a search; everything else is a parameter. The number of the search index and
its dimensions are part of the text, so that the planner knows the partition and the expression of the vector index.

**Arms.** The vector arm takes the nearest chunks, by an index scan or by comparing all. The keyword arm takes the best
by BM25 of the chunks that have one of the query's rarest lexemes. Each candidate of either arm is then scored in both.

**BM25** is exact and needs no extension. `ts_rank('{1,1,1,1}', v, t)` of one lexeme t is (1 + 1/4 + ... + 1/tf^2) /
1.64493406685, rising to 1 as tf grows; the rest up to 1 is 1 / (1.64493406685 * (tf + 0.5)) within a twentieth, so
rounding gives back the exact count up to the 256 that a tsvector holds. k1 = 1.2, b = 0.75 (Robertson, Zaragoza 2009).
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from pipeline.documents.plain_text import json_scalar
from pipeline.ledger import ALL, storable
from pipeline.search.feedback import OF_DOCUMENT
from pipeline.search.records import Filter

MOST_SHAPES = 256
"""Most statement texts in the cache."""
MOST_LEXEMES = 60
"""Most lexemes of a query that count, the rarest first; more cost time and change no ranking."""
MOST_UNLISTED = 20
"""Most lexemes of a query that were in no chunk at the last count, the first of the query first."""
EARLY = 350
"""Words at the beginning of a query, about 2,000 characters, whose lexemes are preferred if there are too many: a
backlog item names its topic early and ends in logs (docs/search.md)."""
ROWS_CAP = 1000
"""Rows that the rarest lexemes select as candidates, approximately; all lexemes count in the scores."""
SHARPNESS = 4.0
"""Power of a lexeme's inverse document frequency, relative to the greatest possible one, in `overlap`.

A lexeme in a single chunk counts 1, one in a hundredth of 10,000 chunks .07, an everyday word about 0.
"""
HALF = 1.25
"""Sum of shared lexemes at which `overlap` is one half: a little more than one lexeme in a single chunk."""
HALF_OF_TITLE = 0.4
"""Sum of shared lexemes at which `title` is one half; title and headings are short."""
COVERED = 4.0
"""Power of the covered share of a question in `covered`: with a tenth of its weight missing, two thirds are left."""
SATURATION = 1.2
"""k1 of BM25; for titles the whole divisor, since their length does not matter."""

BITS_OVERSAMPLED = 4
"""Chunks taken from a vector index of bits for each that is wanted, and compared by their whole vectors."""

ACTIVE = "(select i.id from search_index i where i.status = 'active')"


class Shape(NamedTuple):
    """Properties of a search that determine the text of its statement."""

    number: int
    """Number (id) of the search index."""
    dimensions: int
    vector: Literal["", "all", "index", "bits", "given"]
    """Kind of vector arm: none, a comparison of all chunks that pass the filter, an index scan, one of an index of bits
    with a comparison of what it names, or a comparison of the chunks that a vector store names (parameters
    `near_documents` and `near_ords`)."""
    keywords: bool
    """Whether there is a keyword arm."""
    near: int
    """Chunks that the vector arm takes."""
    matching: int
    """Chunks that the keyword arm takes."""
    filter: tuple[str, ...] = ()
    """Names of the filter's conditions."""


_NAMES = (
    "document_id ord version content context title source_type kind source url tags metadata project_id created_at "
    "updated_at marks similarity centroid bm25 overlap title_overlap covered score vector_part keyword_part title_part "
    "covered_part"
)
COLUMNS = tuple(_NAMES.split())
"""Columns of the rows of `search`."""


@lru_cache(MOST_SHAPES)
def search(shape: Shape) -> str:
    """SQL for the best chunks with documents and parts of their scores, unordered, since the joins may lose an order.

    Parameters: those of the filter and of `TERMS`, `vector`, the weights `meaning_weight`, `keyword_weight`,
    `title_weight`, `covered_weight`, `chunk_share` and `document_share`, then `least` (minimum similarity of chunks
    without keyword matches), `dedupe` (one chunk per document), `top` (rows), `query_key` (for feedback).

    There are no rows unless the index is the active one.
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
        candidate as materialized (
            select {", ".join(read)} from chunk c
            where c.index_id = {shape.number} and c.ctid = any(array({" union ".join(places)}))),
        scored as materialized (
            select f.document_id, f.ord, {_similarity(shape)}, {_WORDS if shape.keywords else _NO_WORDS}),
        parts as (select s.*, %(meaning_weight)s::float8 * coalesce(
                             %(chunk_share)s::float8 * s.similarity
                             + %(document_share)s::float8 * s.centroid, s.similarity, 0) as v,
                         %(keyword_weight)s::float8 * coalesce(s.overlap, 0) as k,
                         %(title_weight)s::float8 * coalesce(s.title, 0) as t,
                         %(covered_weight)s::float8 * coalesce(s.covered, 0) as a
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


# -- the query -------------------------------------------------------------------------------------

# A word has the same position in each language's tsvector, and none where it is a stop word: it must not become the
# rarest word of the query in a language that does not know it. A stem without chunks does not count either if another
# language's stem of the same word is in some.
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
                from (with stem as (
                          select l.name, v.lexeme, v.positions, s.chunks
                          from unnest(cast(%(languages)s as text[])) as l(name)
                          cross join lateral unnest(to_tsvector(cast(l.name as regconfig), %(words)s)) as v
                          left join lexeme_stat s on s.tenant_id = %(tenant)s and s.index_id = %(index)s
                                                     and s.lexeme = v.lexeme),
                      word as (
                          select stem.lexeme, stem.chunks, p.place,
                                 bool_or(stem.chunks is not null) over (partition by p.place) as listed,
                                 count(*) over (partition by p.place) as languages
                          from stem cross join lateral unnest(stem.positions) as p(place))
                      select lexeme, chunks is null as unlisted, coalesce(chunks, 1) as chunks,
                             count(distinct place) as times, min(place) as first
                      from word
                      where listed = (chunks is not null)
                        and languages >= cardinality(cast(%(languages)s as text[]))
                      group by lexeme, chunks) u
                cross join (select cast(%(chunks)s as float8) as chunks) n) w
          where place <= case when unlisted then {MOST_UNLISTED} else {MOST_LEXEMES} end) w
    window rarest as (order by chunks, quoted rows unbounded preceding)"""
"""SQL for the query's lexemes: a tsquery of each, its weight (inverse document frequency times occurrences in the
query), its sharp weight (the frequency to the power SHARPNESS), and whether it selects candidates.

A word counts with its stem of each language in use. A lexeme that the last count does not list is newer or in no
chunk, as most words of a log are: it counts as if it were in one chunk.

Parameters: `words` (`documents.searchable` of the question), `languages`, `tenant`, `index`, `chunks` (of all).
"""


# -- the filter, equal in both arms and for reading texts ------------------------------------------

CONDITIONS = {
    "source_types": "d.source_type = any(%(source_types)s)",
    "kinds": "d.kind = any(%(kinds)s)",
    "tags": "d.tags @> cast(%(tags)s as text[])",
    "since": "coalesce(d.updated_at, d.created_at) >= %(since)s",
    "until": "coalesce(d.updated_at, d.created_at) < %(until)s",
    # Not by jsonb_array_elements for members: that takes six times as long.
    "metadata": """not exists (
        select from unnest(cast(%(keys)s as text[]), cast(%(texts)s as text[]), cast(%(metadata)s as jsonb[]))
            as m(key, written, value)
        where (d.metadata ->> m.key = m.written or d.metadata -> m.key = m.value
               or jsonb_typeof(d.metadata -> m.key) = 'array' and m.written is not null
                  and (jsonb_exists(d.metadata -> m.key, m.written) or d.metadata -> m.key @> m.value)) is not true)""",
    # The document's project, which changes with its source at once; the chunks' when they are next written.
    "projects": "d.project_id = any(%(projects)s)",
    "exclude": "not c.document_id = any(%(exclude)s)",
    "only": "d.id = any(%(only)s)",
    # The level of the indexed text and, while a version of another level is being indexed, that one too.
    "security_levels": """d.security_level = any(%(security_levels)s)
        and coalesce(d.served_level, d.security_level) = any(%(security_levels)s)""",
    # As above; a layer that is not a list excludes everybody.
    "readers": """cast(%(readers)s as text[]) <> '{}' and (d.acl = '[]' and d.served_acl is null or not exists (
        select from jsonb_array_elements(d.acl || coalesce(d.served_acl, '[]')) l
        where not (jsonb_typeof(l.value) = 'array' and jsonb_exists_any(l.value, cast(%(readers)s as text[])))))""",
    "sources": "d.source_id in (select id from source where name = any(%(sources)s))",
}
"""Name of a filter's condition -> SQL on a chunk `c` and its document `d`."""
CHUNKS_ALONE = {"exclude"}
"""Conditions that do not need the document."""


def names_of(query_filter: Filter) -> tuple[str, ...]:
    """Names of the filter's conditions; none if all documents pass."""
    return tuple(
        name
        for name, value in vars(query_filter).items()
        if (value != ALL if name in Filter.BOUNDS else value not in ((), None, {}))
    )


def of_documents(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of conditions that need the document."""
    return tuple(name for name in names if name not in CHUNKS_ALONE)


def visible(names: tuple[str, ...]) -> str:
    """SQL of these conditions over `c` (chunk) and `d` (document), without hidden and deleted documents."""
    return " and ".join(["not d.hidden", "not d.deleted", *(CONDITIONS[name] for name in names)])


def values_of(query_filter: Filter, names: tuple[str, ...]) -> dict[str, Any]:
    """Parameters of the conditions with these names."""
    values = {name: getattr(query_filter, name) for name in names}
    for name, value in values.items():
        if isinstance(value, tuple):
            values[name] = [str(v) if isinstance(v, str) else v for v in value]
    if "metadata" in values:
        rows = [(storable(str(key)), *_spellings(value)) for key, value in query_filter.metadata]
        values["keys"], values["texts"], values["metadata"] = (list(part) for part in zip(*rows, strict=True))
    return values


def _spellings(value: object) -> tuple[str | None, str]:
    """A metadata value as it is written, and the JSON that equals it; null, lists and mappings are JSON alone."""
    plain = json.loads(json.dumps(storable(value), default=str))
    if not isinstance(plain, str):
        as_json = json.dumps(plain)
        return None if plain is None or isinstance(plain, dict | list) else as_json, as_json
    number = json_scalar(plain)
    return plain, json.dumps(number if isinstance(number, int | float) else plain)


# -- the arms --------------------------------------------------------------------------------------


def _distance(shape: Shape) -> str:
    """SQL of the distance: exactly the expression of the vector index."""
    return f"((c.embedding::halfvec({shape.dimensions})) <=> %(vector)s)"


def _differing_bits(shape: Shape) -> str:
    """SQL of the number of signs that differ: exactly the expression of a vector index of bits."""
    n = shape.dimensions
    question = f"binary_quantize(cast(%(vector)s as halfvec({n})))::bit({n})"
    return f"((binary_quantize(c.embedding::halfvec({n}))::bit({n})) <~> {question})"


def _near(shape: Shape) -> str:
    """SQL of the vector arm; `offset 0` prevents an index scan, so that each vector is compared once."""
    if shape.vector == "index":
        chunks = f"{_passing(shape, 'chunk')} and c.embedding is not null"
        return f"select c.ctid as place from {chunks} order by {_distance(shape)} limit {shape.near}"
    if shape.vector == "bits":
        chunks = f"{_passing(shape, 'chunk')} and c.embedding is not null"
        return f"""
            select x.place from (select c.ctid as place, {_distance(shape)} as distance from {chunks}
                                 order by {_differing_bits(shape)} limit {shape.near * BITS_OVERSAMPLED}) x
            order by x.distance limit {shape.near}"""
    if shape.vector == "given":
        place, chunks = "c.place", _passing(shape, _given(shape))
    else:
        place, chunks = "c.ctid", _passing(shape, "chunk", documents_first=True)
    return f"""
        select x.place from (select {place} as place, c.document_id, c.ord, {_distance(shape)} as distance
                             from {chunks} and c.embedding is not null offset 0) x
        order by x.distance, x.document_id, x.ord limit {shape.near}"""


def _given(shape: Shape) -> str:
    """SQL of the chunks that a vector store names: looked up by their keys, whatever it says of them."""
    return f"""(select f.ctid as place, f.index_id, f.document_id, f.ord, f.embedding
        from unnest(cast(%(near_documents)s as uuid[]), cast(%(near_ords)s as integer[])) as k(document_id, ord)
        cross join lateral (select g.ctid, g.index_id, g.document_id, g.ord, g.embedding from chunk g
                            where g.index_id = {shape.number} and g.document_id = k.document_id and g.ord = k.ord
                            offset 0) f)"""


@lru_cache(MOST_SHAPES)
def passing_chunks(shape: Shape) -> str:
    """SQL for the keys of those named chunks that exist and pass the filter."""
    return f"select c.document_id, c.ord from {_passing(shape, _given(shape))} and c.embedding is not null"


def _matching(shape: Shape) -> str:
    """SQL of the keyword arm."""
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
    """SQL for the chunks `c` of `rows` that pass the filter and are not hidden.

    Laterals with `offset 0` are not merged: each chunk's document is looked up by its key, whatever the planner
    estimates for unknown values. Rows come from views where an operator should use an index: row-level security
    prevents index scans for `@@` and `@>`, since they are not leakproof; a view with the same condition and an owner
    that may read all rows allows them.
    """
    on_chunks = " and ".join(
        [f"c.index_id = {shape.number}", *(CONDITIONS[n] for n in shape.filter if n in CHUNKS_ALONE)]
    )
    document_filters = of_documents(shape.filter)
    if not document_filters:
        # Hidden documents are few, so they are read once. Documents that are both hidden and deleted have no chunks,
        # and their rows are kept for ever.
        return f"""{rows} c where {on_chunks} and c.document_id <> all(array(
            select h.id from searchable_document h where h.hidden <> h.deleted))"""
    documents = f"searchable_document d where {visible(document_filters)}"
    if documents_first:
        return f"{rows} c where {on_chunks} and c.document_id = any(array(select d.id from {documents}))"
    document = f"select from {documents} and d.id = c.document_id offset 0"
    return f"{rows} c cross join lateral ({document}) d where {on_chunks}"


@lru_cache(MOST_SHAPES)
def passing_count(names: tuple[str, ...], most: int) -> str:
    """SQL for the number of chunks that pass a filter on documents, counted over at most `most` documents."""
    return f"""
        select coalesce(sum(c.chunk_count), 0)
        from (select d.chunk_count from searchable_document d where {visible(names)} limit {most}) c"""


def any_withheld(names: tuple[str, ...]) -> str:
    """SQL for whether a filter on documents, which is not empty, excludes any document."""
    conditions = " and ".join(CONDITIONS[name] for name in names)
    return f"select exists (select from document d where {visible(())} and ({conditions}) is not true)"


def any_without_vectors(names: tuple[str, ...]) -> str:
    """SQL for whether a document without vectors passes a filter on documents."""
    waits = "d.state = 'pending' and d.indexed_version is null"
    return f"select exists (select from document d where {waits} and {visible(names)})"


# -- the scores ------------------------------------------------------------------------------------

_LEXEMES = "case when (select count(*) from term) > 8 then c.lexemes || '' else c.lexemes end"
"""`|| ''` unpacks a compressed tsvector once instead of once per lexeme; the copy is only worth it for several."""
_SATURATION = f"({SATURATION} * (0.25 + 0.75 * cast(c.length as float8) / %(mean)s::float8))"
"""SQL for k1 * (1 - b + b * length / mean) of a chunk `c`."""


def _count(rows: str, weights: str) -> str:
    """SQL for the occurrences of the lexeme of term `t` in a row, with these weights of the tsvector."""
    return f"round(1 / (1.64493406685 * (1.0000001 - ts_rank('{weights}', {rows}.lexemes, t.lexeme))) - 0.5)"


_WORDS = f"""w.bm25, 1 - {HALF} / (w.sharp + {HALF}) as overlap,
            1 - {HALF_OF_TITLE} / (w.title + {HALF_OF_TITLE}) as title,
            power(coalesce(w.weight / nullif((select sum(t.weight) from term t), 0), 0), {COVERED}) as covered
            from candidate f cross join lateral (
                select coalesce(2.2 * sum(h.weight * h.body), 0) as bm25, coalesce(sum(h.sharp * h.body), 0) as sharp,
                       coalesce(sum(h.sharp * h.title), 0) as title, coalesce(sum(h.weight), 0) as weight
                from (select t.weight, t.sharp, 1 - f.k / ({_count("f", "{1,1,1,1}")} + f.k) as body,
                             1 - {SATURATION} / ({_count("f", "{0,0,0,1}")} + {SATURATION}) as title
                      from term t where f.lexemes @@ t.lexeme offset 0) h) w"""
"""SQL for keyword scores. `overlap`, 0 to 1: share of the query's rare words that the chunk has; `title`: the same for
title and headings; `covered`: 1 if the chunk has all lexemes of the query, falling fast to 0 with missing ones. They
do not depend on other candidates or on the size of the store."""
_NO_WORDS = """cast(null as float8) as bm25, cast(null as float8) as overlap, cast(null as float8) as title,
            cast(null as float8) as covered from candidate f"""


def _similarity(shape: Shape) -> str:
    """SQL for the similarity of the chunk and of its whole document in this index, null without a vector.

    The distance to a vector of zeros is NaN.
    """
    if not shape.vector:
        return "cast(null as float8) as similarity, cast(null as float8) as centroid"
    # In a vector search no score needs the document's similarity, so it is read for the results only.
    centroid = _centroid(shape, "f") if shape.keywords else "cast(null as float8)"
    return (
        f"case when f.distance = 'NaN' then 0 else 1 - f.distance end as similarity, {centroid} as centroid"
    )


def _centroid(shape: Shape, rows: str) -> str:
    return f"""(select nullif(1 - (m.centroid <=> %(vector)s), 'NaN') from index_document m
             where m.index_id = {shape.number} and m.document_id = {rows}.document_id)"""
