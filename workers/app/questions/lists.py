"""Answers to commands that show what there is: sources, runs, dead letters, the audit; and the token for the API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import Connection

from pipeline.documents import Json
from pipeline.errors import NotFound, StoreError
from pipeline.ledger import audit, tenant_id
from pipeline.ledger.sources import tenant_names
from workers.app import feedback as marking
from workers.app import operations, reindex
from workers.app import status as figures
from workers.app.questions import Tell
from workers.runtime import Runtime, current_user


def status(runtime: Runtime, tell: Tell) -> Json:
    """The document of `larder status --json`."""

    def ask_for_patience(seconds: float) -> None:
        tell(
            "notice",
            f"the database takes {seconds:.1f} s for each answer: this takes about {25 * seconds:.0f} s",
        )

    with closing(
        Runtime(runtime.settings, runtime.addresses)
    ) as looking:  # it closes its connections in between
        looking.answer_timeout = runtime.answer_timeout or figures.WATCH_SECONDS
        try:
            return figures.status(looking, ask_for_patience)
        except StoreError as error:
            return figures.without_database(looking, error)


def runs(runtime: Runtime, _tell: Tell, *, names: Sequence[str], number: int) -> Json:
    """The document of `larder runs --json`."""
    return {"runs": operations.newest_runs(runtime, names, number)}


def sources_list(runtime: Runtime, _tell: Tell) -> Json:
    """The document of `larder sources list --json`."""
    return {"sources": operations.listing(runtime)}


def dead_list(runtime: Runtime, _tell: Tell, *, source: str | None, every: bool) -> Json:
    """The document of `larder dead list --json`."""
    letters = operations.dead_letters(runtime, source, settled=every)
    jobs = [] if source else operations.failed_jobs(runtime)
    return {"dead_letters": [one.to_json() for one in letters], "jobs": jobs}


def dead_show(runtime: Runtime, _tell: Tell, *, letter_id: str) -> Json:
    """The document of `larder dead show --json`."""
    letters, jobs = operations.dead_letters_and_jobs(runtime, [letter_id])
    entry = jobs[0] if jobs else letters[0].to_json()
    history = operations.history(runtime, letters[0]) if letters else []
    return {**entry, "history": [one.to_json() for one in history if one.id != entry["id"]]}


def dead_messages(runtime: Runtime, _tell: Tell) -> Json:
    """The document of `larder dead messages --json`."""
    from workers.app.ingestion.temporary_workers import broker_lost
    from workers.queue import broker

    url = runtime.addresses.broker
    if why := broker.connect_problem(url):
        raise broker_lost(why, broker.advice_on(why))
    return {"total": broker.quarantined_total(url) or 0, "messages": broker.quarantined_messages(url)}


@contextmanager
def _chain(runtime: Runtime, tenant: str | None) -> Iterator[Connection]:
    with runtime.database.tenant(tenant_id(tenant or runtime.settings.tenant)) as connection:
        yield connection


def audit_list(runtime: Runtime, _tell: Tell, *, number: int, action: str | None, tenant: str | None) -> Json:
    """The document of `larder audit list --json`."""
    with _chain(runtime, tenant) as connection:
        return {"entries": audit.listed(connection, number, action)}


def audit_verify(runtime: Runtime, _tell: Tell, *, tenant: str | None, head: str | None) -> Json:
    """The document of `larder audit verify --json`."""
    with _chain(runtime, tenant) as connection:
        chain = audit.verify(connection, head)
        if tenant and not chain.entries and tenant_id(tenant) not in tenant_names(connection):
            raise NotFound(f"there is no tenant {tenant}, and no entry of one")
    problems = [vars(one) for one in chain.problems]
    return {"success": not problems, **vars(chain), "problems": problems}


def keys_status(runtime: Runtime, _tell: Tell) -> Json:
    """The document of `larder keys status --json`."""
    return operations.keys(runtime)


def reindex_status(runtime: Runtime, _tell: Tell) -> Json:
    """The document of `larder reindex status --json`."""
    return reindex.status(runtime)


def feedback(runtime: Runtime, _tell: Tell, *, item: str | None) -> Json:
    """The document of `larder feedback --list --json`."""
    with runtime.database.tenant(runtime.settings.tenant_id) as connection:
        return {"feedback": marking.listed(connection, item)}


def stories_stats(runtime: Runtime, _tell: Tell) -> Json:
    """The document of `larder stories stats --json`."""
    from pipeline.stories.store import story_stats

    with runtime.database.tenant(runtime.settings.tenant_id) as connection:
        return story_stats(connection, runtime.settings.tenant_id)


def token(
    runtime: Runtime,
    tell: Tell,
    *,
    user: str,
    rights: Json,
    permissions: Sequence[str],
    tenant: str | None,
    hours: float,
) -> Json:
    """The document of `larder token --json`; the audit names the token's rights."""
    from workers.app import tokens

    caller = tokens.caller_of(rights, user, tenant or runtime.settings.tenant, permissions)
    issued = tokens.issue_token(runtime.settings, caller, hours=hours)
    granted: dict[str, Any] = {
        "permissions": sorted(caller.permissions),
        "projects": caller.projects,
        "groups": caller.groups,
    }
    with runtime.database.tenant(caller.tenant) as connection:
        detail = {**granted, "security_level": caller.level, "hours": hours}
        audit.append(connection, caller.tenant, "token", user, detail, by=current_user())
        exists = caller.tenant in tenant_names(connection)
    if tenant and not exists:
        tell("notice", f"there is no tenant {tenant} yet; it begins with its first source, story or upload")
    return {"token": issued}
