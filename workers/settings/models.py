"""The configuration file as frozen sections; every default and its meaning stands here or in a section's file."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from connectors.documents import redaction
from connectors.documents.options import USUAL, DecisionRules, LevelRule, Redacted
from connectors.sections import (
    ConfigSection,
    Expected,
    Flag,
    Folder,
    Mismatch,
    Number,
    OneOf,
    Secret,
    Text,
    Texts,
    WebUrl,
    Whole,
    Zone,
    refusal,
    refuse,
)
from pipeline.documents import DEFAULT_LANGUAGE, LANGUAGE_KEY, LANGUAGES
from pipeline.errors import ConfigurationError
from workers.settings.api import ApiSettings, AuthSettings
from workers.settings.chunking import ChunkingSettings
from workers.settings.embedding import EmbeddingModel, EmbeddingSettings, StoryEmbedding
from workers.settings.monitoring import MonitoringSettings
from workers.settings.queue import QueueSettings
from workers.settings.sources import Sources, SourceSettings
from workers.settings.stores import PROVIDERS, CloudStoreSettings, LocalStoreSettings
from workers.settings.values import BrokerUrl, DatabaseUrl, Language, Similarity, ValkeyUrl


class FeatureFlags(ConfigSection):
    """Switches of single abilities."""

    rag_enrichment: Flag = Field(default=True, alias="rag_enrichment")
    """Answer enrichment requests."""


class DatabaseSettings(ConfigSection):
    """PostgreSQL with pgvector; without a URL an embedded server is used."""

    url: DatabaseUrl | None = Field(default=None, examples=["${LARDER_DATABASE_URL}"])
    """The role that reads and writes texts and vectors. Empty: an embedded server."""
    control_url: DatabaseUrl | None = Field(default=None, examples=["${LARDER_CONTROL_DATABASE_URL}"])
    """The role that shares out work of all tenants and sees no text."""
    admin_url: DatabaseUrl | None = Field(default=None, examples=["${LARDER_ADMIN_DATABASE_URL}"])
    """The owner of the tables, for migrations only."""
    pool_size: Whole = Field(default=2, ge=1, le=200)
    """Connections of each kind that a process has, and four more; each is opened when all others are in use."""


class BrokerSettings(ConfigSection):
    """Valkey or Redis, or RabbitMQ with a Valkey beside it; without a URL an embedded Valkey is used."""

    url: BrokerUrl | None = Field(default=None, examples=["${LARDER_BROKER_URL}"])
    """Broker in which messages wait. Empty: an embedded server."""
    valkey_url: ValkeyUrl | None = Field(default=None, examples=["${LARDER_VALKEY_URL}"])
    """The Valkey that keeps limits where `url` is a RabbitMQ. Empty: that of `url`."""

    @model_validator(mode="after")
    def _keeps_limits(self) -> Self:
        if self.url and not self.valkey_url and self.url.get_secret_value().startswith("amqp"):
            fix = "or set LARDER_VALKEY_URL: limits of services are kept there"
            expected = "the address of a Valkey or Redis beside RabbitMQ"
            refuse(self, [Mismatch(key="valkey_url", expected=expected, fix=fix)])
        return self


class StorageSettings(ConfigSection):
    """Database, broker, data folder, and vector stores beside PostgreSQL (docs/stores.md)."""

    database: DatabaseSettings = DatabaseSettings()
    """PostgreSQL."""
    broker: BrokerSettings = BrokerSettings()
    """Valkey or Redis, or RabbitMQ."""
    data: Folder = Path(".larder")
    """Folder of the embedded servers."""
    local: LocalStoreSettings | None = Field(
        default=None, examples=[{"type": "chroma", "path": "./vector-db", "collection": "backlog_chef"}]
    )
    """A vector store in a folder. Empty: none, unless `provider` names one."""
    cloud: CloudStoreSettings | None = Field(
        default=None,
        examples=[{"type": "pinecone", "apiKey": "${PINECONE_API_KEY}", "index": "backlog-chef"}],
    )
    """A vector store that is a service or a server. Empty: none."""

    @model_validator(mode="after")
    def _have_two_names(self) -> Self:
        if self.local and self.cloud and self.local.type == self.cloud.type:
            refuse(self, [Mismatch(key="cloud", expected="another type of store than local")])
        return self


class WeightSettings(ConfigSection):
    """Weights of the parts of a score."""

    vector: Number = Field(default=0.6, ge=0, le=10)
    """Similarity in meaning."""
    keyword: Number = Field(default=0.3, ge=0, le=10)
    """Rare words in common."""
    title: Number = Field(default=0.25, ge=0, le=10)
    """Rare words in common with title and headings."""


class RerankSettings(ConfigSection):
    """A second, closer look at the best results."""

    enabled: Flag = False
    """Use a reranker; no model for it is shipped."""
    model: Text = "cross-encoder/ms-marco-MiniLM-L-6-v2"
    """Name or folder of the model."""
    top_k: Whole = Field(default=3, ge=1, le=100)
    """Items kept in each section of an enriched context."""
    candidates: Whole = Field(default=30, ge=1, le=1000)
    """Results looked at."""
    seconds: Number = Field(default=1, gt=0, le=60)
    """Time for one search; a slower look is given up."""


class ResultCacheSettings(ConfigSection):
    """Memory of a process for searches: vectors of questions, and answers for when the database is away."""

    enabled: Flag = True
    """Keep answers."""
    ttl: Number = Field(default=900, gt=0)
    """Seconds an answer is kept."""
    max_entries: Whole = Field(default=100, ge=1)
    """Answers kept per tenant."""


class RetrievalSettings(ConfigSection):
    """Search: number of results, thresholds, weights, index and reranking."""

    build_at: ClassVar[int] = 200_000
    """Chunks of a first load from which its index is built before its end."""
    top_k: Whole = Field(default=5, ge=1, le=1000)
    """Results of a search that asks for no number."""
    max_top_k: Whole = Field(default=50, ge=1, le=1000)
    """Most results; a search for more gets this many."""
    candidates: Whole = Field(default=100, ge=1, le=10_000)
    """Chunks taken from each of the two searches."""
    min_similarity: Similarity = "auto"
    """Least similarity of a result found by meaning; auto: the value measured for the model."""
    max_distance: Number | None = Field(default=None, ge=0, le=2)
    """Most distance of a result, 1 - minSimilarity; the stricter of the two holds."""
    weights: WeightSettings = WeightSettings()
    """Parts of a score."""
    synonyms: Folder | None = Field(default=None, examples=["./synonyms.yaml"])
    """File with lists of words that mean the same. Empty: none."""
    exact_below: Whole = Field(default=10_000, ge=0)
    """Up to this many chunks every vector is compared."""
    quantization: Annotated[
        Literal["halfvec", "bit"],
        BeforeValidator(lambda value: "halfvec" if value == "none" else value),
        OneOf(("none", "halfvec", "bit")),
    ] = "halfvec"
    """What the vector index of PostgreSQL holds: none or halfvec, vectors as they are stored, with 16 bits for each
    number; or bit, for a third of the memory (docs/stores.md)."""
    keep_previous_days: Number = Field(default=7, ge=0)
    """Days a search index is kept up to date for a rollback after `larder reindex switch`."""
    rerank: RerankSettings = RerankSettings()
    """A second, closer look."""
    cache: ResultCacheSettings = ResultCacheSettings()
    """Answers kept."""


class OAuthSettings(ConfigSection):
    """Login to Flower by a provider of OAuth 2, instead of one name and password."""

    provider: Annotated[str, OneOf(("google", "github", "gitlab", "okta"))] | None = None
    """google, github, gitlab, okta. Empty: one name and password."""
    server: WebUrl | None = Field(default=None, examples=["https://example.okta.com/oauth2/default"])
    """Address of the provider: of Okta with the path before `/v1`, or of your own GitHub or GitLab. Empty: the address
    that all use."""
    key: Text | None = Field(default=None, examples=["0oa1b2c3"])
    """The id under which it knows Flower."""
    secret: Secret | None = Field(default=None, examples=["${FLOWER_OAUTH_SECRET}"])
    """Secret that belongs to this id."""
    redirect_url: WebUrl | None = Field(default=None, examples=["https://flower.example.com/login"])
    """Address to which it sends users back: Flower's own, and `/login`."""
    emails: Texts = Field(default=(), examples=[["ann@example.com", "bob@example.com"]])
    """Addresses to let in; `*@example.com` alone lets all of a domain in."""

    @model_validator(mode="after")
    def _are_all_told(self) -> Self:
        required = {
            "key": "the id under which the provider knows Flower",
            "secret": "the secret that the provider gave",
            "redirect_url": "Flower's own address, and /login",
            "emails": "a list of addresses",
        }
        if self.provider == "okta":
            required["server"] = "the address of your Okta"
        mismatches = [
            Mismatch(key=key, expected=expected)
            for key, expected in required.items()
            if not getattr(self, key)
        ]
        if any("*" in one for one in self.emails) and not re.fullmatch(r"\*@[^*@|]+", "|".join(self.emails)):
            mismatches.append(Mismatch(key="emails", expected="addresses, or one like *@example.com"))
        refuse(self, mismatches if self.provider else [])
        return self


class FlowerSettings(ConfigSection):
    """The operators' view of the queue."""

    port: Whole = Field(default=0, ge=0, le=65_535)
    """0 is any free port, and the same at the next start."""
    url_prefix: Annotated[str, AfterValidator(str), Expected("text")] = ""
    """Path before all its pages."""
    hosts: Texts = Field(default=(), examples=[["flower.example.com"]])
    """Names by which it is asked, as behind a proxy, besides localhost and the address it listens on."""
    oauth: OAuthSettings = OAuthSettings()
    """Login by a provider; a scraper cannot log in then."""
    unprotected: Annotated[
        tuple[Literal["metrics", "healthcheck"], ...], Expected("a list of metrics and healthcheck")
    ] = ()
    """Pages that anybody may read who reaches it: `metrics` names queues, tasks and workers, `healthcheck` says OK."""


class EnrichmentSettings(ConfigSection):
    """Answers of Step 4."""

    max_attempts: ClassVar[int] = 3
    """Failures until a request has failed."""
    results_kept_hours: Number = Field(default=24, gt=0, le=8760)
    """Hours an answer is kept; the same question gets it again."""
    deadline_seconds: Number = Field(default=120, gt=0, le=86_400)
    """Seconds a caller waits who names no time of its own."""
    lease_seconds: Number = Field(default=15, ge=1, le=3600)
    """Seconds that a silent worker keeps a request."""
    resend_seconds: Number = Field(default=15, ge=1, le=3600)
    """Seconds after which a request whose message was not heard is sent again."""


def _unread(names: tuple[str, ...]) -> tuple[str, ...]:
    """Metadata that Larder itself does not have to read."""
    if {"acl", LANGUAGE_KEY, "source_path"} & {*names}:
        raise refusal("a list of texts", f"acl, {LANGUAGE_KEY} and source_path must stay readable")
    return names


def _keys(keys: SecretStr) -> SecretStr:
    """Keys that encryption takes."""
    from pipeline.database.encryption import (
        Keyring,
    )  # with the database's libraries, which most files do not need

    try:
        _ = Keyring(keys=keys.get_secret_value()).named
    except ConfigurationError as error:
        raise refusal("keys divided by commas", error.fix) from None
    return keys


class SecuritySettings(ConfigSection):
    """Security levels, hosts and encryption (docs/security.md), and the audit (docs/operations.md)."""

    levels: tuple[LevelRule, ...] = ()
    """Rules of which the first that fits gives a document its security level. Without one it has that of its
    source, and in front matter a document may ask for a higher one. A change holds from the next sync."""
    hosts: Texts = Field(default=(), examples=[["*.atlassian.net", "api.openai.com"]])
    """Hosts at which sources, models, webhooks, public keys and a collector of traces may be asked for;
    `*.example.com` is all below it. Another one in this file is an error. Empty: those that the file names."""
    audit: Flag = True
    """Note searches in the audit; what changes something is noted in any case."""
    audit_days: Whole = Field(default=400, ge=30, le=36_500)
    """Days an entry of the audit is kept."""
    encrypt: Annotated[Texts, AfterValidator(_unread)] = Field(
        default=(), examples=[["author", "assigned_to"]]
    )
    """Metadata that are stored encrypted; nobody can search by them, and operators alone see them."""
    encryption_keys: Annotated[Secret, AfterValidator(_keys)] | None = Field(
        default=None, examples=["${LARDER_ENCRYPTION_KEYS}"]
    )
    """Keys that `larder keys new` made, divided by commas: the first one encrypts, all of them open. Empty: with the
    embedded database one is made."""


class StorySettings(ConfigSection):
    """The memory of user stories, from which generators get examples."""

    embedding: StoryEmbedding | None = Field(default=None, examples=[{"model": "gemini-embedding-001"}])
    """The model of their vectors. Empty: the one of everything else."""
    retrieval_k: Whole = Field(default=5, ge=1, le=100)
    """Stories taken from the store for one prompt."""
    similarity_threshold: Similarity = "auto"
    """Least similarity of an example; auto: 0.70, or what was measured for the model."""
    max_examples: Whole = Field(default=3, ge=1, le=100)
    """Examples in a prompt."""
    min_stories: Whole = Field(default=10, ge=0)
    """With fewer stories there are no examples."""
    min_confidence: Number = Field(default=0.8, ge=0, le=1)
    """Least confidence of an example that tells one."""
    redact: Redacted = USUAL
    """Personal data that are taken out of stories before they are embedded or stored, as of the documents of a source;
    names are in none, for a story tells none. Secrets always are."""

    @property
    def redactor(self) -> Callable[[str], str]:
        """Function that redacts a text by these rules."""
        return partial(redaction.redact, kinds=self.redact)


class Configuration(ConfigSection):
    """Everything under the root key `rag`."""

    enabled: Flag = True
    """Master switch: false answers as if nothing were known."""
    provider: Annotated[str, OneOf(PROVIDERS)] = "pgvector"
    """Where the nearest chunks are searched: in PostgreSQL (pgvector), or in a vector store beside it, which is filled
    from PostgreSQL and can be thrown away: chroma, faiss, pinecone, weaviate, qdrant (docs/stores.md)."""
    rollout_percentage: Number = Field(default=100, ge=0, le=100)
    """Share of backlog items that are enriched."""
    feature_flags: FeatureFlags = FeatureFlags()
    """Switches of single abilities."""
    tenant: Text = "default"
    """Id or name of the tenant of everything without its own."""
    project: Text = "default"
    """Id or name of the project of everything without its own. Step 4 finds the documents of the project
    that a request names, else of this one, and those of `default`, which all projects of the tenant
    share; `shared` is another name for it."""
    timezone: Zone = "UTC"
    """Time zone of the schedules."""
    language: Language = Field(
        default=DEFAULT_LANGUAGE,
        description=f"Language by which the keyword search stems words: {', '.join(LANGUAGES)} (none).",
    )
    storage: StorageSettings = StorageSettings()
    """Database, broker and data folder."""
    embedding: EmbeddingSettings = EmbeddingSettings()
    """Text to vectors."""
    chunking: ChunkingSettings = ChunkingSettings()
    """Documents to chunks."""
    retrieval: RetrievalSettings = RetrievalSettings()
    """Search of documents."""
    enrichment: EnrichmentSettings = EnrichmentSettings()
    """Answers of Step 4."""
    stories: StorySettings = StorySettings()
    """The memory of user stories."""
    decisions: DecisionRules = DecisionRules()
    """Rules for what counts as a decision."""
    security: SecuritySettings = SecuritySettings()
    """Security levels, hosts, encryption and audit."""
    sources: Sources = ()
    """Sources that are indexed."""
    queue: QueueSettings = QueueSettings()
    """Leases, limits and retries of work."""
    monitoring: MonitoringSettings = MonitoringSettings()
    """Metrics, logs, health, alerts and traces."""
    flower: FlowerSettings = FlowerSettings()
    """The view of the queue."""
    api: ApiSettings = ApiSettings()
    """The HTTP API."""
    auth: AuthSettings = AuthSettings()
    """Tokens that let a caller in."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages that are in use, each once, the file's first."""
        named = (source.language for source in self.sources)
        return tuple(dict.fromkeys([self.language, *(name for name in named if name)]))

    @property
    def story_embedding(self) -> EmbeddingModel:
        """The model of user stories."""
        return self.stories.embedding or self.embedding

    def chunking_of(self, source: SourceSettings) -> ChunkingSettings:
        """Chunking of a source's documents: its own, else its type's strategy with the global sizes."""
        if source.chunking is not None:
            return source.chunking
        if source.strategy is None:
            return self.chunking
        return self.chunking.model_copy(update={"strategy": source.strategy})


class ConfigurationFile(ConfigSection):
    """The configuration file: all of it stands under the root key `rag`.

    It is the file given with `--config`, else the one `LARDER_CONFIG` names, else `./larder.yaml`; without a file
    all defaults hold. Relative paths start at the folder of the file. Keys are written in camelCase; snake_case is
    read too. An unknown key, a key written twice or a value of the wrong type is an error.

    ## Variables in values

    | written | becomes |
    |---|---|
    | `${NAME}` | the value of the variable; an error if it is not set |
    | `${NAME:-default}` | the default if the variable is not set or empty |
    | `$${` | `${` as text |

    Variables are replaced after the YAML is read, so a value may hold any character. A value that is one variable
    and nothing else gets the type its key asks for (`false`, `5`), becomes a list at its commas where a list is
    asked for, and counts as left out if it is empty; among metadata of your own it is text. What a variable holds is
    not searched for variables. Where `NAME` is not set and `NAME_FILE` names a file, the value is read from that
    file, as containers mount secrets.
    """

    rag: Configuration
    """Everything."""
