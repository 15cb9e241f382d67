"""Search, documents, sources and projects over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4, uuid5

from fastapi import APIRouter, Depends, File, Form, Path, Query, Request, Response, UploadFile
from pydantic import BaseModel, BeforeValidator, Field, StrictBool

from pipeline.access import ADMIN, OPERATE, WRITE, Caller
from pipeline.documents import Kind, SourceType
from pipeline.ledger import NAMESPACE, storable
from pipeline.search.records import Mode, SearchRequest
from workers.api import problems
from workers.api.callers import CurrentRuntime, Moment, NotFlag, ProjectName, Reader, RequestBody, may
from workers.app.ingestion.upload import MOST_FILES, SentDocument, create_project, remove, upload
from workers.app.search import LONGEST_QUERY, MOST_K, document_as, request_of, search_as, to_json
from workers.app.status import projects_of, run_of, runs_of, sources_of

router = APIRouter(prefix="/api/v1", tags=["knowledge"])

TopK = Annotated[
    Annotated[int, Field(ge=1, le=MOST_K), NotFlag] | None,
    Field(description="Reduced to the configured maximum.", examples=[5]),
]


class RAGQueryRequest(RequestBody):
    """A query to one project."""

    project_id: ProjectName
    query_text: Annotated[
        str, Field(min_length=1, max_length=LONGEST_QUERY, examples=["How are leases kept?"])
    ]
    top_k: TopK = None


class KnowledgeItemResult(BaseModel):
    """A chunk of a document."""

    id: UUID
    chunk_text: str
    similarity_score: float
    weak: bool = Field(default=False, description="Among the nearest chunks, but hardly relevant.")
    metadata: dict[str, Any] | None
    document_id: UUID


class RAGQueryResponse(BaseModel):
    """The best chunks, best first."""

    results: list[KnowledgeItemResult]
    query_id: UUID
    total_results: int
    degradation_level: int = Field(default=0, description="0 is normal, 3 is keyword search alone.")
    partial: dict[str, int | None] | None = Field(
        default=None,
        description="During loading: `without_vectors` of all `documents`; null if the caller may not see all.",
    )
    weak: bool = Field(default=False, description="No close chunk was found: each result is weak.")


@router.post("/rag/query", responses=problems.responses(404))
def rag_query(body: RAGQueryRequest, runtime: CurrentRuntime, caller: Reader) -> RAGQueryResponse:
    """The chunks of a project that match a query best."""
    request = SearchRequest(text=body.query_text, k=body.top_k, dedupe=False)
    answer = to_json(runtime, caller.tenant, search_as(runtime, caller, request, [body.project_id]))
    results = []
    for hit in answer["results"]:
        api_fields = {"id": uuid5(NAMESPACE, hit["id"]), "chunk_text": hit["content"]}
        fields = {**hit, **api_fields, "similarity_score": hit["score"]}
        results.append(KnowledgeItemResult.model_validate(fields))
    return RAGQueryResponse(
        results=results,
        query_id=uuid4(),
        total_results=len(results),
        degradation_level=answer["degradation_level"],
        partial=answer.get("partial"),
        weak=answer["weak"],
    )


def _source_type(value: object) -> object:
    return SourceType.parse(value) if isinstance(value, str) else value  # pydantic refuses other types


class SearchBody(RequestBody):
    """A query with filters, to projects of the caller."""

    text: Annotated[str, Field(min_length=1, max_length=LONGEST_QUERY, examples=["How are leases kept?"])]
    k: TopK = None
    mode: Mode = "hybrid"
    projects: tuple[str, ...] = Field(
        default=(), max_length=100, description="Ids or names. Empty: all projects of the caller."
    )
    source_types: tuple[Annotated[SourceType, BeforeValidator(_source_type)], ...] = ()
    kinds: tuple[Kind, ...] = ()
    tags: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    since: Moment | None = None
    until: Moment | None = None
    metadata: dict[str, Any] = Field(
        default={},
        description="All of these: the document's value, or one member of its list, is equal or is written the same "
        "(3 and `3`).",
    )
    explain: StrictBool = False


@router.post("/search", responses=problems.responses(404))
def search(body: SearchBody, runtime: CurrentRuntime, caller: Reader) -> dict[str, Any]:
    """The JSON of `larder search --json`."""
    request = request_of(**{name: value for name, value in vars(body).items() if name != "projects"})
    return to_json(runtime, caller.tenant, search_as(runtime, caller, request, body.projects))


class DocumentBody(RequestBody, SentDocument):
    """A document to upload."""


class UploadBody(RequestBody):
    """Documents for a project."""

    project_id: ProjectName
    documents: Annotated[list[DocumentBody], Field(min_length=1, max_length=MOST_FILES)]


class UploadedDocument(BaseModel):
    """The ids of an uploaded document."""

    external_id: str
    document_id: UUID


class Rejected(BaseModel):
    """An item that cannot be uploaded, with the reason."""

    item: str
    reason: str


class UploadResponse(BaseModel):
    """Accepted and rejected items; `/api/v1/runs/{run}` shows when they are searchable."""

    run: int
    documents: list[UploadedDocument]
    rejected: list[Rejected]
    noted: list[Rejected] = Field(description="Accepted, but read in part.")


Writer = Annotated[Caller, Depends(may(WRITE))]


def _accepted(request: Request, response: Response, result: dict[str, Any]) -> UploadResponse:
    response.status_code = 202
    response.headers["Location"] = str(request.url_for("run", run_id=result["run"]).path)
    return UploadResponse(**result)


@router.post("/knowledge/upload", status_code=202, responses=problems.responses(404))
def upload_files(
    request: Request,
    response: Response,
    runtime: CurrentRuntime,
    caller: Writer,
    project_id: Annotated[ProjectName, Form()],
    files: Annotated[
        list[UploadFile],
        File(description="Markdown, text, JSON, HTML, RST, AsciiDoc, PDF and DOCX", min_length=1),
    ],
) -> UploadResponse:
    """Upload files; a file of the same name is replaced, an unchanged one is skipped."""
    read = [(storable(file.filename or ""), file.file.read()) for file in files[: MOST_FILES + 1]]
    return _accepted(request, response, upload(runtime, caller, project_id, read))


@router.post("/knowledge/documents", status_code=202, responses=problems.responses(404))
def upload_documents(
    body: UploadBody, request: Request, response: Response, runtime: CurrentRuntime, caller: Writer
) -> UploadResponse:
    """Upload documents; one with the same external id is replaced."""
    sent_documents = [one.model_dump(mode="json") for one in body.documents]
    return _accepted(request, response, upload(runtime, caller, body.project_id, documents=sent_documents))


@router.delete("/knowledge/documents/{document_id}", status_code=204, responses=problems.responses(404))
def delete_document(document_id: UUID, runtime: CurrentRuntime, caller: Writer) -> None:
    """Delete an uploaded document."""
    remove(runtime, caller, document_id)


class WholeDocument(BaseModel):
    """A document with its whole text."""

    document_id: UUID
    external_id: str
    title: str
    url: str
    source: str
    source_type: SourceType
    kind: Kind
    tags: list[str]
    metadata: dict[str, Any]
    project_id: UUID
    updated_at: datetime | None
    text: str | None


@router.get("/documents/{document_id}", responses=problems.responses(404))
def document(document_id: UUID, runtime: CurrentRuntime, caller: Reader) -> WholeDocument:
    """A document that the caller may see."""
    return WholeDocument.model_validate(document_as(runtime, caller, document_id))


class Run(BaseModel):
    """Progress of a sync or an upload."""

    id: int
    state: Literal["discovering", "processing", "finished", "failed"]
    listed: int
    unchanged: int
    queued: int
    indexed: int
    dead: int
    failed: int
    finished_at: datetime | None
    problems: list[dict[str, Any]]


@router.get("/runs/{run_id}", responses=problems.responses(404))
def run(run_id: Annotated[int, Path(ge=1, le=2**63 - 1)], runtime: CurrentRuntime, caller: Writer) -> Run:
    """Progress of a run; its documents are searchable when it is `finished`."""
    return Run.model_validate(run_of(runtime, caller, run_id), from_attributes=True)


class KnowledgeSource(BaseModel):
    """A source of documents."""

    name: str
    type: str
    project_id: UUID
    state: Literal["active", "paused", "removed"]
    last_sync: datetime | None
    next_sync: datetime | None
    last_error: str | None


@router.get("/sources")
def sources(runtime: CurrentRuntime, caller: Reader) -> list[KnowledgeSource]:
    """Sources of the caller's projects."""
    return [KnowledgeSource.model_validate(one) for one in sources_of(runtime, caller)]


Operator = Annotated[Caller, Depends(may(OPERATE))]


@router.get("/sources/{name}/runs", responses=problems.responses(404))
def runs(
    name: str, runtime: CurrentRuntime, caller: Operator, limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> list[Run]:
    """The newest syncs of a source."""
    return [Run.model_validate(one, from_attributes=True) for one in runs_of(runtime, caller, name, limit)]


class Project(BaseModel):
    """A project of the tenant."""

    id: UUID
    name: Annotated[str, Field(min_length=1, max_length=200)]


class ProjectBody(RequestBody):
    """A project to create."""

    name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"[^\s\x1c-\x1f\x85]")]


@router.get("/projects")
def projects(runtime: CurrentRuntime, caller: Reader) -> list[Project]:
    """The projects that the caller may see."""
    return [Project(id=key, name=name) for key, name in projects_of(runtime, caller).items()]


@router.post("/projects", status_code=201)
def make_project(
    body: ProjectBody, runtime: CurrentRuntime, caller: Annotated[Caller, Depends(may(ADMIN))]
) -> Project:
    """Create a project; an existing one is returned unchanged."""
    return Project(id=create_project(runtime, caller, body.name), name=body.name)
