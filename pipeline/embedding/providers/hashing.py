"""A fast embedder that counts words: for tests, drills and trials without a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.embedding import Embedder, EmbedderLimits, EmbeddingOptions, Vectors
from pipeline.errors import ConfigurationError

DIMENSIONS = 384
BATCH_SIZE = 4096
_BLOCK = 256
"""Texts processed at once: their words and counters fit into the processor's cache."""
_PLACES = 3
"""Dimensions that each word contributes to: with one, two colliding words could not be distinguished."""

# ASCII letters and digits make words, and so does every byte of a non-ASCII character in UTF-8.
_IN_WORD = np.array([not chr(byte).isascii() or chr(byte).isalnum() for byte in range(256)])
_KEEP = np.array([(1 << 8 * length) - 1 for length in range(9)], dtype=np.uint64)
"""Mask for the first 0 to 8 bytes of a little-endian number."""
# Whole numbers keep every sum exact, so that the last bit is the same on every machine.
_WEIGHTS = np.array([1.0, 1.0, 1.0, 2.0, 4.0, 5.0, 6.0, 6.0, 6.0])
"""Weight of a word by its length, up to 8: short words carry little meaning."""
_PRIME_HEAD, _PRIME_TAIL, _PRIME_LENGTH = (
    np.uint64(n) for n in (0xD6E8FEB86659FD93, 0xA0761D6478BD642F, 0xE7037ED1A0B428DB)
)


def open_provider(options: EmbeddingOptions) -> Embedder:
    """Create the embedder, which needs no model."""
    return HashingEmbedder(options.dimensions or DIMENSIONS, batch_size=options.batch_size or BATCH_SIZE)


class HashingEmbedder:
    """Embedder that gives close vectors to texts with the same words, without regard to meaning.

    The same text gives the same vector in every process and on every machine. Words are distinguished by their
    first eight and last eight bytes and their length, in lower case. Texts without words get one fixed
    vector.
    """

    def __init__(self, dimensions: int = DIMENSIONS, *, batch_size: int = BATCH_SIZE) -> None:
        if dimensions < 1:
            raise ConfigurationError(f"{dimensions} dimensions are configured", fix="use at least 1")
        self.model = f"hashing-{dimensions}"
        self.dimensions = dimensions
        self.limits = EmbedderLimits(texts=batch_size, tokens_per_text=1_000_000)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One vector per text, in order; never refuses a text."""
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        for start in range(0, len(texts), _BLOCK):
            block = texts[start : start + _BLOCK]
            vectors[start : start + len(block)] = self._embed_block(block)
        return vectors

    def embed_query(self, text: str) -> Vectors:
        """One vector, shape (dimensions,); questions are encoded like documents."""
        vector: Vectors = self.embed_documents([text])[0]
        return vector

    def count_tokens(self, text: str) -> int:
        """Estimated number of tokens, at four characters each."""
        return max(1, len(text) // 4)

    def _embed_block(self, texts: Sequence[str]) -> NDArray[np.float64]:
        hashes, weights, rows = _words(texts)
        size = len(texts) * self.dimensions
        sums: NDArray[np.float64] = np.zeros(size)
        for place in range(_PLACES):
            bits = hashes >> np.uint64(20 * place)
            signed = np.where(bits & np.uint64(1), weights, -weights)
            # 19 bits choose the dimension; the remainder's slight unevenness does no harm here.
            column = ((bits >> np.uint64(1)) & np.uint64(0x7FFFF)).astype(np.int64) % self.dimensions
            sums += np.bincount(rows * self.dimensions + column, weights=signed, minlength=size)
        sums = sums.reshape(len(texts), self.dimensions)
        squares = np.sum(sums * sums, axis=1)
        # An empty row (no words, or words that cancel out) points along the first axis.
        sums[squares == 0.0, 0] = 1.0
        squares[squares == 0.0] = 1.0
        sums /= np.sqrt(squares)[:, None]
        return sums


def _words(
    texts: Sequence[str],
) -> tuple[NDArray[np.uint64], NDArray[np.float64], NDArray[np.int64]]:
    """Every word's hash, weight and the row of its text, for all texts at once."""
    raw = [text.lower().encode("utf-8", "surrogatepass") for text in texts]
    # One separator after each text; eight in front and behind, so that every word has eight bytes to read.
    buffer = np.frombuffer(b" " * 8 + b" ".join(raw) + b" " * 8, dtype=np.uint8)
    inside = _IN_WORD[buffer]
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    starts, ends = edges[0::2], edges[1::2]
    lengths = ends - starts
    text_ends = np.cumsum([len(r) + 1 for r in raw]) + 8
    rows = np.searchsorted(text_ends, starts, side="right")
    return _hash_words(buffer, starts, ends), _WEIGHTS[np.minimum(lengths, 8)], rows


def _hash_words(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """64 well-mixed bits per word, from its first and last eight bytes and its length."""
    eights = np.lib.stride_tricks.sliding_window_view(buffer, 8)
    lengths = ends - starts
    keep = _KEEP[np.minimum(lengths, 8)]
    head = eights[starts].view("<u8").ravel().astype(np.uint64, copy=False) & keep
    # The last eight bytes of a short word begin with foreign bytes, which are shifted out.
    strangers = (8 - np.minimum(lengths, 8)).astype(np.uint64) * np.uint64(8)
    tail = eights[ends - 8].view("<u8").ravel().astype(np.uint64, copy=False) >> strangers
    mixed: NDArray[np.uint64] = (
        (head * _PRIME_HEAD) ^ (tail * _PRIME_TAIL) ^ (lengths.astype(np.uint64) * _PRIME_LENGTH)
    )
    mixed ^= mixed >> np.uint64(32)
    mixed *= _PRIME_HEAD
    mixed ^= mixed >> np.uint64(29)
    mixed *= _PRIME_TAIL
    mixed ^= mixed >> np.uint64(32)
    return mixed
