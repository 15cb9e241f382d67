"""User stories as the configuration asks for them: their memory, its jobs in the queue, and exports to begin with."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

from connectors.documents.values import parse_json
from pipeline.documents import Json
from pipeline.embedding import Embedder
from pipeline.embedding.calls import embed_query_checked
from pipeline.embedding.known_models import model_of, vector_key
from pipeline.errors import ConfigurationError, DocumentRejected, RequestRejected
from pipeline.ledger import audit
from pipeline.ledger.jobs import ClaimedJob
from pipeline.search.records import MEASURED_THRESHOLDS
from pipeline.stories import StoryMemory, StoryOptions, memory, use
from pipeline.stories.examples import retrieve_similar_examples, store_stories
from pipeline.stories.store import (
    delete_stories_by_source,
    get_story_count,
    search_similar_stories,
    stories_of_other_models,
    story_stats,
)
from pipeline.stories.story import Story
from workers.app.enrichment.story_jobs import BATCH
from workers.local.embedded.locating import open_runtime
from workers.runtime import Runtime, current_user
from workers.settings import Settings

ANSWER_TIMEOUT = 5.0
"""Seconds of silence after which the database counts as gone to a generator."""


def memory_of(
    runtime: Runtime, tenant: UUID, tenant_name: str = "", *, longest_wait: float = 2.0
) -> StoryMemory:
    """The stories of a tenant; `longest_wait` is how many seconds a busy model is waited for on the spot."""
    s, options = runtime.rag.stories, runtime.options_of(runtime.rag.story_embedding)
    model = vector_key(options)

    def open_embedder() -> Embedder:
        return runtime.allowance.budgeted(tenant, runtime.embedder_with(options), model)

    auto = MEASURED_THRESHOLDS.get(model_of(model), memory.THRESHOLD)
    return StoryMemory(
        database=runtime.database,
        tenant=tenant,
        tenant_name=tenant_name,
        open_embedder=open_embedder,
        model=model,
        dimensions=runtime.rag.story_embedding.dimensions,
        longest_wait=longest_wait,
        options=StoryOptions(
            enabled=runtime.rag.enabled,
            k=s.retrieval_k,
            max_examples=s.max_examples,
            min_stories=s.min_stories,
            min_confidence=s.min_confidence,
            threshold=auto if s.similarity_threshold == "auto" else s.similarity_threshold,
            redact=s.redactor,
        ),
    )


def connect(settings: Settings) -> StoryMemory:
    """Let the functions of `pipeline.stories` work on this installation's stories, in the whole process.

    Nothing is connected to yet.

    Raises:
        ConfigurationError, StoreUnavailable: as `locating.addresses` does.
    """
    runtime = open_runtime(settings)
    runtime.answer_timeout = ANSWER_TIMEOUT
    stories = memory_of(runtime, settings.tenant_id, settings.tenant, longest_wait=memory.LONGEST_WAIT)
    use(stories)
    return stories


@dataclass(frozen=True, kw_only=True)
class StoryQuery:
    """A search for similar stories; what is None is as configured."""

    query: str
    k: int | None = None
    threshold: float | None = None
    tags: Sequence[str] | None = None
    examples: bool = False
    """Whether they are for a prompt: ranked and guarded as `retrieve_similar_examples` does."""


def find(stories: StoryMemory, request: StoryQuery) -> list[Json]:
    """Search for similar stories, nearest first; none if the installation is switched off.

    Raises:
        RequestRejected: nothing is looked for.
        EmbeddingError: the question has no vector.
        StoreUnavailable: the database does not answer.
    """
    options = stories.options
    if not request.query.strip():
        raise RequestRejected("the question is empty", fix="say in a sentence what the stories are about")
    k = options.k if request.k is None else request.k
    threshold = options.threshold if request.threshold is None else request.threshold
    if request.examples:
        return retrieve_similar_examples(request.query, k, threshold, request.tags, memory=stories)
    if not options.enabled:
        return []
    vector = embed_query_checked(stories.open_embedder(), request.query).tolist()
    return search_similar_stories(vector, k, threshold, request.tags, memory=stories)


def search(runtime: Runtime, tenant: UUID, request: StoryQuery, *, by: str = "") -> list[Json]:
    """Search a tenant's stories as `find` does, audited as other searches are."""
    hits = find(memory_of(runtime, tenant), request)
    if runtime.rag.enabled and runtime.rag.security.audit:
        runtime.audit_log.search(tenant, request.query, len(hits), by=by or current_user())
    return hits


def why_none(memory: StoryMemory, *, prompt: bool) -> str:
    """Why no story was found, which need not be for lack of similar ones."""
    if not memory.options.enabled:
        return "no story is looked for while rag.enabled is false"
    with memory.connected() as connection:
        total = story_stats(connection, memory.tenant)["total_stories"]
        embedded = get_story_count(connection, memory=memory)
    if total and not embedded:
        return f"no story is embedded by {memory.model}: `larder stories seed` embeds all {total} anew"
    least = memory.options.min_stories
    if prompt and embedded < least:
        return f"no story is an example before there are {least} (stories.minStories): {embedded} so far"
    return "no story is similar enough" if embedded else "there is no story yet: larder stories seed FILE"


def delete(stories: StoryMemory, source: str) -> int:
    """Remove the stories of a run or file, with an entry in the audit; returns their number."""
    with stories.connected() as connection:
        deleted = delete_stories_by_source(source, connection, memory=stories)
        if deleted:
            detail = {"stories": deleted}
            audit.append(connection, stories.tenant, "stories.delete", source, detail, by=current_user())
    return deleted


def store_job(runtime: Runtime, tenant: UUID, job: ClaimedJob) -> Json:
    """Answer of a job of `story_jobs.requests_of`; done twice it stores once."""
    stories, raw_stories = memory_of(runtime, tenant), job.request["stories"]
    if not stories.options.enabled:
        raise ConfigurationError("Larder is switched off", fix="set rag.enabled to true")
    if raw_stories is None:
        with stories.connected() as connection:
            raw_stories = stories_of_other_models(connection, stories, most=BATCH)
    done = store_stories(stories, [Story.read(one) for one in raw_stories])
    numbers = job.request.get("numbers") or range(1, len(raw_stories) + 1)
    refused = [(numbers[number - 1], why) for number, why in done.refused]
    return {"stored": done.stored, "skipped": done.skipped, "refused": refused}


def search_job(runtime: Runtime, tenant: UUID, job: ClaimedJob) -> Json:
    """Answer of a job that asks a `StoryQuery`; `by` is who asks."""
    query = {name: job.request[name] for name in job.request if name != "by"}
    return {"stories": search(runtime, tenant, StoryQuery(**query), by=job.request.get("by", ""))}


# Exports of earlier stories ------------------------------------------------------------------------

MOST_BYTES = 50_000_000
MOST_UNPACKED = 500_000_000
"""Most bytes of an Excel file, which is packed, when it is unpacked."""
MOST_ROWS = 100_000
_KEYS = ("user_stories", "userStories", "stories", "final_output")


def rows_of(path: Path) -> list[tuple[int, Any]]:
    """Number and fields of each story; rows of tables are counted as a spreadsheet does, others from 1.

    Empty rows are left out; a row that has no fields is the `RequestRejected` that says why.

    Raises:
        ConfigurationError: there is no such file, or it is none that can be read.
        DocumentRejected: it is not what its name says, or too large, or holds nothing.
    """
    read = {".json": _json, ".csv": _csv, ".xlsx": _excel}.get(path.suffix.lower())
    if read is None:
        raise ConfigurationError(f"{path} is no .json, .csv or .xlsx", fix="save the export as one of them")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DocumentRejected(f"{path} is larger than {MOST_BYTES:,} bytes", fix="seed it in parts")
        rows = list(islice(read(path), MOST_ROWS + 1))
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}", fix="name a file that is there"
        ) from None
    except UnicodeDecodeError:
        raise DocumentRejected(f"{path} is no text in UTF-8", fix="save it as UTF-8") from None
    if len(rows) > MOST_ROWS:
        raise DocumentRejected(f"{path} has more than {MOST_ROWS:,} rows", fix="seed it in parts")
    if not rows:
        raise DocumentRejected(
            f"{path} holds no stories", fix="name the columns in its first row, if it is a table"
        )
    return rows


def _json(path: Path) -> Iterator[tuple[int, Any]]:
    data = parse_json(path.read_text(encoding="utf-8-sig"), str(path))
    while isinstance(data, Mapping):
        candidates = [data[key] for key in _KEYS if key in data]
        candidates += [value for value in data.values() if _listing(value)]
        if not candidates:
            break
        data = candidates[0]
    if not isinstance(data, list):
        raise DocumentRejected(
            f"{path} has no list of stories", fix='write [{...}, ...] or {"user_stories": [{...}, ...]}'
        )
    yield from enumerate(data, start=1)


def _listing(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(one, Mapping) for one in value)


def _csv(path: Path) -> Iterator[tuple[int, Any]]:
    text = path.read_text(encoding="utf-8-sig")
    head = text.partition("\n")[0]
    divider = max(",;\t", key=head.count)
    csv.field_size_limit(MOST_BYTES)
    try:
        yield from _table(csv.reader(io.StringIO(text, newline=""), delimiter=divider))
    except csv.Error as error:
        raise DocumentRejected(f"{path} is no CSV: {error}", fix="export it again") from None


def _excel(path: Path) -> Iterator[tuple[int, Any]]:
    import openpyxl

    try:
        with zipfile.ZipFile(path) as packed:
            size = sum(part.file_size for part in packed.infolist())
        if size > MOST_UNPACKED:
            raise DocumentRejected(
                f"{path} unpacks to more than {MOST_UNPACKED:,} bytes", fix="seed it in parts"
            )
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        try:
            yield from _table(book.worksheets[0].iter_rows(values_only=True))
        finally:
            book.close()
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, IndexError, SyntaxError) as error:
        # Errors of the library about a broken file; a broken XML is a SyntaxError.
        raise DocumentRejected(
            f"{path} is no Excel file ({type(error).__name__})", fix="save it as .xlsx"
        ) from None


def _table(rows: Iterator[Sequence[Any]]) -> Iterator[tuple[int, Any]]:
    """Rows under the first one that is not empty, which names the columns."""
    heads: Sequence[Any] = ()
    for number, row in enumerate(rows, start=1):
        if not any(map(_filled, row)):
            continue
        if heads:
            yield number, _fields(heads, row)
        else:
            heads = row


def _fields(heads: Sequence[Any], row: Sequence[Any]) -> dict[str, Any] | RequestRejected:
    """The cells by their columns; what columns of the same name hold is a list, as trackers export labels."""
    if any(map(_filled, row[len(heads) :])):
        return RequestRejected(
            f"it has {len(row)} cells under {len(heads)} columns: put quotes around its texts"
        )
    cells_by_head: dict[str, list[Any]] = {}
    for head, cell in zip(heads, row, strict=False):
        if _filled(head):
            cells_by_head.setdefault(str(head), []).append(cell)
    return {
        head: cells[0] if len(cells) == 1 else list(filter(_filled, cells)) or None
        for head, cells in cells_by_head.items()
    }


def _filled(cell: object) -> bool:
    return cell not in (None, "")
