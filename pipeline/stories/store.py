"""Stories in PostgreSQL: stored once, found by meaning, counted and removed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import numpy as np
from pgvector import Vector as VectorValue
from pgvector.sqlalchemy import Vector
from sqlalchemy import (
    ARRAY,
    TIMESTAMP,
    Boolean,
    Column,
    Engine,
    Float,
    Integer,
    String,
    Text,
    TextClause,
    Uuid,
    func,
    or_,
    text,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import DeclarativeBase

from pipeline.database.engine import lift_statement_timeout
from pipeline.documents import Json
from pipeline.errors import StoreRejected
from pipeline.ledger import SHARED, project_id, sources
from pipeline.stories.memory import THRESHOLD, AnySession, K, StoryMemory, current
from pipeline.stories.story import Story

EDITED, RATED = 0.05, 0.0125
"""What a story gains in similarity as an example because a person edited it, and for each star above the third."""
NEAR = 4
"""So many times the stories wanted are looked at, so that one that was edited or rated can rise."""


class Base(DeclarativeBase):
    """The mapped classes of this room."""


class UserStoryEmbedding(Base):
    """A story with its vector, of whatever length its model gives."""

    __tablename__ = "clarifai_user_story_embeddings"

    id = Column(String(64), primary_key=True, default=lambda: uuid.uuid4().hex)
    user_story_id = Column(String(20), nullable=False)
    title = Column(String(500), nullable=False)
    user_story_text = Column(Text, nullable=False)
    acceptance_criteria: Column[list[str]] = Column(ARRAY(Text))
    description = Column(Text)
    requirement_id = Column(String(20))
    requirement_text = Column(Text)
    tags: Column[list[str]] = Column(ARRAY(Text))
    priority = Column(String(20))
    tshirt_size = Column(String(5))
    confidence_score = Column(Float)
    source_agent = Column(String(50), nullable=False)
    source_doc_id = Column(String(64))
    embedding = Column(Vector(), nullable=False)
    created_at = Column(TIMESTAMP, default=lambda: datetime.now(UTC).replace(tzinfo=None))
    user_rating = Column(Integer)
    was_edited = Column(Boolean, default=False)
    tenant_id = Column(Uuid, server_default=text("current_tenant()"), nullable=False)
    """Whose transaction it is."""
    model = Column(Text, nullable=False)
    """Whose vector it is: those of two models are never compared."""


_TABLE: Any = UserStoryEmbedding.__table__
_SHOWN = [name for name in _TABLE.columns.keys() if name not in ("embedding", "tenant_id", "model")]  # noqa: SIM118
_KEY = (_TABLE.c.tenant_id, func.md5(_TABLE.c.user_story_text))


def init_vector_extension(engine: Engine | None = None) -> None:
    """Make the extension pgvector, if it is not there; tables are made by `larder migrate`.

    Without an engine it is the database of the memory in use, whose role may find the extension and not make it.
    """
    with (engine or current().database.app).begin() as connection:
        connection.execute(text("create extension if not exists vector"))


def store_user_story(
    story: Mapping[str, Any] | Story,
    embedding: Sequence[float],
    session: AnySession | None = None,
    source_agent: str = "unknown",
    *,
    memory: StoryMemory | None = None,
) -> str:
    """Store a story with its vector; the id of the row, which is the one from before if the text is there already.

    Raises:
        RequestRejected: it is no story; the message names the field.
        StoreRejected: the vector is none of the memory's model.
        StoreUnavailable: the database does not answer.
    """
    memory = memory or current()
    read = memory.read(story, source_agent)
    with memory.connected(session) as connection:
        ids = store_user_stories_batch([read], [embedding], connection, memory=memory)
        known = text(
            "select id from clarifai_user_story_embeddings where tenant_id = :t and md5(user_story_text) = md5(:s)"
        )
        return (
            ids[0]
            if ids
            else str(connection.execute(known, {"t": memory.tenant, "s": read.user_story_text}).scalar_one())
        )


def store_user_stories_batch(
    stories: Sequence[Mapping[str, Any] | Story],
    embeddings: Sequence[Sequence[float]],
    session: AnySession | None = None,
    source_agent: str = "unknown",
    *,
    memory: StoryMemory | None = None,
) -> list[str]:
    """Store stories with their vectors, all or none; the ids of those that were written.

    A text that is there already is left alone, whoever writes at the same time, unless a person edited or rated the
    story: then it takes the other's place, and so does one whose text only a former model has embedded.

    Raises:
        as store_user_story
    """
    memory = memory or current()
    read = [memory.read(one, source_agent) for one in stories]
    vectors = np.asarray(embeddings, dtype=np.float32)
    if vectors.shape != (len(read), memory.dimensions) and read:
        raise StoreRejected(
            f"{len(read)} stories come with vectors of shape {vectors.shape}; {memory.model} gives {memory.dimensions}",
            fix="embed each story once, by generate_embeddings_batch",
        )
    if not np.isfinite(vectors).all():
        raise StoreRejected("the vector of a story is not finite", fix="embed it again")
    # In the order of their texts, so that two who store the same stories do not block each other.
    rows = [
        {
            **story.model_dump(),
            "embedding": vector.tolist(),
            "model": memory.model,
            "tenant_id": memory.tenant,
        }
        for story, vector in sorted(_once(read, vectors).values(), key=lambda pair: pair[0].user_story_text)
    ]
    if not rows:
        return []
    with memory.connected(session) as connection:
        name = memory.tenant_name or str(memory.tenant)
        sources.ensure_tenant(connection, memory.tenant, name, project_id(memory.tenant, SHARED), SHARED)
        return [str(row.id) for row in connection.execute(_INSERT, rows)]


def _once(stories: Sequence[Story], vectors: Any) -> dict[str, tuple[Story, Any]]:
    """Text -> its story with its vector: the first, but for one that a person edited or rated."""
    found: dict[str, tuple[Story, Any]] = {}
    for story, vector in zip(stories, vectors, strict=True):
        if story.user_story_text not in found or story.was_edited or story.user_rating:
            found[story.user_story_text] = (story, vector)
    return found


def _upsert() -> Any:
    made = insert(_TABLE)
    new, old = made.excluded, _TABLE.c
    values = {
        name: new[name] for name in (*_SHOWN, "embedding", "model") if name not in ("id", "user_story_text")
    }
    values |= {
        "was_edited": or_(old.was_edited, new.was_edited),
        "user_rating": func.coalesce(new.user_rating, old.user_rating),
    }
    judged = or_(new.was_edited, new.user_rating.is_not(None))
    other_model = (old.model != new.model) & ~func.coalesce(old.was_edited, False)
    upsert = made.on_conflict_do_update(index_elements=_KEY, set_=values, where=or_(judged, other_model))
    return upsert.returning(_TABLE.c.id)


_INSERT = _upsert()

_NEAREST = """
    with near as materialized (
        select {columns}, 1 - (cast(embedding as vector({n})) <=> cast(:vector as vector({n}))) as similarity_score
        from (select * from clarifai_user_story_embeddings
              where tenant_id = :tenant and model = :model
                and (cast(:tags as text[]) is null
                     or cast(lower(cast(tags as text)) as text[])
                        && (select cast(lower(cast(cast(:tags as text[]) as text)) as text[])))
                and coalesce(confidence_score, 1) >= :confidence {fence}) fitting
        where vector_dims(embedding) = {n}
        order by cast(embedding as vector({n})) <=> cast(:vector as vector({n})) limit :near)
    select near.*, seen.count as seen
    from (select count(*) from near) seen left join near on similarity_score >= :threshold
    order by similarity_score + cast(:edited as float) * cast(coalesce(was_edited, false) as integer)
             + cast(:rated as float) * (coalesce(user_rating, 3) - 3) desc, created_at desc, id
    limit :k"""


def search_similar_stories(
    query_embedding: Sequence[float],
    k: int = K,
    similarity_threshold: float = THRESHOLD,
    tag_filter: Sequence[str] | None = None,
    session: AnySession | None = None,
    *,
    as_examples: bool = False,
    memory: StoryMemory | None = None,
) -> list[Json]:
    """The `k` nearest stories that are similar enough, nearest first, each with its `similarity_score`.

    A story that has tags must share one with `tag_filter`, if there is one; upper and lower case are alike.
    `as_examples` ranks them for a prompt: doubtful ones are left out, and what a person edited or rated counts for
    more, but never for so much that it goes before one that is nearer by `EDITED + 4 * RATED`.

    Raises:
        StoreRejected: the vector is none of the memory's model.
        StoreUnavailable: the database does not answer.
    """
    memory = memory or current()
    if len(query_embedding) != memory.dimensions:
        raise StoreRejected(
            f"the question's vector has {len(query_embedding)} numbers; {memory.model} gives {memory.dimensions}",
            fix="embed it with the model of the memory",
        )
    values = {
        "tenant": memory.tenant,
        "model": memory.model,
        "vector": VectorValue(list(query_embedding)),
        "tags": list(tag_filter) if tag_filter else None,
        "threshold": similarity_threshold,
        "k": k,
        "near": k,
        **dict.fromkeys(("confidence", "edited", "rated"), 0.0),
    }
    if as_examples:
        values |= {"near": k * NEAR, "confidence": memory.options.min_confidence}
        values |= {"edited": EDITED, "rated": RATED}
    with memory.connected(session) as connection:
        found = connection.execute(nearest(memory.dimensions), values).mappings().all()
        if tag_filter and found and found[0]["seen"] < values["near"]:
            found = connection.execute(nearest(memory.dimensions, exact=True), values).mappings().all()
    return [{key: row[key] for key in row if key != "seen"} for row in found if row["id"]]


def nearest(dimensions: int, *, exact: bool = False) -> TextClause:
    """The statement of a search among vectors of this length.

    The vector index gives up after `hnsw.max_scan_tuples` vectors that lack a rare tag; `exact` looks at all with it.
    """
    fence = "offset 0" if exact else ""
    return text(_NEAREST.format(columns=", ".join(_SHOWN), n=dimensions, fence=fence))


def get_story_count(
    session: AnySession | None = None, *, most: int | None = None, memory: StoryMemory | None = None
) -> int:
    """How many stories the memory's model has embedded; counted up to `most`, if that is enough to know."""
    memory = memory or current()
    statement = text("""
        select count(*) from (select from clarifai_user_story_embeddings
                              where tenant_id = :tenant and model = :model limit :most) found""")
    with memory.connected(session) as connection:
        values = {"tenant": memory.tenant, "model": memory.model, "most": most}
        return int(connection.execute(statement, values).scalar_one())


def delete_stories_by_source(
    source_id: str, session: AnySession | None = None, *, memory: StoryMemory | None = None
) -> int:
    """Remove the stories of one run of a generator, or of one file; how many there were."""
    memory = memory or current()
    statement = text(
        "delete from clarifai_user_story_embeddings where tenant_id = :tenant and source_doc_id = :source"
    )
    with memory.connected(session) as connection:
        return int(connection.execute(statement, {"tenant": memory.tenant, "source": source_id}).rowcount)


def known_texts(connection: Any, memory: StoryMemory, texts: Sequence[str]) -> set[str]:
    """Those of these texts that storing again would leave as they are, unless a person edited or rated the story."""
    statement = text("""
        select user_story_text from clarifai_user_story_embeddings
        where tenant_id = :tenant and (model = :model or was_edited)
          and md5(user_story_text) in (select md5(t) from unnest(cast(:texts as text[])) t)""")
    rows = connection.execute(
        statement, {"tenant": memory.tenant, "model": memory.model, "texts": list(texts)}
    )
    return {row.user_story_text for row in rows}


def stories_of_other_models(connection: Any, memory: StoryMemory, *, most: int) -> list[Json]:
    """Stories that this model has not embedded, and that no search finds therefore; oldest first."""
    statement = text(f"""
        select {", ".join(_SHOWN)} from clarifai_user_story_embeddings
        where tenant_id = :tenant and model <> :model order by created_at, id limit :most""")
    rows = connection.execute(statement, {"tenant": memory.tenant, "model": memory.model, "most": most})
    return [dict(row) for row in rows.mappings()]


def story_stats(connection: Any, tenant: UUID) -> Json:
    """`{"total_stories", "by_source_agent", "average_confidence_score", "edited", "by_model"}`."""
    statement = text("""
        select source_agent, model, count(*) as stories, sum(confidence_score) as sum, count(confidence_score) as told,
               count(*) filter (where was_edited) as edited
        from clarifai_user_story_embeddings where tenant_id = :tenant group by 1, 2 order by 1, 2""")
    rows = connection.execute(statement, {"tenant": tenant}).all()
    by_agent: dict[str, int] = {}
    by_model: dict[str, int] = {}
    for row in rows:
        by_agent[row.source_agent] = by_agent.get(row.source_agent, 0) + row.stories
        by_model[row.model] = by_model.get(row.model, 0) + row.stories
    told = sum(row.told for row in rows)
    return {
        "total_stories": sum(by_agent.values()),
        "by_source_agent": by_agent,
        "average_confidence_score": round(sum(row.sum or 0 for row in rows) / told, 4) if told else None,
        "edited": sum(row.edited for row in rows),
        "by_model": by_model,
    }


def build_index(connection: Any, dimensions: int, *, least: int = 1000) -> bool:
    """Make the vector index once about `least` stories are there, and anew for another length; on the control role."""
    lift_statement_timeout(connection)
    statement = text("select build_story_index(:dimensions, :least)")
    return bool(connection.execute(statement, {"dimensions": dimensions, "least": least}).scalar_one())
