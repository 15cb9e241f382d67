"""Answers on what is found and why: search, explain, why-visible, stories search."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from pipeline.documents import Json, Kind, SourceType
from pipeline.documents.plain_text import json_scalar
from pipeline.enrichment.text import passage
from pipeline.errors import ConfigurationError
from pipeline.ledger import ALL, project_id, sources
from pipeline.search import Hit, SearchRequest
from pipeline.search.records import Filter, validity_note
from workers.app import search as searching
from workers.app.questions import Tell
from workers.runtime import Runtime, current_user

_Value = TypeVar("_Value")


# Search -------------------------------------------------------------------------------------------


def search(
    runtime: Runtime, tell: Tell, *, text: str, options: Json, explain: bool, passage_length: int
) -> Json:
    """`document`, which `--json` prints, and what a screen shows besides."""
    tenant = runtime.settings.tenant_id
    request = request_of(runtime, tell, text, options, explain=explain)
    results = searching.search(runtime, tenant, request, by=current_user())
    runtime.audit_log.flush()  # before the answer: whoever reads it may leave in the middle, and end us with that
    document = searching.to_json(runtime, tenant, results, local=True)
    is_empty = bool(results.model) and not results.hits and not searching.holds_documents(runtime, tenant)
    if explain:
        _mark_truncated(runtime, results.hits, document["results"])
    return {
        "document": document,
        "hits": [_screen_hit(hit, text, passage_length) for hit in results.hits],
        "model": results.model,
        "partial": str(results.partial or ""),
        "empty_tenant": runtime.settings.tenant if is_empty else "",
    }


def _mark_truncated(runtime: Runtime, hits: Sequence[Hit], explained: Sequence[Json]) -> None:
    """Note in each explanation whether the model read the whole text."""
    truncated = searching.are_truncated(runtime, [hit.chunk.embedding_text for hit in hits]) if hits else None
    for result, is_truncated in zip(explained, truncated or (), strict=False):
        result["explanation"]["cut"] = is_truncated


def _screen_hit(hit: Hit, question: str, length: int) -> Json:
    """Fields of a hit for the screen, besides its result."""
    best = passage(hit.chunk.content, question, length=length)
    return {
        "text": best.text,
        "marks": [[*mark] for mark in best.marks],
        "link": str(hit.document.url or hit.document.metadata.get("source_path") or ""),
        "standing": validity_note(hit.document),
        "feedback": hit.explanation.feedback_why if hit.explanation else "",
    }


def request_of(
    runtime: Runtime, tell: Tell, text: str, options: Json, *, explain: bool = False
) -> SearchRequest:
    """A question with the options of the command line; `tell` hears of projects that hold nothing.

    Raises:
        ConfigurationError: a word means nothing; the message says which and what is known.
    """
    tenant = runtime.settings.tenant_id
    mode, projects = searching.mode_of(options["mode"]), searching.names_in(options["project"] or ())
    condition = filter_of(runtime, options)
    for line in searching.unknown_projects(runtime, tenant, projects) if projects else ():
        tell("notice", line)
    return SearchRequest(text=text, mode=mode, k=options["k"], filter=condition, explain=explain)


def filter_of(runtime: Runtime, options: Json) -> Filter:
    """Which documents are asked for; raises as `request_of` does."""
    tenant = runtime.settings.tenant_id
    since, until = _period(ZoneInfo(runtime.rag.timezone), options["since"], options["until"])
    if options["source"]:
        _refuse_unknown(runtime, tenant, options["source"])
    names = searching.names_in(options["project"] or ())
    return Filter(
        source_types=_each("--source-type", options["source_type"], SourceType.parse),
        kinds=_each("--kind", options["kind"], _kind),
        tags=_each("--tag", options["tag"], str),
        sources=_each("--source", options["source"], str),
        projects=tuple(sorted({project_id(tenant, name) for name in names})) if names else ALL,
        since=since,
        until=until,
        metadata=_each("--metadata", options["metadata"], _pair),
        security_levels=_each("--security-level", options["security_level"], str) or ALL,
        exclude=_each("--exclude", options["exclude"], _id),
    )


def _period(zone: ZoneInfo, since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    now = datetime.now(UTC)
    begin = moment("--since", since, now, zone) if since else None
    end = moment("--until", until, now, zone, end=True) if until else None
    if begin and end and begin >= end:
        raise ConfigurationError(
            f"--since {since} is not before --until {until}: nothing lies between them",
            fix="change one of them",
        )
    return begin, end


def _refuse_unknown(runtime: Runtime, tenant: UUID, names: Iterable[str]) -> None:
    with runtime.database.tenant(tenant) as connection:
        source_names = [row.name for row in sources.listed(connection)]
    for name in names:
        if name not in source_names:
            listed = ", ".join(source_names) or "none; none has been synced yet"
            raise ConfigurationError(f"--source: there is no source {name!r}", fix=f"known are: {listed}")


def _each(option: str, words: Sequence[str] | None, parse: Callable[[str], _Value]) -> tuple[_Value, ...]:
    try:
        return tuple(parse(word) for word in words or ())
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}", fix="see `larder search --help`") from None


def _kind(word: str) -> Kind:
    try:
        return Kind(word.strip().lower())
    except ValueError:
        raise ValueError(f"unknown kind {word!r}; known are {', '.join(Kind)}") from None


def _id(word: str) -> UUID:
    """A document's id, or that of one of its hits."""
    try:
        return UUID(word.strip().partition(":")[0])
    except ValueError:
        raise ValueError(f"{word!r} is no id of a document") from None


def _pair(word: str) -> tuple[str, object]:
    key, mark, value = word.partition("=")
    if not mark or not key.strip():
        raise ValueError(f"{word!r} is not of the form KEY=VALUE, such as team=search")
    return key.strip(), json_scalar(value)


_AGO = re.compile(r"(\d{1,6})\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def moment(option: str, word: str, now: datetime, zone: ZoneInfo, *, end: bool = False) -> datetime:
    """The moment that `word` means: 2025-01-31, an RFC 3339 time, or how long ago (12h, 7d).

    A day is one of `zone`; with `end` it is the day's end, so that a day given as the last one counts whole. A time
    without an offset is one of `zone`, too.

    Raises:
        ConfigurationError: it is none of these.
    """
    short = word.strip()
    try:
        if ago := _AGO.fullmatch(short.lower()):
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        parsed = datetime.fromisoformat(short)
        if _DAY.fullmatch(short) and end:
            parsed += timedelta(days=1)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"{option}: {word!r} is no date",
            fix="write 2025-01-31, 2025-01-31T08:00:00Z, or how long ago: 7d, 12h",
        ) from None


# Explain ------------------------------------------------------------------------------------------


def explain(runtime: Runtime, tell: Tell, *, document: str, options: Json, query: str | None) -> Json:
    """The document of `larder explain --json`."""
    from workers.app import explain as explaining

    tenant = runtime.settings.tenant_id
    request = request_of(runtime, tell, query or "", options)
    answer_json: Json = {"document": explaining.find(runtime, tenant, document)}
    if query is not None:
        answer_json["query"] = {
            "text": query,
            **explaining.why(runtime, tenant, answer_json["document"], request),
        }
    return answer_json


def why_visible(runtime: Runtime, _tell: Tell, *, user: str, document: str, rights: Json) -> Json:
    """The document of `larder why-visible --json`, and the `title`."""
    from workers.app import explain as explaining
    from workers.app import tokens

    caller = tokens.caller_of(rights, user, runtime.settings.tenant)
    facts = explaining.find(runtime, runtime.settings.tenant_id, document)
    judgement = explaining.why_visible(caller, facts)
    return {"document": {"user": user, "document": facts["id"], **judgement}, "title": facts["title"]}


# Stories ------------------------------------------------------------------------------------------


def stories_search(runtime: Runtime, _tell: Tell, *, query: Json, prompt: bool) -> Json:
    """Similar `stories`, the text of a generator's `prompt` if it is asked for, and the `reason` if there are none."""
    from pipeline.stories import format_examples_for_prompt
    from workers.app.enrichment import stories

    tenant = runtime.settings.tenant_id
    hits = stories.search(runtime, tenant, stories.StoryQuery(**query, examples=prompt))
    runtime.audit_log.flush()
    memory = stories.memory_of(runtime, tenant, runtime.settings.tenant)
    return {
        "stories": hits,
        "prompt": format_examples_for_prompt(hits, memory=memory) if prompt and hits else "",
        "reason": "" if hits else stories.why_none(memory, prompt=prompt),
    }
