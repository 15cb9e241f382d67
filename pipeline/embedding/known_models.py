"""What is known of embedding providers and their models before one is opened, and the names of their vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

from pipeline.embedding import EmbeddingOptions
from pipeline.errors import ConfigurationError, EmbedderRefused


class KeyNeed(Enum):
    """When a provider asks for a key."""

    NEVER = "never"
    PUBLIC = "at its public address"
    """A server of one's own behind `baseUrl` may do without."""
    ALWAYS = "always"


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """One model, as its card describes it."""

    dimensions: int
    """Length of its vectors unless another is asked for."""
    tokens: int
    """How much of a text it reads, its own marks included."""
    shortest: int | None = None
    """The provider gives shorter vectors on request, down to this length; None: only the native one."""
    longest: int | None = None
    """None: `dimensions`."""
    document_prefix: str = ""
    query_prefix: str = ""
    english: bool = False
    """It cuts texts into the same tokens as the shipped MiniLM, which can therefore count them."""

    def gives(self, dimensions: int) -> bool:
        """Whether its vectors can have this length."""
        if self.shortest is None:
            return dimensions == self.dimensions
        return self.shortest <= dimensions <= (self.longest or self.dimensions)

    @property
    def lengths(self) -> str:
        """The lengths it gives, in words."""
        if self.shortest is None:
            return str(self.dimensions)
        return f"{self.shortest} to {self.longest or self.dimensions}"


@dataclass(frozen=True, kw_only=True)
class ProviderFacts:
    """One provider, as the configuration and the embedders need it."""

    title: str
    """Its name in messages."""
    about: str
    """One line for the reference of the configuration."""
    model: str
    """The model of a configuration that names none."""
    models: Mapping[str, ModelFacts] = field(default_factory=dict)
    batch: int = 32
    """Texts of one call unless the configuration says otherwise."""
    most_texts: int = 2048
    """More texts are refused in one call."""
    base_url: str = ""
    """Its public address; empty: it runs in this process."""
    timeout: float = 30.0
    """Seconds one call may take unless the configuration says otherwise."""
    needs_key: KeyNeed = KeyNeed.NEVER
    variable: str = ""
    """The variable that holds its key by custom."""
    tagged: bool = False
    """Model names may end with `:tag`, and `:latest` is what a bare name means."""

    @property
    def remote(self) -> bool:
        """Whether texts are sent to it over the network."""
        return bool(self.base_url)

    def wants_key(self, base_url: str) -> bool:
        """Whether it must be given a key at this address; empty: the public one."""
        return self.needs_key is KeyNeed.ALWAYS or (self.needs_key is KeyNeed.PUBLIC and not base_url)

    def named(self, model: str) -> str:
        """The model's full name: the default for an empty one, and with its tag where models have tags."""
        name = model or self.model
        return f"{name}:latest" if self.tagged and ":" not in name else name

    def of(self, model: str) -> ModelFacts | None:
        """What is known of a model; tags are variants of one model."""
        name = model or self.model
        return self.models.get(name.partition(":")[0] if self.tagged else name)

    def dimensions_of(self, model: str, asked: int | None) -> int | None:
        """The length of the vectors; None for a model that is not known here unless the configuration says it."""
        known = self.of(model)
        return asked or (known.dimensions if known else None)


_SEARCH = "Represent this sentence for searching relevant passages: "
_MINILM = ModelFacts(dimensions=384, tokens=256, english=True)
_BGE_M3 = ModelFacts(dimensions=1024, tokens=8192)
_MXBAI = ModelFacts(dimensions=1024, tokens=512, query_prefix=_SEARCH, english=True)


def _e5(dimensions: int) -> ModelFacts:
    return ModelFacts(dimensions=dimensions, tokens=512, document_prefix="passage: ", query_prefix="query: ")


_NOMIC = ModelFacts(
    dimensions=768,
    tokens=8192,
    document_prefix="search_document: ",
    query_prefix="search_query: ",
    english=True,
)


def _bge(dimensions: int) -> ModelFacts:
    return ModelFacts(dimensions=dimensions, tokens=512, query_prefix=_SEARCH, english=True)


_OPEN_MODELS: Mapping[str, ModelFacts] = {
    "sentence-transformers/all-MiniLM-L6-v2": _MINILM,
    "sentence-transformers/all-MiniLM-L12-v2": ModelFacts(dimensions=384, tokens=128, english=True),
    "sentence-transformers/all-mpnet-base-v2": ModelFacts(dimensions=768, tokens=384),
    "sentence-transformers/multi-qa-mpnet-base-dot-v1": ModelFacts(dimensions=768, tokens=512),
    "BAAI/bge-m3": _BGE_M3,
    "BAAI/bge-small-en-v1.5": _bge(384),
    "BAAI/bge-base-en-v1.5": _bge(768),
    "BAAI/bge-large-en-v1.5": _bge(1024),
    "intfloat/multilingual-e5-small": _e5(384),
    "intfloat/multilingual-e5-base": _e5(768),
    "intfloat/multilingual-e5-large": _e5(1024),
    "mixedbread-ai/mxbai-embed-large-v1": _MXBAI,
    "nomic-ai/nomic-embed-text-v1.5": _NOMIC,
    "thenlper/gte-large": ModelFacts(dimensions=1024, tokens=512, english=True),
}
"""By their names on the hub; the prefixes are those that the models were trained with."""

KNOWN: Mapping[str, ProviderFacts] = MappingProxyType(
    {
        "minilm": ProviderFacts(
            title="MiniLM",
            about="all-MiniLM-L6-v2 on this machine",
            model="all-MiniLM-L6-v2",
            models={"all-MiniLM-L6-v2": _MINILM, "sentence-transformers/all-MiniLM-L6-v2": _MINILM},
        ),
        "hashing": ProviderFacts(
            title="hashing",
            about="counted words, free and without meaning",
            model="hashing",
            models={"hashing": ModelFacts(dimensions=384, tokens=8192, shortest=1, longest=4000)},
        ),
        "gemini": ProviderFacts(
            title="Gemini",
            about="Google's embedding service",
            model="gemini-embedding-001",
            models={
                "gemini-embedding-001": ModelFacts(dimensions=768, tokens=2048, shortest=128, longest=3072),
                "gemini-embedding-2": ModelFacts(
                    dimensions=768,
                    tokens=8192,
                    shortest=128,
                    longest=3072,
                    document_prefix="title: none | text: ",
                    query_prefix="task: search result | query: ",
                ),
            },
            batch=100,
            most_texts=100,
            base_url="https://generativelanguage.googleapis.com",
            needs_key=KeyNeed.ALWAYS,
            variable="GEMINI_API_KEY",
        ),
        "openai": ProviderFacts(
            title="OpenAI",
            about="OpenAI, or any server that speaks its language",
            model="text-embedding-3-small",
            models={
                "text-embedding-3-small": ModelFacts(dimensions=1536, tokens=8192, shortest=1),
                "text-embedding-3-large": ModelFacts(dimensions=3072, tokens=8192, shortest=1),
                "text-embedding-ada-002": ModelFacts(dimensions=1536, tokens=8192),
            },
            batch=256,
            base_url="https://api.openai.com/v1",
            needs_key=KeyNeed.PUBLIC,
            variable="OPENAI_API_KEY",
        ),
        "ollama": ProviderFacts(
            title="Ollama",
            about="models served by Ollama",
            model="nomic-embed-text",
            models={
                "nomic-embed-text": _NOMIC,
                "mxbai-embed-large": _MXBAI,
                "all-minilm": _MINILM,
                "bge-m3": _BGE_M3,
            },
            most_texts=512,
            base_url="http://localhost:11434",
            timeout=60.0,
            tagged=True,
        ),
        "huggingface": ProviderFacts(
            title="HuggingFace",
            about="the Inference API of HuggingFace",
            model="sentence-transformers/all-MiniLM-L6-v2",
            models=_OPEN_MODELS,
            most_texts=32,
            base_url="https://router.huggingface.co/hf-inference",
            timeout=60.0,
            needs_key=KeyNeed.PUBLIC,
            variable="HF_TOKEN",
        ),
        "transformers": ProviderFacts(
            title="sentence-transformers",
            about="any model of sentence-transformers on this machine",
            model="sentence-transformers/all-MiniLM-L6-v2",
            models=_OPEN_MODELS,
        ),
    }
)
"""Name in the configuration -> what is known of the provider."""


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A key of the section `embedding` that does not fit the provider or the model."""

    key: str
    """In snake_case."""
    expected: str
    fix: str = ""

    def __str__(self) -> str:
        first, *others = self.key.split("_")
        written = first + "".join(word.capitalize() for word in others)
        return f"embedding.{written} does not fit: expected is {self.expected}"


def misfits(options: EmbeddingOptions) -> list[Misfit]:
    """All of provider, model, dimensions, batch size and key that cannot work together."""
    facts = KNOWN[options.provider]
    known = facts.of(options.model)
    name = options.model or facts.model
    wrong = []
    if options.dimensions is None:
        if known is None:
            fix = f"known without it are {', '.join(facts.models)}"
            wrong.append(Misfit(key="dimensions", expected=f"the length of the vectors of {name}", fix=fix))
    elif known is not None and not known.gives(options.dimensions):
        wrong.append(Misfit(key="dimensions", expected=f"{known.lengths}, which {name} gives"))
    if options.batch_size is not None and options.batch_size > facts.most_texts:
        expected = f"at most {facts.most_texts}, the most texts that {facts.title} takes in one call"
        wrong.append(Misfit(key="batch_size", expected=expected))
    if facts.wants_key(options.base_url) and not options.api_key.strip():
        fix = f"set the variable {facts.variable}, or write apiKey: ${{NAME}} with the variable that holds it"
        wrong.append(Misfit(key="api_key", expected=f"the key of {facts.title}", fix=fix))
    return wrong


def refuse_misfits(options: EmbeddingOptions) -> None:
    """Nothing, if the options fit each other.

    Raises:
        ConfigurationError: the first of `misfits`.
    """
    for wrong in misfits(options):
        raise ConfigurationError(str(wrong), fix=wrong.fix)


_FREE = ("minilm", "hashing")
_PARTS = "+parts"
"""Ends a key of minilm whose longer texts are embedded in parts; all others are always embedded so."""


def vector_key(options: EmbeddingOptions) -> str:
    """The name of the options' vectors: cache key, model of a search index, part of the pipeline's version.

    It holds the provider, because one model gives slightly different vectors elsewhere, and the dimensions
    where they are not the model's usual ones. The two free embedders keep the names they always had.
    """
    facts = KNOWN[options.provider]
    dimensions = facts.dimensions_of(options.model, options.dimensions)
    if options.provider == "hashing":
        return f"hashing-{dimensions}"
    if options.provider == "minilm":
        folder = options.model_path
        name = f"{folder.name}-{dimensions}" if folder else options.model or facts.model
        return f"{name}{_PARTS}" if options.oversize == "split" else name
    known = facts.of(options.model)
    usual = known is None or dimensions == known.dimensions
    return f"{options.provider}/{facts.named(options.model)}" + ("" if usual else f"-{dimensions}")


def model_of(key: str) -> str:
    """The model's name inside a key, as its maker calls it: without provider, and without a shorter length."""
    provider, slash, name = key.partition("/")
    if not slash or provider not in KNOWN:
        return key.removesuffix(_PARTS)
    short, _, length = name.rpartition("-")
    known = KNOWN[provider].of(short)
    return short if known is not None and length.isdecimal() and known.gives(int(length)) else name


def options_for(
    described: Sequence[EmbeddingOptions], *, provider: str, key: str, dimensions: int
) -> EmbeddingOptions:
    """How to open the model behind a key, from the options that the configuration describes.

    Another model of a described provider is opened with that one's address and key. The two free embedders need
    no description.

    Raises:
        EmbedderRefused: nothing described leads to this model.
    """
    if provider in _FREE:
        short = model_of(key)
        others = [
            EmbeddingOptions(
                provider=provider,
                model=short if short in KNOWN[provider].models else "",
                dimensions=dimensions,
                oversize="split" if key.endswith(_PARTS) else None,
            )
        ]
    else:
        others = [replace(o, model=model_of(key), dimensions=dimensions) for o in described]
    for options in (*described, *others):
        if options.provider == provider and vector_key(options) == key:
            return options
    raise EmbedderRefused(
        f"the search index was made with {key} of the provider {provider}, which the configuration does not describe",
        fix="describe it under embedding.previous: provider, model, and its apiKey, baseUrl or modelPath",
    )
