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
from workers.app.evaluation.dataset import EvalDataset
from workers.app.evaluation.measures import DEPTH
from workers.app.ingestion import maintenance, steps
from workers.app.ingestion.sync_now import raise_if_stuck
from workers.local import embedded
from workers.local.embedded import locating
from workers.runtime import Runtime
from workers.settings import Settings
from workers.settings.models import StorageSettings

SOURCE = "judged"
PAGE = 250
"""Documents admitted at a time."""
BATCH = 8
"""Documents that go through the three steps together; few, so that all cores end at about the same time."""

Show = Callable[[str, int, int], None]
"""Progress callback: name of the step, how much of it is done, of how much."""


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
    """Folder of the databases of sandboxes; removed afterwards, or kept in the data folder for the next time."""
    folder = settings.data / "eval" if keep else Path(tempfile.mkdtemp(prefix="larder-eval-"))
    folder.mkdir(parents=True, exist_ok=True)
    # Databases of a measurement that runs at the same time.
    foreign = {one for one in folder.iterdir() if embedded.running(one / "postgres")}
    try:
        yield folder
    finally:
        for database in {*folder.iterdir()} - foreign:
            embedded.stop(database)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def open_runtime(settings: Settings, dataset: EvalDataset, folder: Path) -> Runtime:
    """A runtime on servers of its own: what is measured touches nothing that is searched, and no worker helps."""
    sandbox_settings = settings_for(settings, dataset)
    storage = StorageSettings(data=folder / sandbox_settings.tenant)
    return locating.open_runtime(
        replace(sandbox_settings, rag=sandbox_settings.rag.model_copy(update={"storage": storage})),
        start=True,
    )


def index(runtime: Runtime, dataset: EvalDataset, show: Show) -> int:
    """Make the set searchable; what is there unchanged is left alone. Returns how many documents failed.

    Raises:
        EmbedderRefused, BudgetSpent: to go on takes a person, or a day.
        IndexingError: not one document could be indexed.
    """
    tenant = runtime.settings.tenant_id
    for name, members in _sources(dataset).items():
        _admit(runtime, name, dataset.projects.get(members[0].external_id, runtime.settings.project), members)
    with runtime.database.tenant(tenant) as connection:
        todo = documents.restart_pending(connection)
    show("indexing", 0, len(todo))
    while todo:
        _run(runtime, [todo[at : at + BATCH] for at in range(0, len(todo), BATCH)], show)
        raise_if_stuck(runtime)
        with runtime.database.tenant(tenant) as connection:
            wait = documents.seconds_put_off(connection)
        time.sleep(max(0.0, wait or 0.0))
        with runtime.database.tenant(tenant) as connection:
            todo = [] if wait is None else documents.restart_pending(connection)
    with runtime.database.control() as connection:
        runs.close(connection, [run.id for run in runs.list_settled(connection)])
    maintenance.refresh_tenant(runtime, tenant)
    maintenance.build_indexes(runtime)
    with runtime.database.tenant(tenant) as connection:
        failed, reason = documents.never_indexed(connection)
    if failed >= len(dataset.documents):
        raise IndexingError(
            f"none of the {failed} documents could be indexed: {reason}",
            fix="see that the embedder works: `larder doctor`",
        )
    return failed


def _run(runtime: Runtime, batches: Sequence[Sequence[Item]], show: Show) -> None:
    """Take all batches through all steps, with a thread per core, since a model computes on one."""
    tenant, total = runtime.settings.tenant_id, sum(map(len, batches))
    _ = runtime.embedder, runtime.database  # built once, before threads share them

    def through(batch: Sequence[Item]) -> int:
        indexer = steps.indexer(runtime, tenant)
        items, waiting = list[Item](), batch
        while waiting:
            step = indexer.chunk(tenant, waiting)
            items, waiting = items + step.ready, step.requeued
        while items:
            step = indexer.embed(tenant, items)
            indexer.upsert(tenant, step.ready)
            items = step.requeued
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


def document_ids(runtime: Runtime, dataset: EvalDataset) -> dict[str, UUID]:
    """Document of the set -> its id in the sandbox."""
    return {
        one.external_id: document_id(source_id(runtime.settings.tenant_id, name), one.external_id)
        for name, members in _sources(dataset).items()
        for one in members
    }


def _sources(dataset: EvalDataset) -> dict[str, list[Document]]:
    """Documents by source; each project is one, from which its documents have the project."""
    by_source: dict[str, list[Document]] = {}
    for document in dataset.documents:
        project = dataset.projects.get(document.external_id)
        by_source.setdefault(f"{SOURCE}-{project}" if project else SOURCE, []).append(document)
    return by_source


def _admit(runtime: Runtime, name: str, project: str, members: Sequence[Document]) -> None:
    """Admit the documents of a source to the ledger."""
    tenant = runtime.settings.tenant_id
    source, owner = source_id(tenant, name), project_id(tenant, project)
    named = language_metadata(runtime.rag.language)
    stemmed = [replace(one, metadata={**named, **one.metadata}) for one in members]
    with runtime.database.tenant(tenant) as connection:
        sources.ensure_tenant(connection, tenant, runtime.settings.tenant, owner, project)
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
        unfinished = runs.open_of(connection, source)
        run = unfinished.id if unfinished else runs.open_run(connection, tenant, source, trigger="manual")
        if run is None:
            raise IndexingError(
                "the set is being indexed by another command", fix="wait for it, then try again"
            )
        destination = admission.Admission(
            tenant_id=tenant,
            source_id=source,
            run_id=run,
            pipeline_version=steps.pipeline_version(runtime, "judged-1", SOURCE, SourceType.TEXT),
        )
        for start in range(0, len(stemmed), PAGE):
            page = Page(cursor={"next": start}, documents=tuple(stemmed[start : start + PAGE]))
            runs.add(connection, run, admission.admit(connection, destination, page), cursor=page.cursor)
        runs.finish_walk(connection, run)
