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
"""Bonus in similarity of an example that a person edited, and for each star above the third."""
NEAR = 4
"""Candidates ranked per example requested, so that edited and rated stories can rise."""


class Base(DeclarativeBase):
    """Base of the mapped classes of this package."""


class UserStoryEmbedding(Base):
    """A story with its vector, whose length depends on the model."""

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
    """Tenant of the transaction."""
    model = Column(Text, nullable=False)
    """Model of the vector; vectors of two models are never compared."""


_TABLE: Any = UserStoryEmbedding.__table__
_STORY_COLUMNS = [name for name in _TABLE.columns.keys() if name not in ("embedding", "tenant_id", "model")]  # noqa: SIM118
_KEY = (_TABLE.c.tenant_id, func.md5(_TABLE.c.user_story_text))


def init_vector_extension(engine: Engine | None = None) -> None:
    """Create the extension pgvector if it is missing; tables are created by `larder migrate`.

    Without an engine it uses the database of the default memory, whose role cannot create extensions.
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
    """Store a story with its vector; returns the id of the row, the existing one if the text is stored already.

    Raises:
        RequestRejected: not a story; the message names the field.
        StoreRejected: the vector is not one of the memory's model.
        StoreUnavailable: the database does not answer.
    """
    memory = memory or current()
    read = memory.read(story, source_agent)
    with memory.connected(session) as connection:
        ids = store_user_stories_batch([read], [embedding], connection, memory=memory)
        existing_id = text(
            "select id from clarifai_user_story_embeddings where tenant_id = :t and md5(user_story_text) = md5(:s)"
        )
        return (
            ids[0]
            if ids
            else str(
                connection.execute(existing_id, {"t": memory.tenant, "s": read.user_story_text}).scalar_one()
            )
        )


def store_user_stories_batch(
    stories: Sequence[Mapping[str, Any] | Story],
    embeddings: Sequence[Sequence[float]],
    session: AnySession | None = None,
    source_agent: str = "unknown",
    *,
    memory: StoryMemory | None = None,
) -> list[str]:
    """Store stories with their vectors, all or none; returns the ids of the rows that were written.

    An existing text is not overwritten, also by concurrent writers, unless a person edited or rated the new story,
    or the existing vector is one of a former model. Raises as `store_user_story` does.
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
    # Sorted by text, so that two writers of the same stories cannot deadlock.
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
    """Text -> (story, vector); of several with one text the first, unless a person edited or rated a later one."""
    unique_stories: dict[str, tuple[Story, Any]] = {}
    for story, vector in zip(stories, vectors, strict=True):
        if story.user_story_text not in unique_stories or story.was_edited or story.user_rating:
            unique_stories[story.user_story_text] = (story, vector)
    return unique_stories


def _upsert() -> Any:
    statement = insert(_TABLE)
    new, old = statement.excluded, _TABLE.c
    values = {
        name: new[name]
        for name in (*_STORY_COLUMNS, "embedding", "model")
        if name not in ("id", "user_story_text")
    }
    values |= {
        "was_edited": or_(old.was_edited, new.was_edited),
        "user_rating": func.coalesce(new.user_rating, old.user_rating),
    }
    has_verdict = or_(new.was_edited, new.user_rating.is_not(None))
    other_model = (old.model != new.model) & ~func.coalesce(old.was_edited, False)
    upsert = statement.on_conflict_do_update(
        index_elements=_KEY, set_=values, where=or_(has_verdict, other_model)
    )
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
    select near.*, total.count as near_count
    from (select count(*) from near) total left join near on similarity_score >= :threshold
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
    """The `k` nearest stories above the threshold, nearest first, each with its `similarity_score`.

    With `tag_filter`, a story must share a tag with it; case is ignored. `as_examples` ranks them for a prompt:
    stories below the minimum confidence are left out, and edited or rated ones gain up to `EDITED + 4 * RATED`.

    Raises:
        StoreRejected: the vector is not one of the memory's model.
        StoreUnavailable: the database does not answer.
    """
    memory = memory or current()
    if len(query_embedding) != memory.dimensions:
        raise StoreRejected(
            f"the query's vector has {len(query_embedding)} dimensions; {memory.model} has {memory.dimensions}",
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
        rows = connection.execute(nearest(memory.dimensions), values).mappings().all()
        if tag_filter and rows and rows[0]["near_count"] < values["near"]:
            rows = connection.execute(nearest(memory.dimensions, exact=True), values).mappings().all()
    return [{key: row[key] for key in row if key != "near_count"} for row in rows if row["id"]]


def nearest(dimensions: int, *, exact: bool = False) -> TextClause:
    """The search statement for vectors of this length.

    The vector index stops after `hnsw.max_scan_tuples` vectors without a rare tag; `exact` scans all with the tag.
    """
    fence = "offset 0" if exact else ""
    return text(_NEAREST.format(columns=", ".join(_STORY_COLUMNS), n=dimensions, fence=fence))


def get_story_count(
    session: AnySession | None = None, *, most: int | None = None, memory: StoryMemory | None = None
) -> int:
    """Number of stories embedded by the memory's model; counting stops at `most`."""
    memory = memory or current()
    statement = text("""
        select count(*) from (select from clarifai_user_story_embeddings
                              where tenant_id = :tenant and model = :model limit :most) counted""")
    with memory.connected(session) as connection:
        values = {"tenant": memory.tenant, "model": memory.model, "most": most}
        return int(connection.execute(statement, values).scalar_one())


def delete_stories_by_source(
    source_id: str, session: AnySession | None = None, *, memory: StoryMemory | None = None
) -> int:
    """Delete the stories of one run of a generator, or of one file; returns how many."""
    memory = memory or current()
    statement = text(
        "delete from clarifai_user_story_embeddings where tenant_id = :tenant and source_doc_id = :source"
    )
    with memory.connected(session) as connection:
        return int(connection.execute(statement, {"tenant": memory.tenant, "source": source_id}).rowcount)


def stored_texts_of(connection: Any, memory: StoryMemory, texts: Sequence[str]) -> set[str]:
    """The texts that are stored already and would be overwritten only by an edited or rated story."""
    statement = text("""
        select user_story_text from clarifai_user_story_embeddings
        where tenant_id = :tenant and (model = :model or was_edited)
          and md5(user_story_text) in (select md5(t) from unnest(cast(:texts as text[])) t)""")
    rows = connection.execute(
        statement, {"tenant": memory.tenant, "model": memory.model, "texts": list(texts)}
    )
    return {row.user_story_text for row in rows}


def stories_of_other_models(connection: Any, memory: StoryMemory, *, most: int) -> list[Json]:
    """Stories embedded by another model, which no search finds; oldest first."""
    statement = text(f"""
        select {", ".join(_STORY_COLUMNS)} from clarifai_user_story_embeddings
        where tenant_id = :tenant and model <> :model order by created_at, id limit :most""")
    rows = connection.execute(statement, {"tenant": memory.tenant, "model": memory.model, "most": most})
    return [dict(row) for row in rows.mappings()]


def story_stats(connection: Any, tenant: UUID) -> Json:
    """`{"total_stories", "by_source_agent", "average_confidence_score", "edited", "by_model"}`."""
    statement = text("""
        select source_agent, model, count(*) as stories, sum(confidence_score) as sum,
               count(confidence_score) as scored, count(*) filter (where was_edited) as edited
        from clarifai_user_story_embeddings where tenant_id = :tenant group by 1, 2 order by 1, 2""")
    rows = connection.execute(statement, {"tenant": tenant}).all()
    by_agent: dict[str, int] = {}
    by_model: dict[str, int] = {}
    for row in rows:
        by_agent[row.source_agent] = by_agent.get(row.source_agent, 0) + row.stories
        by_model[row.model] = by_model.get(row.model, 0) + row.stories
    scored_count = sum(row.scored for row in rows)
    return {
        "total_stories": sum(by_agent.values()),
        "by_source_agent": by_agent,
        "average_confidence_score": round(sum(row.sum or 0 for row in rows) / scored_count, 4)
        if scored_count
        else None,
        "edited": sum(row.edited for row in rows),
        "by_model": by_model,
    }


def build_index(connection: Any, dimensions: int, *, least: int = 1000) -> bool:
    """Build the vector index from about `least` stories on, and again for another length; needs the control role."""
    lift_statement_timeout(connection)
    statement = text("select build_story_index(:dimensions, :least)")
    return bool(connection.execute(statement, {"dimensions": dimensions, "least": least}).scalar_one())
