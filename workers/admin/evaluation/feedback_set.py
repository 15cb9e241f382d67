"""A judged set for `larder eval`, made of what people said of documents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.documents import Json, Kind
from pipeline.enrichment.request import SECTIONS
from pipeline.errors import ConfigurationError
from pipeline.search import feedback
from workers.admin.evaluation.dataset import CORPUS, JUDGEMENTS, META, QUERIES, refuse_used

CONTEXT = "context_judgements.tsv"
CONTEXT_HEADER = ("item", "section", "ref", "grade")
GRADES = {"useful": 2, "noise": 0}
PAGE = 500

# Of two documents with the same id in different sources both are named with theirs.
_NAMES = text("""
    select d.id, case when count(*) over (partition by d.external_id) = 1 then d.external_id
                      else s.name || ':' || d.external_id end as name
    from document d join source s on s.id = d.source_id
    where d.indexed_version is not null and not d.hidden and not d.deleted order by d.number""")

_DOCUMENTS = text("""
    select d.id, d.title, coalesce(b.body, '') as text, d.kind, d.source_type, d.url, d.tags, d.metadata
    from document d left join document_body b on b.document_id = d.id and b.version = d.indexed_version
    where d.id = any(:ids) order by d.number""")


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
    queries = {_id_of(row): _query(row) for row in said}
    judged = sorted((_id_of(row), names[row["document_id"]], row["verdict"], row["kind"]) for row in said)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    _write(folder / CORPUS, map(_line, _corpus(connection, names)))
    _write(folder / QUERIES, map(_line, queries.values()))
    relevant = (f"{query}\t{ref}\t{GRADES[verdict]}" for query, ref, verdict, _ in judged)
    _write(folder / JUDGEMENTS, ("query-id\tcorpus-id\tscore", *relevant))
    graded = (
        f"{query}\t{SECTIONS[Kind(kind)]}\t{ref}\t{GRADES[verdict]}" for query, ref, verdict, kind in judged
    )
    _write(folder / CONTEXT, ("\t".join(CONTEXT_HEADER), *graded))
    verdicts = [row["verdict"] for row in said]
    counts = {
        "documents": len(names),
        "queries": len(queries),
        "useful": verdicts.count("useful"),
        "noise": verdicts.count("noise"),
    }
    # A question that is an indexed item has the id of its document, which is not to be found for it.
    _write(folder / META, [json.dumps({"self_exclude": True, **counts}, indent=1)])
    return counts


def _corpus(connection: Connection, names: dict[UUID, str]) -> Iterator[Json]:
    ids = list(names)
    for start in range(0, len(ids), PAGE):
        rows = connection.execute(_DOCUMENTS, {"ids": ids[start : start + PAGE]})
        for row in rows.mappings():
            yield {"_id": names[row["id"]], **{key: value for key, value in row.items() if key != "id"}}


def _id_of(said: Json) -> str:
    return f"q-{said['key'][:12]}" if "text" in said["question"] else " ".join(str(said["item"]).split())


def _query(said: Json) -> Json:
    asked = said["question"]
    title = str(asked.get("title") or "")
    body = str(asked.get("description") or "").removeprefix(f"# {title}\n").strip()
    criteria: Sequence[str] = asked.get("acceptance_criteria") or ()
    whole = asked.get("text") or "\n".join(part for part in (title, body, *criteria) if part) or said["item"]
    plain = {"title": title, "description": body, "acceptance_criteria": list(criteria)}
    return {"_id": _id_of(said), "text": whole, **{name: value for name, value in plain.items() if value}}


def _line(row: Json) -> str:
    return json.dumps(row, ensure_ascii=False)


def _write(path: Path, lines: Iterable[str]) -> None:
    with path.open("x", encoding="utf-8") as out:
        out.writelines(f"{line}\n" for line in lines)
