"""A set of documents indexed beside everything else: servers, tenant and runs of its own."""

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

from sqlalchemy import text

from pipeline.database import migrations
from pipeline.database.tenancy import project_id
from pipeline.documents import Document, SourceType
from pipeline.errors import IndexingError
from pipeline.ingest.sync import Schedule, Syncer
from pipeline.ledger import Item, admission, document_id, runs, source_id, sources
from pipeline.search.measures import DEPTH
from workers import embedded
from workers.admin.evaluation.dataset import Judged, JudgedSource, in_language
from workers.admin.sync_now import raise_if_stuck
from workers.control import maintenance, steps
from workers.runtime import Addresses, Runtime
from workers.settings import Settings

SOURCE = "judged"
BATCH = 8
"""Documents that go through the three steps together; few, so that all cores end at about the same time."""

Show = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, of how much."""


def settings_for(settings: Settings, judged: Judged) -> Settings:
    """The settings with a tenant for this set alone, long enough lists, and answers that are never old ones."""
    e, retrieval = settings.rag.embedding, settings.rag.retrieval
    made_by = (
        f"{judged.digest}|{e.provider}|{e.model}|{e.model_path}|{e.dimensions}|{settings.rag.chunking!r}"
        f"|{settings.rag.language}"
    )
    name = re.sub(r"[^a-z0-9]+", "-", judged.name.lower()).strip("-") or "set"
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
    """Where scratch databases live; gone afterwards, or kept for the next time in the data folder."""
    folder = settings.data / "eval" if keep else Path(tempfile.mkdtemp(prefix="larder-eval-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        for database in folder.iterdir():
            embedded.stop(database)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def open_runtime(settings: Settings, judged: Judged, folder: Path) -> Runtime:
    """A runtime on servers of its own: what is measured touches nothing that is searched, and no worker helps."""
    ours = settings_for(settings, judged)
    servers = embedded.ensure(folder / ours.tenant)
    migrations.upgrade(servers.admin_url)
    where = Addresses(
        database=servers.database_url,
        control=servers.control_url,
        admin=servers.admin_url,
        broker=servers.broker_url,
    )
    return Runtime(ours, where, heartbeat_folder=folder / ours.tenant / "heartbeat")


def index(parts: Runtime, judged: Judged, show: Show) -> int:
    """Make the set searchable; what is there unchanged is left alone. Returns how many documents failed."""
    tenant = parts.settings.tenant_id
    _sync(parts, judged)
    todo = _waiting(parts)
    show("indexing", 0, len(todo))
    if todo:
        _ = parts.embedder, parts.database  # built once, before threads share them
    while todo:
        _run(parts, [todo[at : at + BATCH] for at in range(0, len(todo), BATCH)], show)
        todo = _put_off(parts)
    with parts.database.control() as connection:
        runs.close(connection, [run.id for run in runs.settled(connection)])
    maintenance.refresh_tenant(parts, tenant)
    maintenance.build_indexes(parts)
    return _failed(parts, judged)


def _run(parts: Runtime, batches: Sequence[Sequence[Item]], show: Show) -> None:
    """All batches through all steps; a thread per core, since a model computes on one."""
    done, total = 0, sum(len(batch) for batch in batches)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(_through, parts, batch): len(batch) for batch in batches}
        try:
            for finished in as_completed(running):
                finished.result()
                done += running[finished]
                show("indexing", done, total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _through(parts: Runtime, batch: Sequence[Item]) -> None:
    tenant = parts.settings.tenant_id
    items: Sequence[Item] = steps.indexer(parts, tenant).chunk(tenant, batch).ready
    while items:
        step = steps.indexer(parts, tenant).embed(tenant, items)
        steps.indexer(parts, tenant).upsert(tenant, step.ready)
        items = step.again


def document_ids(parts: Runtime, judged: Judged) -> dict[str, UUID]:
    """Document of the set -> its id in the scratch database."""
    tenant = parts.settings.tenant_id
    names = {d.external_id: _source_of(judged, d) for d in judged.documents}
    return {name: document_id(source_id(tenant, source), name) for name, source in names.items()}


def _source_of(judged: Judged, document: Document) -> str:
    """Each project is a source, for that is where a document has its project from."""
    project = judged.projects.get(document.external_id)
    return f"{SOURCE}-{project}" if project else SOURCE


def _sync(parts: Runtime, judged: Judged) -> None:
    """All documents of the set into the ledger."""
    parted: dict[str, list[Document]] = {}
    for document in in_language(judged, parts.rag.language).documents:
        parted.setdefault(_source_of(judged, document), []).append(document)
    for name, documents in parted.items():
        project = judged.projects.get(documents[0].external_id, parts.settings.project)
        _sync_source(parts, name, project, JudgedSource(replace(judged, documents=documents)))


def _sync_source(parts: Runtime, name: str, project: str, source: JudgedSource) -> None:
    tenant = parts.settings.tenant_id
    ident, project_ident = source_id(tenant, name), project_id(tenant, project)
    chunker = steps.chunkers(parts)(SOURCE, SourceType.TEXT).version
    with parts.database.tenant(tenant) as connection:
        sources.ensure_tenant(connection, tenant, parts.settings.tenant, project_ident, project)
        registration = sources.Registration(
            id=ident,
            tenant_id=tenant,
            project_id=project_ident,
            name=name,
            kind="text",
            config_hash=source.stamp() or "",
            origin="command",
        )
        sources.register(connection, [registration])
        # A run that a stopped command left open goes on where that one stopped.
        opened = runs.open_run(connection, tenant, ident, trigger="manual")
        left = runs.open_of(connection, ident) if opened is None else None
    run = opened if left is None else left.id
    if run is None:
        raise IndexingError("the set is being indexed by another command", fix="wait for it, then try again")
    where = admission.Admission(
        tenant_id=tenant,
        project_id=project_ident,
        source_id=ident,
        run_id=run,
        pipeline_version=f"{source.extractor}|{chunker}",
    )
    syncer = Syncer(database=parts.database)
    while not syncer.slice(source, where, lambda: Schedule(next_sync_at=None, next_walk_at=None)):
        pass


def _waiting(parts: Runtime) -> list[Item]:
    tenant = parts.settings.tenant_id
    with parts.database.tenant(tenant) as connection:
        # All stages begin anew: a stopped command may have left documents between two of them.
        connection.execute(
            text("""
                update document set stage = 'fetched', lease_token = null, lease_until = null, due_at = now()
                where state = 'pending'""")
        )
        rows = connection.execute(
            text("select id, desired_version from document where state = 'pending' order by number")
        )
        return [Item(row.id, row.desired_version) for row in rows]


def _put_off(parts: Runtime) -> list[Item]:
    """What had to wait for the embedder, when it may be asked again; nothing is the rule.

    Raises:
        EmbedderRefused, BudgetSpent: it takes a person, or a day.
    """
    tenant = parts.settings.tenant_id
    raise_if_stuck(parts)
    with parts.database.tenant(tenant) as connection:
        wait = connection.execute(
            text("""
                select cast(extract(epoch from max(due_at) - now()) as double precision) from document
                where state = 'pending' and waits > 0""")
        ).scalar()
    if wait is None:
        return []
    time.sleep(max(0.0, wait))
    return _waiting(parts)


def _failed(parts: Runtime, judged: Judged) -> int:
    tenant = parts.settings.tenant_id
    with parts.database.tenant(tenant) as connection:
        row = connection.execute(
            text("""
                select count(*) filter (where indexed_version is null) as failed, max(last_error) as reason
                from document where not deleted""")
        ).one()
    if row.failed >= len(judged.documents):
        raise IndexingError(
            f"none of the {len(judged.documents)} documents could be indexed: {row.reason}",
            fix="see that the embedder works: `larder doctor`",
        )
    return int(row.failed)
