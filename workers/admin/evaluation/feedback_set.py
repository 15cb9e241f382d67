"""A judged set for `larder eval`, made of what people said of documents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.documents import Json, Kind
from pipeline.enrichment.request import SECTIONS
from pipeline.errors import ConfigurationError
from pipeline.search import feedback
from workers.admin.evaluation.dataset import (
    CONTEXT,
    CONTEXT_HEADER,
    CORPUS,
    JUDGEMENTS,
    JUDGEMENTS_HEADER,
    META,
    QUERIES,
    refuse_used,
    table_row,
    write_lines,
)
from workers.admin.evaluation.set_builder import documents_of, line_of

GRADES = {"useful": 2, "noise": 0}

# Of two documents with the same id in different sources both are named with theirs.
_NAMES = text("""
    select d.id, case when count(*) over (partition by d.external_id) = 1 then d.external_id
                      else s.name || ':' || d.external_id end as name
    from document d join source s on s.id = d.source_id
    where d.indexed_version is not null and not d.hidden and not d.deleted order by d.number""")


def export(connection: Connection, folder: Path) -> Json:
    """Write all that can be found, the questions and what was said into a new `folder`, for this user only.

    Verdicts on documents that are no longer searchable are left out. Counts what was written.

    Raises:
        ConfigurationError: the folder is not empty, or nobody has marked anything that is still there.
    """
    refuse_used(folder)
    names: dict[UUID, str] = {row.id: row.name for row in connection.execute(_NAMES)}
    said = [row for row in feedback.listed(connection) if row["document_id"] in names]
    if not said:
        raise ConfigurationError(
            "nobody has marked a document that is still searchable",
            fix="mark some: `larder feedback ITEM REF useful`",
        )
    asked = _ids_of(said)
    queries = {row["key"]: _query(row, asked[row["key"]]) for row in said}
    judged = sorted(
        (asked[row["key"]], names[row["document_id"]], row["verdict"], row["kind"]) for row in said
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    write_lines(folder / CORPUS, map(line_of, documents_of(connection)))
    write_lines(folder / QUERIES, (json.dumps(row, ensure_ascii=False) for row in queries.values()))
    relevant = (table_row(query, ref, GRADES[verdict]) for query, ref, verdict, _ in judged)
    write_lines(folder / JUDGEMENTS, (table_row(*JUDGEMENTS_HEADER), *relevant))
    graded = (
        table_row(query, SECTIONS[Kind(kind)], ref, GRADES[verdict]) for query, ref, verdict, kind in judged
    )
    write_lines(folder / CONTEXT, (table_row(*CONTEXT_HEADER), *graded))
    verdicts = [row["verdict"] for row in said]
    counts = {
        "documents": len(names),
        "queries": len(queries),
        "useful": verdicts.count("useful"),
        "noise": verdicts.count("noise"),
    }
    # A question that is an indexed item has the id of its document, which is not to be found for it.
    write_lines(folder / META, [json.dumps({"self_exclude": True, **counts}, indent=1)])
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
