"""LlamaIndex as its pages on the ingestion pipeline and on its vector store for PostgreSQL set it up.

Needs llama-index-core, llama-index-readers-file, llama-index-embeddings-huggingface and
llama-index-vector-stores-postgres (all MIT); run by compare.py.
"""

# mypy: ignore-errors
from __future__ import annotations

import os
import time
from pathlib import Path
from urllib.parse import urlsplit

from llama_index.core import SimpleDirectoryReader
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from llama_index.vector_stores.postgres import PGVectorStore

address = urlsplit(os.environ["DATABASE_URL"])
state = Path(os.environ["STATE"])
model = HuggingFaceEmbedding(
    model_name=os.environ["MODEL"], backend=os.environ["BACKEND"], device="cpu", embed_batch_size=32
)
print(f"start {time.process_time()}", flush=True)
documents = SimpleDirectoryReader(
    os.environ["DOCUMENTS"], recursive=True, required_exts=[".md"], filename_as_id=True
).load_data()
kept = state / "docstore.json"
pipeline = IngestionPipeline(
    transformations=[
        SentenceSplitter(),
        model,
    ],
    vector_store=PGVectorStore.from_params(
        host=address.hostname,
        port=str(address.port),
        user=address.username,
        password=address.password,
        database=address.path[1:],
        table_name="peers",
        embed_dim=384,
    ),
    docstore=SimpleDocumentStore.from_persist_path(str(kept)) if kept.exists() else SimpleDocumentStore(),
    docstore_strategy=DocstoreStrategy.UPSERTS_AND_DELETE,
    disable_cache=True,
)
print(len(pipeline.run(documents=documents)))
pipeline.docstore.persist(str(kept))
