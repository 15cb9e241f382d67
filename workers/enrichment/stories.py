"""The memory of user stories as the configuration asks for it, and its jobs in the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from pipeline.documents import Json
from pipeline.embedding import Embedder
from pipeline.embedding.calls import embed_query_checked
from pipeline.embedding.known_models import model_of, vector_key
from pipeline.errors import ConfigurationError
from pipeline.search.records import MEASURED_THRESHOLDS
from pipeline.stories import StoryMemory, StoryOptions, memory, use
from pipeline.stories.examples import retrieve_similar_examples, store_stories
from pipeline.stories.store import search_similar_stories, stories_of_other_models
from pipeline.stories.story import Story
from workers.embedded.locating import open_runtime
from workers.enrichment.job import run
from workers.enrichment.story_jobs import BATCH
from workers.runtime import Runtime
from workers.settings import Settings

ANSWER_TIMEOUT = 5.0
"""Seconds of silence after which the database counts as gone to a generator."""


def memory_of(
    parts: Runtime, tenant: UUID, tenant_name: str = "", *, longest_wait: float = 2.0
) -> StoryMemory:
    """The stories of a tenant; `longest_wait` is how many seconds a busy model is waited for on the spot."""
    s, options = parts.rag.stories, parts.options_of(parts.rag.story_embedding)
    model = vector_key(options)

    def open_embedder() -> Embedder:
        return parts.allowance.within(tenant, parts.embedder_with(options), model)

    auto = MEASURED_THRESHOLDS.get(model_of(model), memory.THRESHOLD)
    return StoryMemory(
        database=parts.database,
        tenant=tenant,
        tenant_name=tenant_name,
        open_embedder=open_embedder,
        model=model,
        dimensions=parts.rag.story_embedding.dimensions,
        longest_wait=longest_wait,
        options=StoryOptions(
            enabled=parts.rag.enabled,
            k=s.retrieval_k,
            threshold=auto if s.similarity_threshold == "auto" else s.similarity_threshold,
            max_examples=s.max_examples,
            min_stories=s.min_stories,
            min_confidence=s.min_confidence,
        ),
    )


def connect(settings: Settings) -> StoryMemory:
    """Let the functions of `pipeline.stories` work on this installation's stories, in the whole process.

    Nothing is connected to yet, unless embedded servers have to be started.
    """
    parts = open_runtime(settings)
    parts.answer_timeout = ANSWER_TIMEOUT
    made = memory_of(parts, settings.tenant_id, settings.tenant, longest_wait=memory.LONGEST_WAIT)
    use(made)
    return made


@dataclass(frozen=True, kw_only=True)
class StoryQuery:
    """What is looked for; what is None is configured."""

    query: str
    k: int | None = None
    threshold: float | None = None
    tags: Sequence[str] | None = None
    examples: bool = False
    """For a prompt: ranked and guarded as `retrieve_similar_examples` does."""


def find(stories: StoryMemory, asked: StoryQuery) -> list[Json]:
    """Similar stories, nearest first; none if the installation is switched off.

    Raises:
        EmbeddingError: the question has no vector.
        StoreUnavailable: the database does not answer.
    """
    options = stories.options
    k = options.k if asked.k is None else asked.k
    threshold = options.threshold if asked.threshold is None else asked.threshold
    if asked.examples:
        return retrieve_similar_examples(asked.query, k, threshold, asked.tags, memory=stories)
    if not options.enabled:
        return []
    vector = embed_query_checked(stories.open_embedder(), asked.query).tolist()
    return search_similar_stories(vector, k, threshold, asked.tags, memory=stories)


def run_store(parts: Runtime, tenant: UUID, job_id: UUID) -> None:
    """Do a job of `story_jobs.requests_of`; done twice it stores once."""

    def store(request: Json) -> Json:
        stories = memory_of(parts, tenant)
        if not stories.options.enabled:
            raise ConfigurationError("Larder is switched off", fix="set rag.enabled to true")
        given = request["stories"]
        if given is None:
            with stories.connected() as connection:
                given = stories_of_other_models(connection, stories, most=BATCH)
        done = store_stories(stories, [Story.read(one) for one in given])
        numbers = request.get("numbers") or range(1, len(given) + 1)
        refused = [(numbers[number - 1], why) for number, why in done.refused]
        return {"stored": done.stored, "skipped": done.skipped, "refused": refused}

    run(parts, tenant, job_id, store)


def run_search(parts: Runtime, tenant: UUID, job_id: UUID) -> None:
    """Do a job that asks a `StoryQuery`."""
    run(parts, tenant, job_id, lambda asked: {"stories": find(memory_of(parts, tenant), StoryQuery(**asked))})
