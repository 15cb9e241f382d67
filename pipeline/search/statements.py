"""The texts of the statements that search. Each depends on a search's shape alone, so it is made once.

Values stand in no text but for the numbers of index and dimensions, by which the planner knows the partition and the
expression that the vector index is built on.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from pipeline.search import bm25
from pipeline.search.feedback import OF_DOCUMENT
from pipeline.search.filters import CONDITIONS, condition, of_chunks, of_documents

MOST_SHAPES = 256
"""Statements of each kind whose texts are kept."""
FEW_TERMS = 8

KEYWORD_ROWS = "searchable_chunk"
DOCUMENTS = "searchable_document"
"""What the arms read where an operator shall look rows up. Row-level security keeps `@@` and `@>` out of an index scan,
since they are not leakproof; a view with the same condition and an owner that may read all rows does not."""

ACTIVE = "(select i.id from search_index i where i.status = 'active')"
"""Read in the very statement that searches, so that no index is asked that has just been replaced."""

STATE = "(select md5(string_agg(cast(x.stamp as text), ' ' order by x.slot)) from change_stamp x)"
"""The state of what the tenant's searches may show: another one after each change, from the moment in which that can be
seen. Null if nothing was ever indexed. Read in the statement that searches, it is the state of the very rows found."""

_VISIBLE = "not d.hidden and not d.deleted"

# Hidden documents are few, so what they are is read once instead of asking each candidate's document. One that is both
# hidden and deleted has lost its chunks in that moment, and all such rows are kept for ever.
_SHOWN = f"""c.document_id <> all(array(select h.id from {DOCUMENTS} h where h.hidden <> h.deleted))"""

# The distance to a vector of zeros is not a number.
_SIMILARITY = "coalesce(nullif(1 - {}, 'NaN'), 0)"


Passing = Literal["", "few", "some", "many"]
"""Few: look at the documents first, then at all of their chunks. Many: follow the indexes, then look at the documents.
Some: documents first for the vectors alone. Empty: not known, so the planner chooses by the values of each search.
"""


class Shape(NamedTuple):
    """What a search's statement depends on; all else are values."""

    number: int
    """Of the search index."""
    if_active: bool
    """Find nothing in it unless it is the active one."""
    dimensions: int
    vector: Literal["", "all", "index"]
    """How the vector arm finds the nearest: not at all, comparing every vector, or in the order of the index."""
    keywords: bool
    terms: bm25.Terms
    """Lexemes of the question; none if it has none or `keywords` is False."""
    language: str
    """Of the question, if the statement weighs its lexemes itself."""
    filter: tuple[str, ...]
    """Names of what the filter asks for."""
    candidates: int
    passing: Passing = ""
    """How many chunks the filter lets through, where that decides how to search."""

    @property
    def one_plan(self) -> bool:
        """Whether the same way is good for all values, so that it can be planned once."""
        return bool(self.passing) or set(self.filter) <= {"exclude"}


@lru_cache(MOST_SHAPES)
def passing_count(names: tuple[str, ...], most: int) -> str:
    """How many chunks a filter on documents lets through; of so many documents at most."""
    return f"""
        select coalesce(sum(c.chunk_count), 0)
        from (select d.chunk_count from {DOCUMENTS} d where {condition(names)} limit {most}) c"""


@lru_cache(MOST_SHAPES)
def both_arms(shape: Shape) -> str:
    """The chunks that an arm finds, each once, with all its scores; one statement, since each way to the server costs.

    Gives (document_id, ord, similarity, centroid, bm25, overlap, title, covered). The shape has an arm. Lexemes that
    are weighed here are in `question`.
    """
    similarity, centroid, likeness = "null", "null", ""
    if shape.vector:
        similarity, centroid = _SIMILARITY.format("v.distance"), "m.centroid"
        likeness = f"left join lateral (select {_LIKENESS} {_centroid(shape, 'u')} offset 0) m on true"
    return f"""
        select v.document_id, v.ord, {similarity}, v.centroid, {_words(shape)}
        from (select u.*, {centroid} as centroid {_ranks(shape)}
              from ({_found(shape)}) u {shape.terms.joined} {likeness} offset 0) v {shape.terms.joined}
        where {_asked(shape)}"""


@lru_cache(MOST_SHAPES)
def nearest(shape: Shape, first: int, top: int, *, dedupe: bool, whole: bool) -> str:
    """The first `top` by meaning alone out of the `first` nearest chunks, with their texts; see `texts`.

    More columns are (similarity, centroid, rows), `rows` being how many of the `first` there are. With `dedupe` one
    chunk of a document; the centroid's likeness only if asked for by `whole`. In no order, since a join may lose it.
    """
    once = "distinct on (f.document_id)" if dedupe else ""
    centroid = f"(select {_LIKENESS} {_centroid(shape, 'w')})" if whole else "null"
    # Planned for all candidates and stopped after the first: told of a few only, the planner would take the vector
    # index through the narrowest filter, which takes longer than comparing all that pass and finds fewer.
    best = f"""
        with near as materialized ({_near(shape, ", " + _distance(shape) + " as distance")}),
        first as materialized (select n.document_id, n.ord, n.distance from near n limit {first})
        select b.document_id, b.ord, {_SIMILARITY.format("b.distance")} as similarity,
               (select count(*) from first) as rows
        from (select {once} f.document_id, f.ord, f.distance from first f
              order by f.document_id, f.distance, f.ord) b
        order by b.distance, b.document_id, b.ord limit {top}"""
    where = f"{_asked(shape)} and {_VISIBLE}"
    more = f"w.similarity, {centroid}, w.rows"
    return _texts(shape.number, f"({best}) as w", where, more, few=True, marks="null")


@lru_cache(MOST_SHAPES)
def nearest_few(index: int, dimensions: int, first: int, top: int, *, dedupe: bool) -> str:
    """The first `top` of the `first` nearest chunks of all, in this order, for a search that asks for nothing more.

    Gives columns as `texts`, but the id of the source for its name, and the similarity. With `dedupe` one chunk of a
    document. What is hidden drops out at the end: if fewer than `top` come back, `nearest` tells whether that is all.
    That spares what `nearest` reads beforehand, and looking up by key what the vector index had at hand: a quarter of
    the server's time.
    """
    distance = f"((c.embedding::halfvec({dimensions})) <=> %(vector)s)"
    one = "near"
    if dedupe:
        # The index is followed as far as rows are asked for: half the way, if that is enough documents.
        half = (first + 1) // 2
        one = f"""
            (select distinct on (n.document_id) n.*
             from (select m.* from near m limit (
                 select case when count(distinct h.document_id) < {top} then {first} else {half} end
                 from (select m.document_id from near m limit {half}) h)) n
             order by n.document_id, n.distance, n.ord)"""
    return f"""
        with near as materialized (
            select c.document_id, c.ord, c.version, c.content, c.context, {distance} as distance
            from chunk c where c.index_id = {index} order by {distance} limit {first})
        select w.document_id, w.ord, w.version, w.content, w.context, d.title, d.source_type, d.kind, d.source_id,
               {_ABOUT}, {_SIMILARITY.format("w.distance")} as similarity
        from (select o.* from {one} o order by o.distance, o.document_id, o.ord limit {top}) w
        join document d on d.id = w.document_id
        where {ACTIVE} = {index} and {_VISIBLE}
        order by w.distance, w.document_id, w.ord"""


@lru_cache(MOST_SHAPES)
def best(shape: Shape, top: int, *, dedupe: bool, state: bool = False) -> str:
    """The first `top` of both arms by the weighted sum of their scores, with their texts; see `texts` and `Blend`.

    More columns are the state, if asked for by `state`, then (similarity, centroid, bm25, overlap, title, covered),
    then the score and its parts (of meaning, words, the title's, all words). With `dedupe` one chunk of a document. In
    no order, since a join may lose it.
    """
    once = "distinct on (p.document_id)" if dedupe else ""
    question, fits = "", "true"
    if shape.terms.here:
        question = f"question as materialized ({bm25.weighed_here(shape.terms, shape.language)}),"
        fits = f"(select q.count from question q) <= {shape.terms.most}"  # else nothing is found at all
    # What follows is `pipeline.search.ranking.rank` with the threshold, to the last bit: of some two hundred
    # candidates only those cross the wire that come to be shown.
    sum_of = f"""
        with {question} found(document_id, ord, similarity, centroid, bm25, overlap, title, covered) as materialized (
            {both_arms(shape)} and {fits}),
        parts as (select f.*, %(of_meaning)s::float8 * coalesce(
                             %(own)s::float8 * f.similarity + %(share)s::float8 * f.centroid, f.similarity, 0) as v,
                         %(of_words)s::float8 * f.overlap as k, %(of_title)s::float8 * f.title as t,
                         %(of_all)s::float8 * f.covered as a
                  from found f),
        one as (select {once} p.*, p.v + p.k + p.t + p.a as score from parts p
                where p.bm25 > 0 or p.similarity >= %(least)s::float8
                order by p.document_id, score desc, p.ord)
        select * from one order by score desc, document_id, ord limit {top}"""
    more = "w.similarity, w.centroid, w.bm25, w.overlap, w.title, w.covered, w.score, w.v, w.k, w.t, w.a"
    more = f"{STATE if state else 'null'}, {more}"
    return _texts(shape.number, f"({sum_of}) as w", condition(shape.filter), more, few=True)


@lru_cache(MOST_SHAPES)
def texts(index: int, names: tuple[str, ...], *, state: bool = False) -> str:
    """The chunks of `ids` and `ords` that a filter of these names lets through, with their documents.

    The column after the times of a document is its `Marks` for the question `asked`. With `state` one more column tells
    it, and no row comes back unless the index is the active one.
    """
    places = "unnest(cast(%(ids)s as uuid[]), cast(%(ords)s as integer[])) as w(document_id, ord)"
    if state:
        return _texts(index, places, f"{condition(names)} and {ACTIVE} = {index}", STATE)
    return _texts(index, places, condition(names))


# An arm tells chunks. Laterals with `offset 0` keep the order: first what they are, then rows by key. Left to itself
# and without statistics, right after a first load, the planner takes a thousand times as long.


def _asked(shape: Shape) -> str:
    """Whether this index is the one to be asked."""
    return f"{ACTIVE} = {shape.number}" if shape.if_active else "true"


def _distance(shape: Shape) -> str:
    """The very expression that the vector index is built on."""
    return f"((c.embedding::halfvec({shape.dimensions})) <=> %(vector)s)"


_LIKENESS = "nullif(1 - (m.centroid <=> %(vector)s), 'NaN') as centroid"


def _centroid(shape: Shape, of: str) -> str:
    """The whole document of a row, in the very index that is read: the vectors of two models must not meet."""
    return f"from index_document m where m.index_id = {shape.number} and m.document_id = {of}.document_id"


def _near(shape: Shape, more: str = "") -> str:
    """The vector arm: in the order of the index, or every vector compared if there are few.

    `more` are columns beside the chunk's key, the `distance` among them.
    """
    rows = _passing(shape, "chunk", first=_compares_all(shape))
    if more and _compares_all(shape):
        # What `offset 0` keeps apart no index can order, and each vector is compared once.
        return f"""
        select x.* from (select c.document_id, c.ord{more} from {rows} offset 0) x
        order by x.distance limit {shape.candidates}"""
    # An index cannot give the order of a sum.
    order = _distance(shape) + (" + 0" if _compares_all(shape) else "")
    return f"""
        select c.document_id, c.ord{more} from {rows}
        order by {order} limit {shape.candidates}"""


def _compares_all(shape: Shape) -> bool:
    return shape.vector == "all" or shape.passing in ("few", "some")


def _passing(shape: Shape, rows: str, *, first: bool) -> str:
    """Chunks `c` that the filter lets through and that are not hidden; `first` begins with documents, if it may."""
    own = " and ".join([f"c.index_id = {shape.number}", *(CONDITIONS[n] for n in of_chunks(shape.filter))])
    if not of_documents(shape.filter):  # which needs no documents
        return f"{rows} c where {own} and {_SHOWN}"
    shown = condition(of_documents(shape.filter))
    if not shape.passing:
        return f"{rows} c join {DOCUMENTS} d on d.id = c.document_id where {own} and {shown}"
    if first and rows == "chunk":  # which leaves the planner one index to take, and that is read once for all
        return f"{rows} c where {own} and c.document_id = any(array(select d.id from {DOCUMENTS} d where {shown}))"
    # Laterals that are not merged: what the planner would guess of values it does not know is of no account.
    if first:
        return f"""
            (select d.id from {DOCUMENTS} d where {shown} offset 0) d
            cross join lateral (select c.* from {rows} c where {own} and c.document_id = d.id offset 0) c where true"""
    return f"""
            {rows} c cross join lateral (
                select from {DOCUMENTS} d where d.id = c.document_id and {shown} offset 0) d
            where {own}"""


def _matching(shape: Shape) -> str:
    """The keyword arm: the best chunks of those that hold one of the rarest lexemes, and at which place they are."""
    score = bm25.score(shape.terms, bm25.ranks(shape.terms, "x.flat"), k="x.k")
    return f"""
        select x.place, x.document_id, x.ord
        from (select c.place, c.document_id, c.ord, {_flat(shape)} as flat, {bm25.saturation("c.length")} as k
              from {_passing(shape, KEYWORD_ROWS, first=shape.passing == "few")}
                   and c.lexemes @@ {shape.terms.any_of} offset 0) x
        {shape.terms.joined}
        order by {score} desc, x.document_id, x.ord limit {shape.candidates}"""


def _found(shape: Shape) -> str:
    """The chunks of the arms, each once, with what the scores read of them."""
    if not shape.terms.most:
        return _near(shape, f", {_read(shape)}")
    if not shape.vector:
        return _again(shape, _matching(shape))
    if _compares_all(shape):
        near = f"select n.place from ({_near(shape, ', c.ctid as place, ' + _distance(shape) + ' as distance')}) n"
        return _again(shape, f"({near}) union (select m.place from ({_matching(shape)}) m)")
    # Whoever follows the vector index has the row at hand, and need not read it again.
    return f"""
        with near as materialized ({_near(shape, f", {_read(shape)}")}),
        other as (select w.place from ({_matching(shape)}) w
                  where not exists (select from near n where n.document_id = w.document_id and n.ord = w.ord))
        select * from near union all {_again(shape, "select * from other")}"""


def _again(shape: Shape, rows: str) -> str:
    """The chunks of these rows with what the scores read of them.

    By the place at which they were found, which stays theirs until the statement ends: looking each up by its key was a
    tenth of a hybrid search. Not merged with what reads it, which would unpack the lexemes once for each term.
    """
    return f"""
        select r.* from (
            select c.document_id, c.ord, {_read(shape)} from chunk c
            where c.index_id = {shape.number} and c.ctid = any(array(select w.place from ({rows}) w)) offset 0) r"""


def _read(shape: Shape) -> str:
    """What the scores read of a chunk."""
    read = [f"{_distance(shape)} as distance"] if shape.vector else []
    read += [f"{_flat(shape)} as flat, {bm25.saturation('c.length')} as k"] if shape.terms.most else []
    return ", ".join(read)


def _flat(shape: Shape) -> str:
    """A chunk's lexemes as the scores read them.

    `|| ''` unpacks a compressed tsvector once; otherwise every term would do so again. The copy costs as much as
    some terms do.
    """
    return "c.lexemes || ''" if shape.terms.most > FEW_TERMS else "c.lexemes"


def _ranks(shape: Shape) -> str:
    """Each lexeme's `ts_rank` in the chunk, from which all scores of words are made."""
    return "".join(f", {rank} as r{n}" for n, rank in enumerate(bm25.ranks(shape.terms, "u.flat")))


def _words(shape: Shape) -> str:
    """The scores of words: (bm25, overlap, title, covered)."""
    if not shape.terms.most:
        nothing = "cast(0 as float8)" if shape.keywords else "cast(null as float8)"
        return ", ".join([nothing] * 4)
    body = [f"v.r{n}" for n in range(shape.terms.most)]
    # What the whole chunk does not hold its title does not hold either, and most chunks hold few lexemes of a question.
    title = [
        f"case when {own} > 0 then {rank} else 0 end"
        for own, rank in zip(body, bm25.ranks(shape.terms, "v.flat", bm25.TITLE), strict=True)
    ]
    return ", ".join(
        [
            bm25.score(shape.terms, body, k="v.k"),
            bm25.overlap(shape.terms, body, k="v.k", half=bm25.HALF),
            bm25.overlap(shape.terms, title, k=bm25.FLAT_SATURATION, half=bm25.HALF_OF_TITLE),
            bm25.covered(shape.terms, body),
        ]
    )


_ABOUT = "d.url, d.tags, cast(d.metadata as text), d.project_id, d.created_at, d.updated_at"
_CHUNK = "select c.document_id, c.ord, c.version, c.content, c.context, c.project_id from chunk c"
_DOCUMENT = "select d.* from document d"


def _texts(
    index: int, wanted: str, where: str, more: str = "null", *, few: bool = False, marks: str = OF_DOCUMENT
) -> str:
    """Chunks `w` with their documents; laterals keep the planner from reading more than these rows.

    `few` says that a limit already tells the planner so: without laterals it is a tenth faster.
    """
    chunk = f"c.index_id = {index} and c.document_id = w.document_id and c.ord = w.ord"
    if few:
        rows = f"join chunk c on {chunk} join document d on d.id = w.document_id"
    else:
        rows = f"""
            cross join lateral ({_CHUNK} where {chunk} offset 0) c
            cross join lateral ({_DOCUMENT} where d.id = w.document_id offset 0) d"""
    return f"""
        select c.document_id, c.ord, c.version, c.content, c.context, d.title, d.source_type, d.kind, s.name, {_ABOUT},
               {marks}, {more}
        from {wanted} {rows}
        join source s on s.id = d.source_id
        where {where}"""
