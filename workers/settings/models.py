"""The configuration file as frozen sections; every default and its meaning stands here or in a section's file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from connectors.documents.options import DecisionRules
from pipeline.search.languages import DEFAULT, LANGUAGES
from workers.settings.chunking import ChunkingSettings
from workers.settings.embedding import EmbeddingCacheSettings, EmbeddingModel, PreviousEmbedding
from workers.settings.embedding_budget import EmbeddingBudgetSettings
from workers.settings.enrichment import EnrichmentSettings
from workers.settings.monitoring import MonitoringSettings
from workers.settings.queue import QueueSettings
from workers.settings.source_list import Sources
from workers.settings.sources import SourceSettings
from workers.settings.values import (
    BrokerUrl,
    DatabaseUrl,
    Expected,
    Flag,
    Folder,
    Language,
    Number,
    OneOf,
    Section,
    Similarity,
    Text,
    Texts,
    Whole,
    Zone,
    refusal,
)

PROVIDERS: Mapping[str, str] = MappingProxyType(
    {"pgvector": "PostgreSQL with pgvector", "memory": "in this process only, for trials and tests"}
)
_FOREIGN_STORES = ("chroma", "pinecone", "faiss", "weaviate")

FUSIONS = ("weighted", "rrf")


def _provider(value: Any) -> str:
    if value in _FOREIGN_STORES:
        raise refusal("pgvector", "Larder stores in PostgreSQL with pgvector: write provider: pgvector")
    return OneOf(PROVIDERS)(value)


Provider = Annotated[str, BeforeValidator(_provider), OneOf(PROVIDERS)]
Fusion = Annotated[str, BeforeValidator(OneOf(FUSIONS)), OneOf(FUSIONS)]


class FeatureFlags(Section):
    """Switches of single abilities."""

    rag_enrichment: Flag = Field(
        default=True, alias="rag_enrichment", description="Answer enrichment requests."
    )


class DatabaseSettings(Section):
    """PostgreSQL with pgvector; without a URL an embedded server is used."""

    url: DatabaseUrl | None = Field(
        default=None,
        examples=["${LARDER_DATABASE_URL}"],
        description="The role that reads and writes texts and vectors. Empty: an embedded server.",
    )
    control_url: DatabaseUrl | None = Field(
        default=None,
        examples=["${LARDER_CONTROL_DATABASE_URL}"],
        description="The role that shares out work of all tenants and sees no text.",
    )
    admin_url: DatabaseUrl | None = Field(
        default=None,
        examples=["${LARDER_ADMIN_DATABASE_URL}"],
        description="The owner of the tables, for migrations only.",
    )
    pool_size: Whole = Field(
        default=2,
        ge=1,
        le=200,
        description="Connections of each kind that a process keeps; it opens up to four more while it needs them.",
    )


class BrokerSettings(Section):
    """Valkey or Redis; without a URL an embedded server is used."""

    url: BrokerUrl | None = Field(
        default=None,
        examples=["${LARDER_BROKER_URL}"],
        description="Where messages wait. Empty: an embedded server.",
    )


class StorageSettings(Section):
    """Where Larder keeps what it knows."""

    database: DatabaseSettings = Field(default_factory=DatabaseSettings, description="PostgreSQL.")
    broker: BrokerSettings = Field(default_factory=BrokerSettings, description="Valkey or Redis.")
    data: Folder = Field(default=Path(".larder"), description="Folder of the embedded servers.")


class EmbeddingSettings(EmbeddingBudgetSettings, EmbeddingModel):
    """The model that turns text into vectors."""

    batch_size: Whole = Field(
        default=32, ge=1, le=2048, description="Texts of one call. Left out: the provider's own."
    )
    cache: EmbeddingCacheSettings = Field(
        default_factory=EmbeddingCacheSettings, description="Vectors kept so that no text is embedded twice."
    )
    previous: PreviousEmbedding | None = Field(
        default=None,
        examples=[{"provider": "minilm"}],
        description="Model of an older search index that is still searched while a new one is filled.",
    )


class WeightSettings(Section):
    """How much each part counts in a score."""

    vector: Number = Field(default=0.5, ge=0, le=10, description="Likeness in meaning.")
    keyword: Number = Field(default=0.3, ge=0, le=10, description="Rare words in common.")
    title: Number = Field(
        default=0.25, ge=0, le=10, description="Rare words in common with title and headings."
    )
    covered: Number = Field(
        default=0.1,
        ge=0,
        le=10,
        description="All words of the question, as of a phrase lifted from the text.",
    )
    centroid: Number = Field(
        default=0.4, ge=0, le=1, description="Share of the whole document in the likeness of meaning."
    )
    outdated: Number = Field(
        default=0.75,
        ge=0,
        le=1,
        description="Share of its score that a replaced decision or abandoned work keeps; 1: all.",
    )


class RerankSettings(Section):
    """A second, closer look at the best results."""

    enabled: Flag = Field(default=False, description="Use a reranker; no model for it is shipped.")
    model: Text = Field(
        default="cross-encoder/ms-marco-MiniLM-L-6-v2", description="Name or folder of the model."
    )
    top_k: Whole = Field(
        default=3, ge=1, le=100, description="Items kept in each section of an enriched context."
    )
    batch_size: Whole = Field(
        default=10, ge=1, le=1000, description="Pairs of question and text in one call."
    )
    candidates: Whole = Field(default=30, ge=1, le=1000, description="Results looked at.")
    seconds: Number = Field(
        default=1, gt=0, le=60, description="Time for one search; a slower look is given up."
    )


class ResultCacheSettings(Section):
    """Answers kept for the same question."""

    enabled: Flag = Field(default=True, description="Keep answers.")
    ttl: Number = Field(default=900, gt=0, description="Seconds an answer is kept.")
    max_entries: Whole = Field(default=100, ge=1, description="Answers kept per tenant.")


class RetrievalSettings(Section):
    """How documents are found."""

    top_k: Whole = Field(default=5, ge=1, le=1000, description="Results of a search that asks for no number.")
    max_top_k: Whole = Field(
        default=50, ge=1, le=1000, description="Most results; a search for more gets this many."
    )
    candidates: Whole = Field(
        default=100, ge=1, le=10_000, description="Chunks taken from each of the two searches."
    )
    min_similarity: Similarity = Field(
        default="auto",
        description="Least likeness of a result found by meaning; auto: the value measured for the model.",
    )
    max_distance: Number | None = Field(
        default=None, ge=0, le=2, description="The same as 1 - minSimilarity; the stricter of the two holds."
    )
    weights: WeightSettings = Field(default_factory=WeightSettings, description="Parts of a score.")
    fusion: Fusion = Field(
        default="weighted",
        description="How both searches become one ranking: weighted, or rrf (by places, not by scores).",
    )
    queries: Whole = Field(
        default=1, ge=1, le=3, description="Ways to ask each question; each costs a search of its own."
    )
    synonyms: Folder | None = Field(
        default=None,
        examples=["./synonyms.yaml"],
        description="File with lists of words that mean the same. Empty: none.",
    )
    exact_below: Whole = Field(
        default=10_000, ge=0, description="Up to this many chunks every vector is compared."
    )
    build_at: Whole = Field(
        default=200_000, ge=0, description="A first load this large builds its index before its end."
    )
    keep_previous_days: Number = Field(
        default=7,
        ge=0,
        description="Days a search index is kept up to date for a rollback after `larder reindex switch`.",
    )
    rerank: RerankSettings = Field(default_factory=RerankSettings, description="A second, closer look.")
    cache: ResultCacheSettings = Field(default_factory=ResultCacheSettings, description="Answers kept.")

    def limit(self, wanted: int | None = None) -> int:
        """How many results a search gets that asked for `wanted`: too many are capped, not refused."""
        return min(wanted or self.top_k, self.max_top_k)


class DecisionSettings(Section):
    """Which documents are decisions; one match is enough."""

    frontmatter_types: Texts = Field(
        default=DecisionRules.types,
        description="Values of `type` in the front matter; a date with a status such as accepted will do as well.",
    )
    paths: Texts = Field(
        default=DecisionRules.paths,
        description="Patterns of paths. In a folder (`/**` at the end) a document needs a further sign of a record: a"
        " number, a status, a heading.",
    )
    tags: Texts = Field(default=DecisionRules.tags, description="Tags or labels.")
    headings: Texts = Field(
        default=DecisionRules.headings,
        description="Headings a document has, all of them; those of MADR and Nygard will do as well.",
    )

    def rules(self) -> DecisionRules:
        """For connectors."""
        return DecisionRules(
            types=self.frontmatter_types, paths=self.paths, tags=self.tags, headings=self.headings
        )


class FlowerSettings(Section):
    """The operators' view of the queue."""

    port: Whole = Field(default=0, ge=0, le=65_535, description="0 is any free port.")
    url_prefix: Annotated[str, AfterValidator(str), Expected("text")] = Field(
        default="", description="Path before all its pages."
    )


class RagSettings(Section):
    """Everything under the root key `rag`."""

    enabled: Flag = Field(default=True, description="Master switch: false answers as if nothing were known.")
    provider: Provider = Field(
        default="pgvector", description="Where chunks are kept: " + ", ".join(PROVIDERS) + "."
    )
    rollout_percentage: Number = Field(
        default=100, ge=0, le=100, description="Share of backlog items that are enriched."
    )
    feature_flags: FeatureFlags = Field(
        default_factory=FeatureFlags, description="Switches of single abilities."
    )
    tenant: Text = Field(
        default="default", description="Id or name of the tenant of everything without its own."
    )
    project: Text = Field(
        default="default",
        description="Id or name of the project of everything without its own. Step 4 finds the documents of the "
        "project that a request names, else of this one, and those of `default`, which all projects of the tenant "
        "share; `shared` is another name for it.",
    )
    timezone: Zone = Field(default="UTC", description="Time zone of the schedules.")
    language: Language = Field(
        default=DEFAULT,
        description=f"In which the keyword search stems words: {', '.join(LANGUAGES)} (none).",
    )
    storage: StorageSettings = Field(default_factory=StorageSettings, description="Where things are kept.")
    embedding: EmbeddingSettings = Field(default_factory=EmbeddingSettings, description="Text to vectors.")
    chunking: ChunkingSettings = Field(default_factory=ChunkingSettings, description="Documents to chunks.")
    retrieval: RetrievalSettings = Field(
        default_factory=RetrievalSettings, description="How documents are found."
    )
    enrichment: EnrichmentSettings = Field(
        default_factory=EnrichmentSettings, description="How Step 4 is answered."
    )
    decisions: DecisionSettings = Field(
        default_factory=DecisionSettings, description="What counts as a decision."
    )
    sources: Sources = Field(default=(), description="What Larder reads.")
    queue: QueueSettings = Field(default_factory=QueueSettings, description="How work is shared out.")
    monitoring: MonitoringSettings = Field(
        default_factory=MonitoringSettings, description="What Larder tells about itself."
    )
    flower: FlowerSettings = Field(default_factory=FlowerSettings, description="The view of the queue.")

    @property
    def languages(self) -> tuple[str, ...]:
        """All that are in use, each once, the file's first."""
        named = (source.language for source in self.sources)
        return tuple(dict.fromkeys([self.language, *(name for name in named if name)]))

    def chunking_of(self, source: SourceSettings) -> ChunkingSettings:
        """How documents of a source are cut: its own way, else its type's strategy with the global sizes."""
        if source.chunking is not None:
            return source.chunking
        if source.default_strategy is None:
            return self.chunking
        return self.chunking.model_copy(update={"strategy": source.default_strategy})
