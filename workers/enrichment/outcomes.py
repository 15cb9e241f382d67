"""How an enrichment ends for whoever asked: with an answer, or with an error that says why there is none."""

from __future__ import annotations

from pipeline.documents import Json
from pipeline.errors import LarderError, SearchError
from pipeline.ledger.jobs import JobRow


class EnrichmentFailed(SearchError):
    """The enrichment failed."""


class EnrichmentExpired(SearchError):
    """No worker took the enrichment before its deadline."""


class NoAnswerYet(SearchError):
    """The enrichment is still under way."""

    transient = True


class UnknownJob(SearchError):
    """There is no such enrichment, or no longer."""


def answer_of(job: JobRow) -> Json:
    """The answer of a job that is done; of any other the error."""
    if job.state == "done":
        return dict(job.result or {})
    raise _why(job)


def _why(job: JobRow) -> LarderError:
    if job.state == "failed":
        return EnrichmentFailed(
            f"the enrichment failed: {job.error}",
            fix=f"it was tried {job.attempts} times; ask again" if job.attempts > 1 else "",
        )
    if job.state == "expired":
        return EnrichmentExpired(
            f"the enrichment expired: {job.error}", fix="see `larder status`, or allow more time"
        )
    state = "waits for a worker" if job.state == "queued" else "is being worked on"
    return NoAnswerYet(f"no answer yet: it {state}", fix="ask again with the same id")
