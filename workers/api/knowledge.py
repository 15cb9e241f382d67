"""Questions to the knowledge of a project, and where it comes from."""

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
from workers.admin.status import projects_of, run_of, runs_of, sources_of
from workers.api import problems
from workers.api.callers import Moment, NotFlag, Parts, ProjectName, Reader, RequestBody, may
from workers.control.upload import MOST_FILES, SentDocument, create_project, remove, upload
from workers.search import LONGEST_QUERY, MOST_K, document_as, request_of, search_as, to_json

router = APIRouter(prefix="/api/v1", tags=["knowledge"])

TopK = Annotated[
    Annotated[int, Field(ge=1, le=MOST_K), NotFlag] | None,
    Field(description="More than the configured most is cut to that.", examples=[5]),
]


class RAGQueryRequest(RequestBody):
    """A question to one project."""

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
    weak: bool = Field(default=False, description="Among the nearest, and hardly an answer.")
    metadata: dict[str, Any] | None
    document_id: UUID


class RAGQueryResponse(BaseModel):
    """The best chunks, best first."""

    results: list[KnowledgeItemResult]
    query_id: UUID
    total_results: int
    degradation_level: int = Field(default=0, description="0 is normal; 3: by words alone.")
    partial: dict[str, int | None] | None = Field(
        default=None,
        description="While documents are loaded: `without_vectors` of all `documents`; null for who may not see all.",
    )
    weak: bool = Field(default=False, description="Nothing close was found: each result is weak.")


@router.post("/rag/query", responses=problems.responses(404))
def rag_query(asked: RAGQueryRequest, parts: Parts, caller: Reader) -> RAGQueryResponse:
    """The chunks of a project that answer a question best."""
    request = SearchRequest(text=asked.query_text, k=asked.top_k, dedupe=False)
    told = to_json(parts, caller.tenant, search_as(parts, caller, request, [asked.project_id]))
    results = []
    for hit in told["results"]:
        ours = {"id": uuid5(NAMESPACE, hit["id"]), "chunk_text": hit["content"]}
        told_of = {**hit, **ours, "similarity_score": hit["score"]}
        results.append(KnowledgeItemResult.model_validate(told_of))
    return RAGQueryResponse(
        results=results,
        query_id=uuid4(),
        total_results=len(results),
        degradation_level=told["degradation_level"],
        partial=told.get("partial"),
        weak=told["weak"],
    )


def _source_type(value: object) -> object:
    return SourceType.parse(value) if isinstance(value, str) else value  # which the type then refuses


class SearchBody(RequestBody):
    """A question with conditions, to the projects of the caller."""

    text: Annotated[str, Field(min_length=1, max_length=LONGEST_QUERY, examples=["How are leases kept?"])]
    k: TopK = None
    mode: Mode = "hybrid"
    projects: tuple[str, ...] = Field(
        default=(), max_length=100, description="Ids or names. Empty: all of the caller."
    )
    source_types: tuple[Annotated[SourceType, BeforeValidator(_source_type)], ...] = ()
    kinds: tuple[Kind, ...] = ()
    tags: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    since: Moment | None = None
    until: Moment | None = None
    metadata: dict[str, Any] = Field(default={})
    explain: StrictBool = False


@router.post("/search", responses=problems.responses(404))
def search(asked: SearchBody, parts: Parts, caller: Reader) -> dict[str, Any]:
    """The document of `larder search --json`."""
    request = request_of(**{name: value for name, value in vars(asked).items() if name != "projects"})
    return to_json(parts, caller.tenant, search_as(parts, caller, request, asked.projects))


class DocumentBody(RequestBody, SentDocument):
    """A text to be found."""


class UploadBody(RequestBody):
    """Documents for a project."""

    project_id: ProjectName
    documents: Annotated[list[DocumentBody], Field(min_length=1, max_length=MOST_FILES)]


class UploadedDocument(BaseModel):
    """What a document is called from now on."""

    external_id: str
    document_id: UUID


class Rejected(BaseModel):
    """What cannot be taken, and why."""

    item: str
    reason: str


class UploadResponse(BaseModel):
    """What was taken; `/api/v1/runs/{run}` tells when it can be found."""

    run: int
    documents: list[UploadedDocument]
    rejected: list[Rejected]
    noted: list[Rejected] = Field(description="Taken, and read in part.")


Writer = Annotated[Caller, Depends(may(WRITE))]


def _accepted(request: Request, response: Response, taken: dict[str, Any]) -> UploadResponse:
    response.status_code = 202
    response.headers["Location"] = str(request.url_for("run", run_id=taken["run"]).path)
    return UploadResponse(**taken)


@router.post("/knowledge/upload", status_code=202, responses=problems.responses(404))
def upload_files(
    request: Request,
    response: Response,
    parts: Parts,
    caller: Writer,
    project_id: Annotated[ProjectName, Form()],
    files: Annotated[
        list[UploadFile],
        File(description="Markdown, text, JSON, HTML, RST, AsciiDoc, PDF and DOCX", min_length=1),
    ],
) -> UploadResponse:
    """Take files in; a file of the same name is replaced, one that is the same costs nothing."""
    read = [(storable(file.filename or ""), file.file.read()) for file in files[: MOST_FILES + 1]]
    return _accepted(request, response, upload(parts, caller, project_id, read))


@router.post("/knowledge/documents", status_code=202, responses=problems.responses(404))
def upload_documents(
    asked: UploadBody, request: Request, response: Response, parts: Parts, caller: Writer
) -> UploadResponse:
    """Take documents in; one with the same external id is replaced."""
    given = [one.model_dump(mode="json") for one in asked.documents]
    return _accepted(request, response, upload(parts, caller, asked.project_id, documents=given))


@router.delete("/knowledge/documents/{document_id}", status_code=204, responses=problems.responses(404))
def delete_document(document_id: UUID, parts: Parts, caller: Writer) -> None:
    """Remove a document that was uploaded."""
    remove(parts, caller, document_id)


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
def document(document_id: UUID, parts: Parts, caller: Reader) -> WholeDocument:
    """A document that the caller may see."""
    return WholeDocument.model_validate(document_as(parts, caller, document_id))


class Run(BaseModel):
    """How far a sync or an upload has come."""

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
def run(run_id: Annotated[int, Path(ge=1, le=2**63 - 1)], parts: Parts, caller: Writer) -> Run:
    """How far it has come: what was sent can be found when it is `finished`."""
    return Run.model_validate(run_of(parts, caller, run_id), from_attributes=True)


class KnowledgeSource(BaseModel):
    """A place that documents come from."""

    name: str
    type: str
    project_id: UUID
    state: Literal["active", "paused", "removed"]
    last_sync: datetime | None
    next_sync: datetime | None
    last_error: str | None


@router.get("/sources")
def sources(parts: Parts, caller: Reader) -> list[KnowledgeSource]:
    """Where the documents of the caller's projects come from."""
    return [KnowledgeSource.model_validate(one) for one in sources_of(parts, caller)]


Operator = Annotated[Caller, Depends(may(OPERATE))]


@router.get("/sources/{name}/runs", responses=problems.responses(404))
def runs(
    name: str, parts: Parts, caller: Operator, limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> list[Run]:
    """The newest syncs of a source."""
    return [Run.model_validate(one, from_attributes=True) for one in runs_of(parts, caller, name, limit)]


class Project(BaseModel):
    """Whose documents are searched together."""

    id: UUID
    name: Annotated[str, Field(min_length=1, max_length=200)]


class ProjectBody(RequestBody):
    """A project to be made."""

    name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"[^\s\x1c-\x1f\x85]")]


@router.get("/projects")
def projects(parts: Parts, caller: Reader) -> list[Project]:
    """The projects that the caller may look into."""
    return [Project(id=key, name=name) for key, name in projects_of(parts, caller).items()]


@router.post("/projects", status_code=201)
def make_project(asked: ProjectBody, parts: Parts, caller: Annotated[Caller, Depends(may(ADMIN))]) -> Project:
    """Make a project; one that is there stays as it is."""
    return Project(id=create_project(parts, caller, asked.name), name=asked.name)
