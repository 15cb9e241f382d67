"""Uploads: texts and files become documents of a project, by the readers of folders and through the same ledger."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from multiprocessing import get_context, parent_process
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore, Lock, Thread
from typing import Annotated, Any, Literal
from unicodedata import normalize
from uuid import UUID

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from sqlalchemy import Connection

import connectors
from connectors import protected
from connectors.documents.options import SourceOptions
from connectors.documents.values import build_document
from connectors.files.options import ENDINGS
from connectors.pbi.identity import item_name
from connectors.web.limiter import LocalRequestLimiter
from pipeline.access import Caller
from pipeline.documents import LEVEL, Document, Json, Kind, Page, Problem, SourceType
from pipeline.documents.plain_text import is_same_title
from pipeline.errors import DocumentRejected, LarderError, NotFound, RequestRejected, StoreUnavailable
from pipeline.ledger import admission, audit, document_id, project_id, runs, source_id, sources, storable
from pipeline.search import statement
from workers.app.ingestion import steps
from workers.app.search import document_as
from workers.monitoring import tracing
from workers.queue import dispatch
from workers.runtime import Runtime
from workers.settings import SOURCE_TYPES, Settings

MOST_FILES = 500
MOST_SECONDS = 60.0
"""Seconds for reading one upload."""
SOON_SECONDS = 5.0
"""Seconds after which there may be a place again."""
SAME_NAME = "another one of this name came before it in this upload, and that is taken; send it under a name of its own"
LONGEST_NAME = 500
"""Bytes of a file's name with its folders."""


class SentDocument(BaseModel):
    """A text to be found, as somebody sends it."""

    title: Annotated[str, Field(min_length=1, max_length=500)]
    text: Annotated[str, Field(min_length=1)]
    external_id: Annotated[str, Field(max_length=500)] | None = Field(
        default=None, description="Sent again it replaces the document. Empty: the title."
    )
    url: Annotated[str, Field(pattern="^https?://[^ ]+$", max_length=2000)] | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = Field(default={})
    kind: Kind = Kind.REFERENCE
    security_level: Literal["public", "internal", "confidential", "restricted"] = "internal"


@tracing.traced("upload")
def upload(
    runtime: Runtime,
    caller: Caller,
    project: str,
    files: Sequence[tuple[str, bytes]] = (),
    documents: Sequence[Mapping[str, object]] = (),
) -> Json:
    """Take files (name, content) and documents into the ledger; what is there under the same name is replaced.

    Documents are those of `SentDocument`. The answer is `{"run", "documents": [{"external_id", "document_id"}],
    "rejected": [{"item", "reason"}], "noted": [{"item", "reason"}]}`: those noted were taken, and read in
    part; what is wrong with one keeps none of the others. Of two different ones with one name the last is taken.

    Raises:
        NotFound: there is no such project.
        Forbidden: it is not the caller's.
        RequestRejected: there is nothing, or too much, to take, or a document is none.
    """
    documents = _checked(documents)
    if not 0 < len(files) + len(documents) <= MOST_FILES:
        raise RequestRejected(
            f"send 1 to {MOST_FILES} files or documents at once, not {len(files) + len(documents)}"
        )
    with runtime.database.tenant(caller.tenant) as connection:
        place = caller.project(connection, project, to_change=True)  # before anything is read
    read_items = _read_apart(runtime.settings, files, documents)
    rejected = [one for one in read_items if isinstance(one, Problem)]
    with runtime.database.tenant(caller.tenant) as connection:
        upload_source = _registered(connection, caller, place)
        run = runs.open_run(connection, caller.tenant, upload_source, trigger="manual")
        if run is None:  # cannot be: runs of uploads are opened and walked in one transaction
            raise StoreUnavailable("another upload to this project is under way", retry_after=1)
        runs.keep_trace(connection, run, tracing.traceparent())
        named = _named_items(
            connection, upload_source, [one for one in read_items if isinstance(one, Document)]
        )
        accepted = {one.external_id: one for one in named}
        repeated = [one for one in named if one.content_hash != accepted[one.external_id].content_hash]
        rejected += [Problem(external_id=one.external_id, reason=SAME_NAME) for one in repeated]
        rejected += _unseen(connection, caller, upload_source, accepted)
        target = admission.Admission(
            tenant_id=caller.tenant,
            source_id=upload_source,
            run_id=run,
            pipeline_version=steps.pipeline_version(runtime, "upload-1", sources.UPLOADED),
            keyring=runtime.keyring,
        )
        page = Page(cursor={}, documents=tuple(accepted.values()), failed=tuple(rejected))
        runs.add(connection, run, admission.admit(connection, target, page), cursor=page.cursor)
        runs.finish_walk(connection, run)
        sources.completed(
            connection, upload_source, pipeline_version=target.pipeline_version, stamp=None, next_sync_at=None,
            next_walk_at=None, walked=False,
        )  # fmt: skip
        counts = {"run": run, "taken": len(accepted), "rejected": len(rejected)}
        audit.append(connection, caller.tenant, "upload", str(place), counts, by=caller.subject)
    dispatch.wake_pump(seldom=True)
    return {
        "run": run,
        "documents": [
            {"external_id": e, "document_id": str(document_id(upload_source, e))} for e in accepted
        ],
        "rejected": _reasons(rejected),
        "noted": _reasons(page.reading_notes),
    }


def _reasons(problems: Iterable[Problem]) -> list[Json]:
    return [{"item": one.external_id, "reason": one.reason} for one in problems]


def _checked(documents: Sequence[Mapping[str, object]]) -> list[Json]:
    try:
        checked = TypeAdapter(list[SentDocument]).validate_python([*documents])
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        field_path = ".".join(map(str, wrong["loc"]))
        raise RequestRejected(
            f"documents.{field_path}: {wrong['msg']}", fix="send it as docs/api.md says"
        ) from None
    return [one.model_dump(mode="json") for one in checked]


def _named_items(connection: Connection, source: UUID, documents: Sequence[Document]) -> list[Document]:
    """The documents, backlog items by the names of those whose next states they are: of one id and nearly one title."""
    items = [one for one in documents if one.source_type is SourceType.PBI]
    ids = {str(one.metadata["pbi_id"]) for one in items}
    known_titles = admission.titles_by_id(connection, source, ids)
    names: dict[str, str] = {}  # by those of the reader, who knows of no earlier upload
    for one in items:
        pbi_id = str(one.metadata["pbi_id"])
        titles = known_titles.get(pbi_id, {})
        same = (
            n for n, title in titles.items() if n not in names.values() and is_same_title(title, one.title)
        )
        free = pbi_id not in titles and pbi_id not in names.values()
        names[one.external_id] = next(same, pbi_id if free else item_name(pbi_id, one.title))
    return [
        replace(d, external_id=names[d.external_id]) if d.source_type is SourceType.PBI else d
        for d in documents
    ]


def _unseen(
    connection: Connection, caller: Caller, source: UUID, accepted: dict[str, Document]
) -> Iterator[Problem]:
    """Takes out what would replace a document that the caller may not see."""
    names = statement.names_of(caller.search_filter)
    ids = [document_id(source, storable(one)) for one in accepted]
    rows = connection.exec_driver_sql(
        f"""select d.external_id from document d
            where d.id = any(%(ids)s) and not d.deleted and ({statement.visible(names)}) is not true""",
        {**statement.values_of(caller.search_filter, names), "ids": ids},
    )
    unseen = set(rows.scalars())
    for name in [one for one in accepted if storable(one) in unseen]:
        del accepted[name]
        yield Problem(
            external_id=name,
            reason="this name is taken by something you may not replace; send it under another",
        )


def _registered(connection: Connection, caller: Caller, project: UUID) -> UUID:
    """The source that uploads of a project belong to; no configured one can be called so, for it has a colon."""
    name = f"{sources.UPLOADED}:{sources.project_name(connection, project)}"
    upload_source = source_id(caller.tenant, name)
    registration = sources.Registration(
        id=upload_source,
        tenant_id=caller.tenant,
        project_id=project,
        name=name,
        kind=sources.UPLOADED,
        config_hash="",
        origin=sources.UPLOADED,
    )
    sources.register(connection, [registration])
    return upload_source


def remove(runtime: Runtime, caller: Caller, document: UUID) -> None:
    """Delete a document that was uploaded to a project of the caller.

    Raises:
        NotFound: there is none.
    """
    document_as(runtime, caller, document)  # nobody removes what they may not see
    with runtime.database.tenant(caller.tenant) as connection:
        place = sources.uploaded_to(connection, document)
        if place is None or not caller.may_change(place) or not admission.remove(connection, [document]):
            raise NotFound("there is no uploaded document of this id")
        details = {"document": str(document)}
        audit.append(connection, caller.tenant, "upload.delete", str(place), details, by=caller.subject)


@cache
def _reader() -> ProcessPoolExecutor:
    # Bounds on time and memory hold in the main thread of a process, and requests are answered in others.
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    """A parent that dies of a signal, as a server does when it is told to end, says nothing to its pool."""

    def wait() -> None:
        if parent := parent_process():
            parent.join()
        os._exit(0)

    Thread(target=wait, daemon=True).start()


_TURN = Lock()
"""Lock on the process that reads: one upload at a time, so that the one that takes too long is known."""
_PLACES = BoundedSemaphore(8)
"""Uploads that may wait for their turn: each holds a thread, and there are 40 for all that is asked of the API."""


@contextmanager
def _turn() -> Iterator[None]:
    """The use of the process that reads.

    Raises:
        StoreUnavailable: too many wait for it, or one before takes too long.
    """
    busy = "other uploads are being read"
    if not _PLACES.acquire(blocking=False):
        raise StoreUnavailable(busy, fix="send it again", retry_after=SOON_SECONDS)
    try:
        if not _TURN.acquire(timeout=MOST_SECONDS):
            raise StoreUnavailable(busy, fix="send it again", retry_after=MOST_SECONDS)
        try:
            yield
        finally:
            _TURN.release()
    finally:
        _PLACES.release()


def _read_apart(
    settings: Settings, files: Sequence[tuple[str, bytes]], documents: Sequence[Mapping[str, object]]
) -> list[Document | Problem]:
    """Read an upload in a process of its own, so that a malicious one cannot hold up others for long."""
    # Sections of sources are classes made at run time, which cannot be sent; nor does it need their keys.
    settings = replace(settings, rag=settings.rag.model_copy(update={"sources": ()}))
    with _turn():
        for last in (False, True):
            reader = _reader()
            try:
                return reader.submit(read, settings, files, documents).result(MOST_SECONDS)
            except (BrokenProcessPool, TimeoutError) as error:
                _reader.cache_clear()
                for process in list((reader._processes or {}).values()):  # noqa: SLF001 (there is no other way)
                    process.kill()
                reader.shutdown(wait=False)
                # Its process may have died while it had nothing to do.
                if last or isinstance(error, TimeoutError):
                    break
    raise RequestRejected(f"this takes more than {MOST_SECONDS:g} s to read; send less at once")


def read(
    settings: Settings, files: Sequence[tuple[str, bytes]], documents: Sequence[Mapping[str, object]]
) -> list[Document | Problem]:
    """Files, as the connectors read them from a folder, and documents that are sent as such."""
    options = _options(settings, "text", paths=["**"])
    return [
        *_files(settings, files),
        *(_document(options, sent_fields, n) for n, sent_fields in enumerate(documents)),
    ]


def _options(settings: Settings, kind: str, **fields: object) -> SourceOptions:
    """Options of the reader of one type of files."""
    section = SOURCE_TYPES[kind].model_validate({"name": sources.UPLOADED, "type": kind, **fields})
    return section.with_context(settings.context_of(section, LocalRequestLimiter))


def _files(settings: Settings, files: Sequence[tuple[str, bytes]]) -> Iterator[Document | Problem]:
    with TemporaryDirectory(prefix="larder-upload-") as folder:
        # As a Mac sends a name, it may look the same and be another.
        named = [(normalize("NFC", name), content) for name, content in files]
        contents, roots = dict(named), dict[Path, str]()
        for name, content in named:
            if contents[name] != content:
                yield Problem(external_id=name[:200], reason=SAME_NAME)
                continue
            kind = next((k for k, ends in ENDINGS.items() if name.lower().endswith(ends)), "")
            if why := _refused(name, kind):
                yield Problem(external_id=name[:200], reason=why)
                continue
            # Names that differ in case alone would be one file on some disks.
            alike = [other for other in contents if other.lower() == name.lower()]
            root = Path(folder, kind, str(alike.index(name)))
            path = root / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            except OSError as error:  # a part of it is too long, or is a file and a folder
                yield Problem(
                    external_id=name[:200], reason=f"there can be no file of its name: {error.strerror}"
                )
                continue
            roots[root] = kind
        for root in sorted(roots):
            yield from _converted(settings, roots[root], root)


def _refused(name: str, kind: str) -> str:
    path = PurePosixPath(name)
    if len(name.encode()) > LONGEST_NAME or not name.isprintable() or "\\" in name:
        return f"its name is longer than {LONGEST_NAME} bytes or has characters that names of files lack"
    if path.is_absolute() or ".." in path.parts or str(path) != name:
        return "its name is no path below a folder; send it without .. and without a slash at its start"
    endings = ", ".join(end for ends in ENDINGS.values() for end in ends)
    return "" if kind else f"its name ends with none of {endings}"


def _converted(settings: Settings, kind: str, folder: Path) -> Iterator[Document | Problem]:
    try:
        options = _options(settings, kind, root=str(folder), paths=["**/*"])
        for page in connectors.open_source(options).pages(None):
            # The addresses are those of a folder that is soon gone.
            yield from (replace(document, url="") for document in page.documents)
            yield from (replace(problem, url="") for problem in (*page.failed, *page.skipped))
    except LarderError as error:
        yield Problem(external_id=f"the {kind} files", reason=str(error))


def _document(options: SourceOptions, sent_fields: Mapping[str, object], number: int) -> Document | Problem:
    name = str(sent_fields.get("external_id") or sent_fields.get("title") or f"document {number + 1}")

    def build() -> Document:
        level = {LEVEL: sent_fields["security_level"]} if sent_fields.get("security_level") else {}
        facts = sent_fields.get("metadata")
        sent = Document(
            external_id=name,
            title=str(sent_fields["title"]),
            text=str(sent_fields["text"]),
            source_type=SourceType.TEXT,
            kind=Kind(str(sent_fields.get("kind") or Kind.REFERENCE)),
            url=str(sent_fields.get("url") or ""),
            tags=tuple(map(str, _listed(sent_fields.get("tags")))),
            metadata={**facts, **level} if isinstance(facts, Mapping) else level,
        )
        return protected(sent, options)

    try:
        document = build_document(build, name)
    except DocumentRejected as error:
        return Problem(external_id=name, reason=str(error))
    return document or Problem(external_id=name, reason="it holds no text")


def _listed(value: object) -> Iterable[object]:
    return value if isinstance(value, list | tuple) else ()


def create_project(runtime: Runtime, caller: Caller, name: str) -> UUID:
    """A project of the caller's tenant, made if it is not there.

    Raises:
        RequestRejected: the name is empty, or an id: that may be of a project that another tenant has not made yet.
    """
    if not name.strip():  # of control characters, too
        raise RequestRejected("the project's name is empty", fix="give it a name")
    project = project_id(caller.tenant, name)
    with runtime.database.tenant(caller.tenant) as connection:
        if str(project) == name.strip().lower() and not sources.has_project(connection, project):
            raise RequestRejected(
                "a project's name is no id", fix="give it a name, from which its id is made"
            )
        sources.ensure_tenant(connection, caller.tenant, caller.tenant_name, project, name)
        audit.append(connection, caller.tenant, "project", name, {}, by=caller.subject)
    return project
