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
from pipeline.search.records import MEASURED_THRESHOLDS
from pipeline.stories import StoryMemory, StoryOptions, memory, use
from pipeline.stories.examples import retrieve_similar_examples, store_stories
from pipeline.stories.store import delete_stories_by_source, search_similar_stories, stories_of_other_models
from pipeline.stories.story import Story
from workers.embedded.locating import open_runtime
from workers.enrichment.job import run
from workers.enrichment.story_jobs import BATCH
from workers.runtime import Runtime, current_user
from workers.settings import Settings

ANSWER_TIMEOUT = 5.0
"""Seconds of silence after which the database counts as gone to a generator."""


def memory_of(
    parts: Runtime, tenant: UUID, tenant_name: str = "", *, longest_wait: float = 2.0
) -> StoryMemory:
    """The stories of a tenant; `longest_wait` is how many seconds a busy model is waited for on the spot."""
    s, options = parts.rag.stories, parts.options_of(parts.rag.story_embedding)
    model = vector_key(options)

    def open_embedder() -> Embedder:
        return parts.allowance.budgeted(tenant, parts.embedder_with(options), model)

    auto = MEASURED_THRESHOLDS.get(model_of(model), memory.THRESHOLD)
    return StoryMemory(
        database=parts.database,
        tenant=tenant,
        tenant_name=tenant_name,
        open_embedder=open_embedder,
        model=model,
        dimensions=parts.rag.story_embedding.dimensions,
        longest_wait=longest_wait,
        options=StoryOptions(
            enabled=parts.rag.enabled,
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
    parts = open_runtime(settings)
    parts.answer_timeout = ANSWER_TIMEOUT
    made = memory_of(parts, settings.tenant_id, settings.tenant, longest_wait=memory.LONGEST_WAIT)
    use(made)
    return made


@dataclass(frozen=True, kw_only=True)
class StoryQuery:
    """What is looked for; what is None is configured."""

    query: str
    k: int | None = None
    threshold: float | None = None
    tags: Sequence[str] | None = None
    examples: bool = False
    """For a prompt: ranked and guarded as `retrieve_similar_examples` does."""


def find(stories: StoryMemory, asked: StoryQuery) -> list[Json]:
    """Similar stories, nearest first; none if the installation is switched off.

    Raises:
        RequestRejected: nothing is looked for.
        EmbeddingError: the question has no vector.
        StoreUnavailable: the database does not answer.
    """
    options = stories.options
    if not asked.query.strip():
        raise RequestRejected("the question is empty", fix="say in a sentence what the stories are about")
    k = options.k if asked.k is None else asked.k
    threshold = options.threshold if asked.threshold is None else asked.threshold
    if asked.examples:
        return retrieve_similar_examples(asked.query, k, threshold, asked.tags, memory=stories)
    if not options.enabled:
        return []
    vector = embed_query_checked(stories.open_embedder(), asked.query).tolist()
    return search_similar_stories(vector, k, threshold, asked.tags, memory=stories)


def search(parts: Runtime, tenant: UUID, asked: StoryQuery, *, by: str = "") -> list[Json]:
    """What `find` finds of a tenant's stories, audited as other searches are."""
    found = find(memory_of(parts, tenant), asked)
    if parts.rag.enabled and parts.rag.security.audit:
        parts.audit_log.search(tenant, asked.query, len(found), by=by or current_user())
    return found


def delete(stories: StoryMemory, source: str) -> int:
    """Remove the stories of a run or file, which the audit notes; how many there were."""
    with stories.connected() as connection:
        deleted = delete_stories_by_source(source, connection, memory=stories)
        if deleted:
            told = {"stories": deleted}
            audit.append(connection, stories.tenant, "stories.delete", source, told, by=current_user())
    return deleted


def run_store(parts: Runtime, tenant: UUID, job_id: UUID) -> None:
    """Do a job of `story_jobs.requests_of`; done twice it stores once."""

    def store(request: Json) -> Json:
        stories = memory_of(parts, tenant)
        if not stories.options.enabled:
            raise ConfigurationError("Larder is switched off", fix="set rag.enabled to true")
        given = request["stories"]
        if given is None:
            with stories.connected() as connection:
                given = stories_of_other_models(connection, stories, most=BATCH)
        done = store_stories(stories, [Story.read(one) for one in given])
        numbers = request.get("numbers") or range(1, len(given) + 1)
        refused = [(numbers[number - 1], why) for number, why in done.refused]
        return {"stored": done.stored, "skipped": done.skipped, "refused": refused}

    run(parts, tenant, job_id, store)


def run_search(parts: Runtime, tenant: UUID, job_id: UUID) -> None:
    """Do a job that asks a `StoryQuery`; `by` is who asks."""

    def answer(asked: Json) -> Json:
        query = {name: asked[name] for name in asked if name != "by"}
        return {"stories": search(parts, tenant, StoryQuery(**query), by=asked.get("by", ""))}

    run(parts, tenant, job_id, answer)


# Exports of earlier stories ------------------------------------------------------------------------

MOST_BYTES = 50_000_000
MOST_UNPACKED = 500_000_000
"""Of an Excel file, which is packed."""
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
        held = [data[key] for key in _KEYS if key in data]
        held += [value for value in data.values() if _listing(value)]
        if not held:
            break
        data = held[0]
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
        # What the library raises about a broken file; a broken XML is a SyntaxError.
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
    found: dict[str, list[Any]] = {}
    for head, cell in zip(heads, row, strict=False):
        if _filled(head):
            found.setdefault(str(head), []).append(cell)
    return {
        head: cells[0] if len(cells) == 1 else list(filter(_filled, cells)) or None
        for head, cells in found.items()
    }


def _filled(cell: object) -> bool:
    return cell not in (None, "")
