"""LangChain as its pages on PGVector and on the indexing API set it up.

Needs langchain-postgres, langchain-huggingface, langchain-text-splitters, langchain-community, langchain-classic
(all MIT); run by compare.py.
"""

# mypy: ignore-errors
from __future__ import annotations

import os
import time
from pathlib import Path

from langchain_classic.indexes import SQLRecordManager, index
from langchain_community.document_loaders import DirectoryLoader, TextLoader
from langchain_huggingface import HuggingFaceEmbeddings
from langchain_postgres import PGVector
from langchain_text_splitters import RecursiveCharacterTextSplitter

URL = os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://")

# The model is opened first, so that its start can be told from the load.
embeddings = HuggingFaceEmbeddings(
    model_name=os.environ["MODEL"],
    model_kwargs={"backend": os.environ["BACKEND"], "device": "cpu"},
    encode_kwargs={"normalize_embeddings": True},
)
print(f"start {time.process_time()}", flush=True)

loader = DirectoryLoader(
    os.environ["DOCUMENTS"], glob="**/*.md", loader_cls=TextLoader, loader_kwargs={"encoding": "utf-8"}
)
pieces = RecursiveCharacterTextSplitter(chunk_size=1000, chunk_overlap=200).split_documents(loader.load())
store = PGVector(embeddings=embeddings, collection_name="peers", connection=URL, use_jsonb=True)
records = SQLRecordManager(
    "peers", db_url=f"sqlite:///{Path(os.environ['STATE'], 'records.sqlite').absolute()}"
)
records.create_schema()
print(
    index(
        pieces,
        records,
        store,
        cleanup="full",
        source_id_key="source",
        batch_size=1000,
        key_encoder="sha256",
    )
)
