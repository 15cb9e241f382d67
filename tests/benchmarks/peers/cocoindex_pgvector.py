"""CocoIndex as its example "text embedding" has it: Markdown files, chunks of 2,000 characters, PostgreSQL.

Needs cocoindex (Apache-2.0), asyncpg and sentence-transformers; run by compare.py. It opens the model itself, so that
only the usual engine of sentence-transformers is measured.
"""

# mypy: ignore-errors
from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import asyncpg
import cocoindex as coco
from cocoindex.connectors import localfs, postgres
from cocoindex.ops.sentence_transformers import SentenceTransformerEmbedder
from cocoindex.ops.text import RecursiveSplitter
from cocoindex.resources.chunk import Chunk
from cocoindex.resources.file import FileLike, PatternFilePathMatcher
from cocoindex.resources.id import IdGenerator
from numpy.typing import NDArray

DATABASE = coco.ContextKey[asyncpg.Pool]("database")
EMBEDDER = coco.ContextKey[SentenceTransformerEmbedder]("embedder", detect_change=True)
splitter = RecursiveSplitter()


@coco.lifespan
async def lifespan(builder: coco.EnvironmentBuilder) -> AsyncIterator[None]:
    builder.settings.db_path = Path(os.environ["STATE"], "cocoindex.db")
    async with asyncpg.create_pool(os.environ["DATABASE_URL"]) as pool:
        builder.provide(DATABASE, pool)
        embedder = SentenceTransformerEmbedder(os.environ["MODEL"], device="cpu")
        await embedder.embed("warm")
        print(f"start {time.process_time()}", flush=True)
        builder.provide(EMBEDDER, embedder)
        yield


@dataclass
class Row:
    id: int
    path: str
    start: int
    text: str
    embedding: Annotated[NDArray, EMBEDDER]


@coco.fn
async def store_chunk(chunk: Chunk, path: str, ids: IdGenerator, table: postgres.TableTarget[Row]) -> None:
    vector = await coco.use_context(EMBEDDER).embed(chunk.text)
    number = await ids.next_id(chunk.text)
    table.declare_row(
        row=Row(id=number, path=path, start=chunk.start.char_offset, text=chunk.text, embedding=vector)
    )


@coco.fn(memo=True)
async def store_file(file: FileLike, table: postgres.TableTarget[Row]) -> None:
    chunks = splitter.split(await file.read_text(), chunk_size=2000, chunk_overlap=500, language="markdown")
    await coco.map(store_chunk, chunks, file.file_path.path.as_posix(), IdGenerator(), table)


@coco.fn
async def main(folder: Path) -> None:
    table = await postgres.mount_table_target(
        DATABASE,
        table_name="peers",
        table_schema=await postgres.TableSchema.from_class(Row, primary_key=["id"]),
    )
    files = localfs.walk_dir(
        folder, recursive=True, path_matcher=PatternFilePathMatcher(included_patterns=["**/*.md"])
    )
    await coco.mount_each(store_file, files.items(), table)


app = coco.App(coco.AppConfig(name="peers"), main, folder=Path(os.environ["DOCUMENTS"]))

if __name__ == "__main__":
    app.update_blocking()
