"""Questions to the knowledge of a project, and where it comes from."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID, uuid4, uuid5

from fastapi import APIRouter
from pydantic import BaseModel, Field

from pipeline.ledger import NAMESPACE
from workers.api import problems
from workers.api.callers import Parts, Reader
from workers.search import query, to_json

router = APIRouter(prefix="/api/v1", tags=["knowledge"])

LONGEST_QUERY = 10_000
"""Characters."""
LARGEST = 2**31 - 1


class RAGQueryRequest(BaseModel):
    """A question to one project."""

    project_id: UUID = Field(examples=["8c1f7a54-5a9c-5b6e-8f0a-0d3c1c2b7a11"])
    query_text: Annotated[
        str, Field(min_length=1, max_length=LONGEST_QUERY, examples=["How are leases kept?"])
    ]
    top_k: Annotated[int, Field(ge=1, le=LARGEST)] | None = Field(
        default=None, description="More than the configured most is cut to that.", examples=[5]
    )


class KnowledgeItemResult(BaseModel):
    """A chunk of a document."""

    id: UUID
    chunk_text: str
    similarity_score: float
    metadata: dict[str, Any] | None
    document_id: UUID


class RAGQueryResponse(BaseModel):
    """The best chunks, best first."""

    results: list[KnowledgeItemResult]
    query_id: UUID
    total_results: int
    degradation_level: int = Field(default=0, description="0 is normal; 3: by words alone.")


@router.post("/rag/query", responses=problems.responses(404))
def rag_query(asked: RAGQueryRequest, parts: Parts, caller: Reader) -> RAGQueryResponse:
    """The chunks of a project that answer a question best."""
    found = query(parts, caller, str(asked.project_id), asked.query_text, asked.top_k)
    told = to_json(parts, caller.tenant, found)
    results = [
        KnowledgeItemResult(
            id=uuid5(NAMESPACE, hit["id"]),
            chunk_text=hit["content"],
            similarity_score=hit["score"],
            metadata=hit["metadata"],
            document_id=hit["document_id"],
        )
        for hit in told["results"]
    ]
    return RAGQueryResponse(
        results=results,
        query_id=uuid4(),
        total_results=len(results),
        degradation_level=told["degradation_level"],
    )
