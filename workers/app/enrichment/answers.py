"""The answer of a job as its asker gets it: whose it is, and the errors where there is none."""

from __future__ import annotations

from uuid import UUID

from pipeline.access import Caller
from pipeline.documents import Json
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.enrichment.text import truncated
from pipeline.errors import NotFound, RequestRejected, SearchError
from pipeline.ledger import ALL, All, project_id
from pipeline.ledger.jobs import JobRow


class EnrichmentFailed(SearchError):
    """The enrichment failed."""


class EnrichmentExpired(SearchError):
    """No worker took the enrichment before its deadline."""


class NoAnswerYet(SearchError):
    """The enrichment is still under way."""

    transient = True


class UnknownJob(NotFound):
    """There is no such enrichment, or no longer."""


def job_uuid(job_id: UUID | str) -> UUID:
    """The id of a job.

    Raises:
        UnknownJob: it is none.
    """
    try:
        return UUID(str(job_id))
    except ValueError:
        message = f"{truncated(str(job_id))!r} is no id of an enrichment"
        raise UnknownJob(message, fix="give the id that submit gave") from None


def may_read(caller: Caller, job: JobRow) -> bool:
    """Whether an answer holds nothing that the caller may not see; one that was asked without a caller may."""
    try:
        rights = EnrichmentRequest.from_json(job.request).filter
    except RequestRejected:  # a job of an action
        return False
    caller_filter = caller.search_filter
    return (
        caller.may_see(job.project_id)
        and _holds(caller_filter.security_levels, rights.security_levels)
        and _holds(caller_filter.readers, rights.readers)
        and all(caller.may_see(project_id(caller.tenant, name)) for name in job.request.get("projects", ()))
    )


def _holds(held_rights: tuple[str, ...] | All, needed_rights: tuple[str, ...] | All) -> bool:
    return held_rights == ALL or (needed_rights != ALL and set(needed_rights) <= set(held_rights))


def answer_of(job: JobRow) -> Json:
    """The answer of a job that is done; for any other its error is raised."""
    if job.state == "done":
        return dict(job.result or {})
    if job.state == "failed":
        fix = f"it was tried {job.attempts} times; ask again" if job.attempts > 1 else ""
        raise EnrichmentFailed(f"the enrichment failed: {job.error}", fix=fix)
    if job.state == "expired":
        fix = "see `larder status`, or allow more time"
        raise EnrichmentExpired(f"the enrichment expired: {job.error}", fix=fix)
    state = "waits for a worker" if job.state == "queued" else "is being worked on"
    raise NoAnswerYet(f"no answer yet: it {state}", fix="ask again with the same id")
