"""Marking documents as useful or noise: which question and document a person means, what was said, and as a set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast, get_args
from uuid import UUID

from sqlalchemy import Connection, Row

from pipeline.database.tenancy import project_id
from pipeline.documents import Json, Kind
from pipeline.enrichment.request import SECTIONS, EnrichmentRequest, wrong_type
from pipeline.enrichment.text import clipped
from pipeline.errors import ConfigurationError, RequestRejected
from pipeline.ledger import clean, documents, jobs, upkeep
from pipeline.search import feedback
from pipeline.search.feedback import Question, Verdict
from pipeline.search.question import key_of
from workers.admin.evaluation import dataset

UNDO = "undo"
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
) -> Json:
    """Say of a document what it is for a question: `useful`, `noise`, or `undo` for nothing any more.

    `item` is the id of a PBI that Step 4 was asked about or of an indexed document, or a question's text; `ref` is a
    document's external id or its id. `project` is the item's, if several have one of that id.

    Raises:
        ConfigurationError: a word means nothing, or several items or documents; the message says what there is.
        RequestRejected: one of them is no text.
    """
    given = {"item": item, "ref": ref, "verdict": verdict, "by": by, "project": project, "source": source}
    for name, value in given.items():
        if not isinstance(value, str) and not (value is None and name in ("project", "source")):
            raise wrong_type(name, "a text", value)
    if verdict not in (*get_args(Verdict), UNDO):
        raise ConfigurationError(f"{clipped(verdict)!r} is no verdict", fix="say useful, noise or undo")
    by, source = clean(by), None if source is None else clean(source)
    question = _question(connection, tenant, clean(item), project)
    document = _document(connection, clean(ref), source, removed=verdict == UNDO)
    if verdict == UNDO:
        before: Verdict | None = _undone(connection, question, document)
    else:
        before = feedback.give(connection, tenant, question, document.id, cast("Verdict", verdict), by=by)
    # The question by its key: its text is nothing for the audit.
    upkeep.append_audit(
        connection, tenant, f"feedback.{verdict}", document.external_id, {"question": question.key}, by=by
    )
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


def _undone(connection: Connection, question: Question, document: Row[tuple[UUID, str]]) -> Verdict:
    """Take back what was said, and tell what it was."""
    before = feedback.undo(connection, question.key, document.id)
    if before is None:
        raise ConfigurationError(
            f"{document.external_id} is not marked for {clipped(question.item)!r}",
            fix="see `larder feedback --list`",
        )
    return before


def listed(connection: Connection, item: str | None = None) -> list[Json]:
    """What was said, newest first; with `item` for this question only, or the items of that id in all projects."""
    key = "" if item is None else key_of(_unquoted(item))
    said = feedback.listed(connection, item and item.strip(), key)
    return [
        {
            "item": row["item"],
            "item_title": row["item_title"],
            "project": row["project"] or None,
            "ref": row["ref"],
            "title": row["title"],
            "source": row["source"],
            "kind": row["kind"],
            "document_id": str(row["document_id"]),
            "removed": row["deleted"],
            "verdict": row["verdict"],
            "at": row["at"].isoformat(),
            "by": row["by"],
        }
        for row in said
    ]


# Which question -----------------------------------------------------------------------------------


def _question(connection: Connection, tenant: UUID, words: str, project: str | None) -> Question:
    """The question that a person means; an id is looked up, and text is taken as it is."""
    item, asked = words.strip(), _unquoted(words)
    own = None if project is None else project_id(tenant, project)
    found = _items(connection, item, own)
    if len(found) > 1:
        names = ", ".join(sorted(one.project for one in found))
        raise ConfigurationError(
            f"{clipped(item)!r} is an item of several projects: {names}", fix="say which with --project"
        )
    if found:
        return found[0]
    if asked and own is None and (asked != item or len(asked.split()) > 1):
        return Question(key=key_of(asked), item=asked, asked={"text": asked})
    where = f" of project {clipped(project)!r}" if project else ""
    raise _unknown(item, where)


def _items(connection: Connection, item: str, project: UUID | None) -> list[Question]:
    """The items of this id: those that Step 4 was asked about, else indexed ones, else those judged before."""
    for look in (_of_jobs, _of_documents, _of_feedback):
        found = {one.key: one for one in look(connection, item)}
        if project is not None:
            key = key_of("", item, project)
            found = {key: found[key]} if item and key in found else {}
        if found:
            return list(found.values())
    return []


def _unknown(item: str, where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{clipped(item)!r} is no PBI{where} that Step 4 was asked about, and no indexed document"
        if item
        else "there is no question",
        fix="give the id of a PBI that was enriched (kept for enrichment.resultsKeptHours), the external id of an"
        " indexed document, or the text of a question; a single word in quotes of its own: '\"word\"'",
    )


def _unquoted(words: str) -> str:
    bare = words.strip()
    quoted = len(bare) > 1 and any(bare[0] == q[0] and bare[-1] == q[-1] for q in _QUOTES)
    return bare[1:-1].strip() if quoted else bare


def _of_jobs(connection: Connection, item: str) -> Iterator[Question]:
    """The newest of a project comes last."""
    for row in reversed(jobs.requests_naming(connection, item)):
        with suppress(RequestRejected):
            request = EnrichmentRequest.from_json(row.request)
            if request.id == item:
                asked = {"description": request.description, "acceptance_criteria": list(request.criteria)}
                name = row.name or request.project
                yield _about(item, request.title, asked, row.project_id, name)


def _of_documents(connection: Connection, item: str) -> Iterator[Question]:
    for row in documents.items(connection, item):
        yield _about(item, row.title, {"description": row.body}, row.project_id, row.name)


def _of_feedback(connection: Connection, item: str) -> Iterator[Question]:
    """What was asked about an item whose jobs are gone."""
    for row in feedback.listed(connection, item):
        if "text" not in row["question"]:
            yield Question(
                key=row["key"],
                item=item,
                title=row["item_title"],
                project=row["project"],
                asked=row["question"],
            )


def _about(item: str, title: str, asked: Json, project: UUID, name: str | None) -> Question:
    key = key_of("", item, project)
    named = name or str(project)
    return Question(key=key, item=item, title=title, project=named, asked={**asked, "title": title})


# Which document -----------------------------------------------------------------------------------


def _document(
    connection: Connection, words: str, source: str | None, *, removed: bool
) -> Row[tuple[UUID, str]]:
    """The one document that a person means."""
    ref = words.strip()
    rows = documents.with_ref(connection, ref, source)
    there = [row for row in rows if not row.deleted] or (list(rows) if removed else [])
    if len(there) == 1:
        return there[0]
    where, told = f" of source {clipped(source)!r}" if source else "", repr(clipped(ref))
    if there:
        names = ", ".join(row.source for row in there)
        raise ConfigurationError(f"{told} is in several sources: {names}", fix="say which with --source")
    if rows:
        raise ConfigurationError(
            f"the document {told} is no longer there: its source {rows[0].source} has removed it",
            fix="mark one that a search finds",
        )
    raise ConfigurationError(
        f"no document{where} has the external id or id {told}", fix=_near(connection, ref)
    )


def _near(connection: Connection, ref: str) -> str:
    like = documents.similar_refs(connection, ref, most=MOST_NAMED) if ref else ()
    hint = "give the ref of an answer, or metadata.external_id of a result of `larder search --json`"
    return f"{hint}; like it are {', '.join(like)}" if like else hint


# As a set for `larder eval` -----------------------------------------------------------------------

GRADES = {"useful": 2, "noise": 0}


def export(connection: Connection, folder: Path) -> Json:
    """Write all that can be found, the questions and what was said into a new `folder`, for this user only.

    Verdicts on documents that are no longer searchable are left out. Counts what was written.

    Raises:
        ConfigurationError: the folder is not empty, or nobody has marked anything that is still there.
    """
    dataset.refuse_used(folder)
    names = documents.corpus_names(connection)
    said = [row for row in feedback.listed(connection) if row["document_id"] in names]
    if not said:
        raise ConfigurationError(
            "nobody has marked a document that is still searchable",
            fix="mark some: `larder feedback ITEM REF useful`",
        )
    asked = _ids_of(said)
    queries = {row["key"]: _query(row, asked[row["key"]]) for row in said}
    graded = sorted(
        (asked[row["key"]], SECTIONS[Kind(row["kind"])], names[row["document_id"]], GRADES[row["verdict"]])
        for row in said
    )
    verdicts = Counter(row["verdict"] for row in said)
    counts = {"documents": len(names), "queries": len(queries), **{name: verdicts[name] for name in GRADES}}
    dataset.write(
        folder,
        documents=documents.corpus(connection),
        queries=queries.values(),
        relevant=((query, ref, grade) for query, _, ref, grade in graded),
        context=graded,
        counts=counts,
    )
    return counts


def _ids_of(said: Sequence[Json]) -> dict[str, str]:
    """Key -> id of a question; of items with the same id in several projects each is named with its project."""
    items = {row["key"]: row for row in said if "text" not in row["question"]}
    times = Counter(row["item"] for row in items.values())
    named = {
        key: f"{row['project']}:{row['item']}" if times[row["item"]] > 1 else row["item"]
        for key, row in items.items()
    }
    return {row["key"]: f"q-{row['key'][:12]}" for row in said} | named


def _query(said: Json, name: str) -> Json:
    asked = said["question"]
    title = str(asked.get("title") or "")
    body = str(asked.get("description") or "").removeprefix(f"# {title}\n").strip()
    criteria: Sequence[str] = asked.get("acceptance_criteria") or ()
    whole = asked.get("text") or "\n".join(part for part in (title, body, *criteria) if part) or said["item"]
    plain = {
        "project": said["project"],
        "title": title,
        "description": body,
        "acceptance_criteria": list(criteria),
    }
    return {"_id": name, "text": whole, **{name: value for name, value in plain.items() if value}}
