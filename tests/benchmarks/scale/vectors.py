"""A stock of any size that lies as real texts do: their embeddings, mixed with those of their neighbours.

Vectors drawn at random are all equally far apart: no graph finds the nearest of them, and nobody would miss one. Here each
vector lies between a real chunk and one of its ten nearest, moved by the difference of two other neighbours; how far it
is moved is chosen so that the nearest of the questions are as near in a stock of the same size as they are among the real
chunks (`Blend.shift`, told in the report beside the dimension in which the neighbours of the questions lie).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.documents import Document, Kind, SourceType
from pipeline.embedding import EmbeddingOptions, Vectors
from pipeline.embedding.calls import embed_query_checked, open_embedder
from tests.benchmarks.library import Question, unit
from tests.benchmarks.quality import chunks_of, read_typed, vectors_of
from workers.app.evaluation.dataset import EvalDataset

NEIGHBOURS = 10
CHUNKS_PER_DOCUMENT = 4
RARE = 0.01
"""Share of documents with the tag `rare`."""
OTHER_EVERY = 64
"""One document in so many belongs to the other, small tenant."""
QUESTIONS = 200


@dataclass(frozen=True)
class Text:
    """A real chunk, and its title and headings."""

    context: str
    content: str


@dataclass(frozen=True)
class Texts:
    """Real chunks in order, their vectors, and questions that were really asked."""

    chunks: list[Text]
    vectors: Vectors
    questions: list[Question]


def read(folders: Sequence[Path]) -> Texts:
    """The chunks and questions of sets as `quality.py` takes them; else what stands in docstrings of Python itself."""
    sets = [read_typed(folder, None) for folder in folders] or [docstrings()]
    embedder = open_embedder(EmbeddingOptions(provider="minilm"))
    chunks: list[Text] = []
    parts: list[Vectors] = []
    asked: list[str] = []
    for judged in sets:
        cut = [own for own in chunks_of(judged) if own]
        parts.append(vectors_of(cut, embedder))
        chunks += [Text(chunk.context, chunk.content) for own in cut for chunk in own]
        # Of a work item its title: with its whole text it would be found as itself.
        asked += [text.split("\n", 1)[0] for text in judged.queries.values()]
    chance = np.random.default_rng(7)
    asked = [str(text) for text in chance.permutation(asked)[:QUESTIONS]]
    questions = [Question(text, embed_query_checked(embedder, text)) for text in asked]
    return Texts(chunks, unit(np.concatenate(parts)), questions)


def docstrings() -> EvalDataset:
    """The modules of the standard library as documents; of one in ten the first line of a docstring is a question."""
    documents, queries = [], {}
    for path in sorted(Path(ast.__file__).parent.rglob("*.py")):
        if "site-packages" in path.parts or "test" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        said = [ast.get_docstring(n) or "" for n in ast.walk(tree) if isinstance(n, kinds)]
        told = "\n\n".join(filter(None, said))
        if len(told) > 200:
            name = path.stem
            documents.append(
                Document(
                    external_id=str(path),
                    title=name,
                    text=told,
                    source_type=SourceType.TEXT,
                    kind=Kind.REFERENCE,
                )
            )
            if len(documents) % 3 == 0:
                queries[name] = max(said, key=len).split("\n", 1)[0]
    name = f"docstrings of Python {sys.version_info.major}.{sys.version_info.minor}"
    return EvalDataset(
        name=name,
        documents=documents,
        queries=queries,
        relevant={},
        self_exclude=False,
        projects={},
        requests={},
        context={},
    )


@dataclass(frozen=True)
class Batch:
    """Documents of four chunks: of each chunk the two real ones that it is made of, and its vector."""

    first: int
    """The number of the first document."""
    one: Any
    other: Any
    vectors: Vectors
    rare: Any
    """Of each document."""

    @property
    def foreign(self) -> Any:
        """Of each document, whether it is the other tenant's."""
        return (np.arange(len(self.rare)) + self.first) % OTHER_EVERY == 0


class Blend:
    """Any number of chunks from some thousand real ones; the same for the same numbers."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self.near = self._neighbours()
        self.asked = unit(np.array([q.vector for q in texts.questions]))
        self.real = self._nearness(texts.vectors)
        self.shift = self._fitted()

    def _neighbours(self) -> Any:
        rows, found = self.texts.vectors, []
        for start in range(0, len(rows), 1000):
            likeness = rows[start : start + 1000] @ rows.T
            likeness[likeness > 0.9999] = -1  # itself, and its copies
            found.append(np.argpartition(-likeness, NEIGHBOURS, axis=1)[:, :NEIGHBOURS])
        return np.concatenate(found)

    def _nearness(self, rows: Vectors) -> tuple[float, float]:
        """Mean likeness of the ten nearest of the questions, and the dimension in which the 50 nearest lie."""
        best = -np.sort(-(self.asked @ rows.T), axis=1)[:, :50]
        far = np.sqrt(np.maximum(2 - 2 * best, 1e-6))
        grown = np.log(far[:, -1:] / far[:, :-1])
        return float(best[:, :10].mean()), float((1 / np.maximum(grown.mean(axis=1), 1e-6)).mean())

    def _fitted(self) -> float:
        count = len(self.texts.vectors) // CHUNKS_PER_DOCUMENT
        off = {
            shift: abs(self._nearness(self._made(0, count, shift).vectors)[0] - self.real[0])
            for shift in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
        }
        return min(off, key=lambda shift: off[shift])

    def likeness(self) -> dict[str, float]:
        """How near the questions' nearest are and in how many dimensions they lie, of the real and of as many mixed."""
        mixed = self._nearness(self.batch(0, len(self.texts.vectors) // CHUNKS_PER_DOCUMENT).vectors)
        names = ("real_similarity", "real_dimension", "mixed_similarity", "mixed_dimension")
        return dict(zip(names, (*self.real, *mixed), strict=True)) | {"shift": self.shift}

    def batch(self, first: int, documents: int) -> Batch:
        """Documents from number `first` on."""
        return self._made(first, documents, self.shift)

    def _made(self, first: int, documents: int, shift: float) -> Batch:
        chance = np.random.default_rng([5, first])
        rows, count = self.texts.vectors, documents * CHUNKS_PER_DOCUMENT
        begin = chance.integers(0, len(rows), documents)
        one = ((begin[:, None] + np.arange(CHUNKS_PER_DOCUMENT)) % len(rows)).ravel()
        other = self.near[one, chance.integers(0, NEIGHBOURS, count)]
        third = chance.integers(0, len(rows), count)
        fourth = self.near[third, chance.integers(0, NEIGHBOURS, count)]
        part = chance.random((count, 1), dtype=np.float32) / 2
        made = rows[one] + part * (rows[other] - rows[one]) + np.float32(shift) * (rows[third] - rows[fourth])
        # As the store keeps them, so that what is exact here is exact there.
        vectors = unit(made).astype(np.float16).astype(np.float32)
        return Batch(first, one, other, vectors, chance.random(documents) < RARE)
