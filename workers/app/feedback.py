"""Feedback: marks documents as useful or noise for a question, lists the marks, writes them as a set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast, get_args
from uuid import UUID

from sqlalchemy import Connection, Row

from pipeline.access import Caller
from pipeline.documents import Json, Kind
from pipeline.enrichment.request import SECTIONS, EnrichmentRequest, wrong_type
from pipeline.enrichment.text import truncated
from pipeline.errors import ConfigurationError, NotFound, RequestRejected
from pipeline.ledger import audit, documents, jobs, project_id, storable
from pipeline.search import feedback
from pipeline.search.feedback import Question, Verdict
from pipeline.search.question import key_of
from workers.app.evaluation import dataset
from workers.app.search import document_as
from workers.runtime import Runtime

UNDO = "undo"
VERDICTS = (*get_args(Verdict), UNDO)
Visible = Callable[[UUID], bool]
MOST_NAMED = 5
_QUOTES = ('"', "'", "\u201c\u201d")


def mark(
    connection: Connection,
    tenant: UUID,
    item: str,
    ref: str,
    verdict: str,
    *,
    project: str | None = None,
    source: str | None = None,
    by: str,
    visible: Visible | None = None,
) -> Json:
    """Mark a document as `useful` or `noise` for a question, or `undo` the mark.

    `item` is the id of a PBI that Step 4 was asked about or of an indexed document, or a question's text; `ref` is a
    document's external id or its id. `project` is the item's, if several have one of that id. A document that is not
    `visible` is one that is not there, also as an item.

    Raises:
        ConfigurationError: a word means nothing, or several items or documents; the message says what there is.
        RequestRejected: one of them is no text.
    """
    arguments = {"item": item, "ref": ref, "verdict": verdict, "by": by, "project": project, "source": source}
    for name, value in arguments.items():
        if not isinstance(value, str | None if name in ("project", "source") else str):
            raise wrong_type(name, "a text", value)
    if verdict not in VERDICTS:
        raise ConfigurationError(f"{truncated(verdict)!r} is no verdict", fix="say useful, noise or undo")
    by, source = storable(by), source and storable(source)
    question = _question(connection, tenant, storable(item), project, visible)
    document = _document(connection, storable(ref).strip(), source, removed=verdict == UNDO, visible=visible)
    if verdict != UNDO:
        before = feedback.record(connection, tenant, question, document.id, cast("Verdict", verdict), by=by)
    elif (before := feedback.undo(connection, question.key, document.id)) is None:
        raise ConfigurationError(
            f"{document.external_id} is not marked for {truncated(question.item)!r}",
            fix="see `larder feedback --list`",
        )
    # The question by its key: its text is nothing for the audit.
    detail = {"question": question.key}
    audit.append(connection, tenant, f"feedback.{verdict}", document.external_id, detail, by=by)
    return {
        "item": question.item,
        "item_title": question.title,
        "project": question.project or None,
        "ref": document.external_id,
        "title": document.title,
        "source": document.source,
        "document_id": str(document.id),
        "verdict": None if verdict == UNDO else verdict,
        "before": before,
    }


def mark_as(runtime: Runtime, caller: Caller, request: Json) -> Json:
    """Record a caller's verdict on a document that they may see; `request` holds the arguments of `mark`.

    An item is looked for in the named project alone; without one `item` is a question's text.

    Raises:
        NotFound: there is no such item or document that they may know of.
        Forbidden: the project is not theirs.
    """

    def visible(document: UUID) -> bool:
        with suppress(NotFound):
            return bool(document_as(runtime, caller, document))
        return False

    with runtime.database.tenant(caller.tenant) as connection:
        if request["project"]:
            request = {**request, "project": str(caller.project(connection, request["project"]))}
        elif isinstance(request["item"], str):
            request = {**request, "item": f'"{request["item"]}"'}
        try:
            return mark(connection, caller.tenant, by=caller.subject, visible=visible, **request)
        except ConfigurationError as error:
            raise NotFound(error.message) from None


def listed(connection: Connection, item: str | None = None) -> list[Json]:
    """Verdicts, newest first; with `item` for this question only, or the items of that id in all projects."""
    key = "" if item is None else key_of(_unquoted(item))
    rows = feedback.listed(connection, item and item.strip(), key)
    return [
        {name: value for name, value in row.items() if name not in ("key", "question")}
        | {
            "project": row["project"] or None,
            "document_id": str(row["document_id"]),
            "at": row["at"].isoformat(),
        }
        for row in rows
    ]


def _unquoted(words: str) -> str:
    bare = words.strip()
    quoted = len(bare) > 1 and any(bare[0] == q[0] and bare[-1] == q[-1] for q in _QUOTES)
    return bare[1:-1].strip() if quoted else bare


def _question(
    connection: Connection, tenant: UUID, words: str, project: str | None, visible: Visible | None
) -> Question:
    """The question that a person means; an id is looked up, and text is taken as it is."""
    item, text = words.strip(), _unquoted(words)
    key = None if project is None else key_of("", item, project_id(tenant, project))
    if item and (question := _looked_up(connection, item, key, visible)):
        return question
    if text and key is None and (text != item or len(text.split()) > 1):
        return Question(key=key_of(text), item=text, content={"text": text})
    of_project = f" of project {truncated(project)!r}" if project else ""
    raise ConfigurationError(
        f"{truncated(item)!r} is no PBI{of_project} that Step 4 was asked about, and no indexed document"
        if item
        else "there is no question",
        fix="give the id of a PBI that was enriched (kept for enrichment.resultsKeptHours), the external id of an"
        " indexed document, or the text of a question; a single word in quotes of its own: '\"word\"'",
    )


def _looked_up(
    connection: Connection, item: str, key: str | None, visible: Visible | None
) -> Question | None:
    for questions in _questions_of_item(connection, item, visible):
        by_key = {one.key: one for one in questions if key in (None, one.key)}
        if len(by_key) > 1:
            names = ", ".join(sorted(one.project for one in by_key.values()))
            raise ConfigurationError(
                f"{truncated(item)!r} is an item of several projects: {names}", fix="say which with --project"
            )
        if by_key:
            return by_key.popitem()[1]
    return None


def _questions_of_item(
    connection: Connection, item: str, visible: Visible | None
) -> Iterator[list[Question]]:
    """Questions about items of this id: those that Step 4 was asked about, then indexed, then judged before."""

    def about(title: str, content: Json, project: UUID, name: str | None) -> Question:
        key, named = key_of("", item, project), name or str(project)
        return Question(key=key, item=item, title=title, project=named, content={**content, "title": title})

    submitted = []
    for row in reversed(jobs.requests_naming(connection, item)):  # of the same item the newest holds
        with suppress(RequestRejected):
            request = EnrichmentRequest.from_json(row.request)
            if request.id == item:
                content = {"description": request.description, "acceptance_criteria": list(request.criteria)}
                submitted.append(about(request.title, content, row.project_id, row.name or request.project))
    yield submitted
    rows = documents.items(connection, item)
    visible_rows = [row for row in rows if visible is None or visible(row.id)]
    yield [about(row.title, {"description": row.body}, row.project_id, row.name) for row in visible_rows]
    # A caller who may not see a document must not learn either that others judged it as an item.
    unseen = {key_of("", item, row.project_id) for row in rows if row not in visible_rows}
    yield [
        Question(
            key=row["key"],
            item=item,
            title=row["item_title"],
            project=row["project"],
            content=row["question"],
        )
        for row in feedback.listed(connection, item)
        if "text" not in row["question"] and row["key"] not in unseen
    ]


def _document(
    connection: Connection,
    ref: str,
    source: str | None,
    *,
    removed: bool,
    visible: Visible | None,
) -> Row[tuple[UUID, str]]:
    """The one document that a person means."""
    rows = documents.with_ref(connection, ref, source)
    if visible:
        rows = [row for row in rows if visible(row.id)]
    present = [row for row in rows if not row.deleted] or (list(rows) if removed else [])
    if len(present) == 1:
        return present[0]
    quoted = repr(truncated(ref))
    if present:
        names = ", ".join(row.source for row in present)
        raise ConfigurationError(f"{quoted} is in several sources: {names}", fix="say which with --source")
    if rows:
        raise ConfigurationError(
            f"the document {quoted} is no longer there: its source {rows[0].source} has removed it",
            fix="mark one that a search finds",
        )
    of_source = f" of source {truncated(source)!r}" if source else ""
    like = documents.similar_refs(connection, ref, most=MOST_NAMED) if ref and not visible else ()
    hint = "give the ref of an answer, or metadata.external_id of a result of `larder search --json`"
    raise ConfigurationError(
        f"no document{of_source} has the external id or id {quoted}",
        fix="; like it are ".join(filter(None, (hint, ", ".join(like)))),
    )


# Feedback as a set for `larder eval` ---------------------------------------------------------------

GRADES = {"useful": 2, "noise": 0}


def export(connection: Connection, tenant: UUID, folder: Path, *, by: str) -> Json:
    """Write the searchable documents, the questions and the verdicts into a new `folder`, for this user only.

    Verdicts on documents that are no longer searchable are left out. Counts what was written.

    Raises:
        ConfigurationError: the folder is not empty, or nobody has marked anything that is still there.
    """
    dataset.refuse_used(folder)
    refs = documents.corpus_names(connection)
    marks = [row for row in feedback.listed(connection) if row["document_id"] in refs]
    if not marks:
        raise ConfigurationError(
            "nobody has marked a document that is still searchable",
            fix="mark some: `larder feedback ITEM REF useful`",
        )
    names = _names(marks)
    queries = {row["key"]: _query(row, names[row["key"]]) for row in marks}
    graded = sorted(
        (names[row["key"]], SECTIONS[Kind(row["kind"])], refs[row["document_id"]], GRADES[row["verdict"]])
        for row in marks
    )
    verdicts = Counter(row["verdict"] for row in marks)
    counts = {"documents": len(refs), "queries": len(queries), **{name: verdicts[name] for name in GRADES}}
    dataset.write(
        folder,
        documents=documents.corpus(connection),
        queries=queries.values(),
        relevant=((query, ref, grade) for query, _, ref, grade in graded),
        context=graded,
        counts=counts,
    )
    audit.append(connection, tenant, "feedback.export", "all documents", counts, by=by)
    return counts


def _names(marks: list[Json]) -> dict[str, str]:
    """Key -> what the set calls the question: an item by its id, with its project if several have that id."""
    items = {row["key"]: row for row in marks if "text" not in row["question"]}
    times = Counter(row["item"] for row in items.values())
    names = {row["key"]: f"q-{row['key'][:12]}" for row in marks}
    for key, row in items.items():
        names[key] = f"{row['project']}:{row['item']}" if times[row["item"]] > 1 else row["item"]
    return names


def _query(row: Json, name: str) -> Json:
    question = row["question"]
    title, body = question.get("title") or "", question.get("description") or ""
    facts = {
        "project": row["project"],
        "title": title,
        "description": body.removeprefix(f"# {title}\n").strip(),
        "acceptance_criteria": question.get("acceptance_criteria") or [],
    }
    texts = (title, facts["description"], *facts["acceptance_criteria"])
    whole = question.get("text") or "\n".join(filter(None, texts)) or row["item"]
    return {"_id": name, "text": whole, **{key: value for key, value in facts.items() if value}}
