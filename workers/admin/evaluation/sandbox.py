"""A dataset indexed beside everything else, on servers of its own and without workers."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from pipeline.documents import Document, Page, SourceType, language_metadata
from pipeline.errors import IndexingError
from pipeline.ledger import Item, admission, document_id, documents, project_id, runs, source_id, sources
from workers import embedded
from workers.admin.evaluation.dataset import EvalDataset
from workers.admin.evaluation.measures import DEPTH
from workers.admin.sync_now import raise_if_stuck
from workers.control import maintenance, steps
from workers.embedded import locating
from workers.runtime import Runtime
from workers.settings import Settings
from workers.settings.models import StorageSettings

SOURCE = "judged"
PAGE = 250
"""Documents admitted at a time."""
BATCH = 8
"""Documents that go through the three steps together; few, so that all cores end at about the same time."""

Show = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, of how much."""


def settings_for(settings: Settings, dataset: EvalDataset) -> Settings:
    """The settings with a tenant for this set alone, long enough lists, and answers that are never old ones."""
    e, retrieval = settings.rag.embedding, settings.rag.retrieval
    made_by = (
        f"{dataset.digest}|{e.provider}|{e.model}|{e.model_path}|{e.dimensions}|{settings.rag.chunking!r}"
        f"|{settings.rag.language}|{sorted(dataset.projects.items())}"
    )
    name = re.sub(r"[^a-z0-9]+", "-", dataset.name.lower()).strip("-") or "set"
    rag = settings.rag.model_copy(
        update={
            "tenant": f"eval-{name}-{hashlib.sha256(made_by.encode()).hexdigest()[:8]}",
            "project": "eval",
            "sources": (),
            "retrieval": retrieval.model_copy(
                update={
                    "max_top_k": max(DEPTH, retrieval.max_top_k),
                    "cache": retrieval.cache.model_copy(update={"enabled": False}),
                }
            ),
        }
    )
    return replace(settings, rag=rag)


@contextmanager
def folder_for(settings: Settings, *, keep: bool) -> Iterator[Path]:
    """Where databases of sandboxes lie; gone afterwards, or kept for the next time in the data folder."""
    folder = settings.data / "eval" if keep else Path(tempfile.mkdtemp(prefix="larder-eval-"))
    folder.mkdir(parents=True, exist_ok=True)
    # Of a measurement at the same time.
    others = {one for one in folder.iterdir() if embedded.running(one / "postgres")}
    try:
        yield folder
    finally:
        for database in {*folder.iterdir()} - others:
            embedded.stop(database)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def open_runtime(settings: Settings, dataset: EvalDataset, folder: Path) -> Runtime:
    """A runtime on servers of its own: what is measured touches nothing that is searched, and no worker helps."""
    ours = settings_for(settings, dataset)
    storage = StorageSettings(data=folder / ours.tenant)
    return locating.open_runtime(
        replace(ours, rag=ours.rag.model_copy(update={"storage": storage})), start=True
    )


def index(parts: Runtime, dataset: EvalDataset, show: Show) -> int:
    """Make the set searchable; what is there unchanged is left alone. Returns how many documents failed.

    Raises:
        EmbedderRefused, BudgetSpent: to go on takes a person, or a day.
        IndexingError: not one document could be indexed.
    """
    tenant = parts.settings.tenant_id
    for name, held in _sources(dataset).items():
        _admit(parts, name, dataset.projects.get(held[0].external_id, parts.settings.project), held)
    with parts.database.tenant(tenant) as connection:
        todo = documents.restart_pending(connection)
    show("indexing", 0, len(todo))
    while todo:
        _run(parts, [todo[at : at + BATCH] for at in range(0, len(todo), BATCH)], show)
        raise_if_stuck(parts)
        with parts.database.tenant(tenant) as connection:
            wait = documents.seconds_put_off(connection)
        time.sleep(max(0.0, wait or 0.0))
        with parts.database.tenant(tenant) as connection:
            todo = [] if wait is None else documents.restart_pending(connection)
    with parts.database.control() as connection:
        runs.close(connection, [run.id for run in runs.list_settled(connection)])
    maintenance.refresh_tenant(parts, tenant)
    maintenance.build_indexes(parts)
    with parts.database.tenant(tenant) as connection:
        failed, reason = documents.never_indexed(connection)
    if failed >= len(dataset.documents):
        raise IndexingError(
            f"none of the {failed} documents could be indexed: {reason}",
            fix="see that the embedder works: `larder doctor`",
        )
    return failed


def _run(parts: Runtime, batches: Sequence[Sequence[Item]], show: Show) -> None:
    """All batches through all steps; a thread per core, since a model computes on one."""
    tenant, total = parts.settings.tenant_id, sum(map(len, batches))
    _ = parts.embedder, parts.database  # built once, before threads share them

    def through(batch: Sequence[Item]) -> int:
        indexer = steps.indexer(parts, tenant)
        items, waiting = list[Item](), batch
        while waiting:
            step = indexer.chunk(tenant, waiting)
            items, waiting = items + step.ready, step.again
        while items:
            step = indexer.embed(tenant, items)
            indexer.upsert(tenant, step.ready)
            items = step.again
        return len(batch)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            done = 0
            for finished in as_completed([pool.submit(through, batch) for batch in batches]):
                done += finished.result()
                show("indexing", done, total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def document_ids(parts: Runtime, dataset: EvalDataset) -> dict[str, UUID]:
    """Document of the set -> its id in the sandbox."""
    return {
        one.external_id: document_id(source_id(parts.settings.tenant_id, name), one.external_id)
        for name, held in _sources(dataset).items()
        for one in held
    }


def _sources(dataset: EvalDataset) -> dict[str, list[Document]]:
    """Each project is a source: a document has its project from there."""
    found: dict[str, list[Document]] = {}
    for document in dataset.documents:
        project = dataset.projects.get(document.external_id)
        found.setdefault(f"{SOURCE}-{project}" if project else SOURCE, []).append(document)
    return found


def _admit(parts: Runtime, name: str, project: str, held: Sequence[Document]) -> None:
    """The documents of a source into the ledger."""
    tenant = parts.settings.tenant_id
    source, owner = source_id(tenant, name), project_id(tenant, project)
    named = language_metadata(parts.rag.language)
    stemmed = [replace(one, metadata={**named, **one.metadata}) for one in held]
    with parts.database.tenant(tenant) as connection:
        sources.ensure_tenant(connection, tenant, parts.settings.tenant, owner, project)
        registration = sources.Registration(
            id=source,
            tenant_id=tenant,
            project_id=owner,
            name=name,
            kind="text",
            config_hash="",
            origin="command",
        )
        sources.register(connection, [registration])
        # A run that a stopped command left open goes on.
        left = runs.open_of(connection, source)
        run = left.id if left else runs.open_run(connection, tenant, source, trigger="manual")
        if run is None:
            raise IndexingError(
                "the set is being indexed by another command", fix="wait for it, then try again"
            )
        where = admission.Admission(
            tenant_id=tenant,
            source_id=source,
            run_id=run,
            pipeline_version=f"judged-1|{steps.chunkers(parts)(SOURCE, SourceType.TEXT).version}",
        )
        for start in range(0, len(stemmed), PAGE):
            page = Page(cursor={"next": start}, documents=tuple(stemmed[start : start + PAGE]))
            runs.add(connection, run, admission.admit(connection, where, page), cursor=page.cursor)
        runs.finish_walk(connection, run)
