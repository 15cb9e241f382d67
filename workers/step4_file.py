"""Step 4 for a file of the backlog pipeline: read it, enrich its PBIs through the queue, tell how it went."""

from __future__ import annotations

import codecs
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

from connectors.documents.values import parse_json
from connectors.files.front_matter import read_front_matter
from connectors.files.markdown import MAX_TITLE_LINE
from connectors.pbi.shapes import pbi_items, text_of, top_level
from pipeline.documents import Json
from pipeline.documents.plain_text import first_names, json_type_name, plain_keys
from pipeline.enrichment import report
from pipeline.enrichment.request import CRITERIA_KEYS, DESCRIPTION_KEYS, TITLE_KEYS
from pipeline.errors import ConfigurationError, DocumentRejected
from pipeline.ledger import ALL, project_id, sources, visible_projects
from pipeline.ledger.jobs import BULK, INTERACTIVE
from pipeline.step4 import INPUTS, EnrichContextStep, Outcome, StepOptions, pbi_id, project_of, scored_of
from workers.app.search import MOST_NAMED, names_in, unknown_projects
from workers.client import Client
from workers.runtime import Runtime

MOST_INTERACTIVE = 20
"""Most PBIs for which somebody waits; more are a backlog, which steps aside for them."""
TEXT_ENDINGS = (".md", ".markdown", ".mdx", ".txt")
MOST_NOTICES = 5
"""Most projects that notices are about."""
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, kw_only=True)
class BacklogFile:
    """Content of a file, in the shape that Step 4 reads."""

    context: Json
    flat: bool
    """True if the file is the output of one step and no whole context; so is the output then."""
    items: Sequence[Json]
    """The items, each with its `pbi`."""
    projects: Sequence[str] = ()
    """Projects that PBIs name, each once; an empty name stands for PBIs that name none."""
    repeated: Sequence[str] = ()
    """Ids that more than one PBI has."""


@dataclass(kw_only=True)
class Enriched:
    """Output of Step 4 for a file."""

    document: Json
    items: Sequence[Json]
    """The enriched PBIs."""
    outcomes: Sequence[Outcome]
    seconds: float

    @property
    def failed(self) -> list[Outcome]:
        """PBIs that should have been enriched and were not, in the order of the file."""
        return sorted((o for o in self.outcomes if o.error), key=lambda o: o.index)

    @property
    def exit_code(self) -> int:
        """Exit code: 0 all enriched, 1 none, 3 some."""
        if not self.failed:
            return 0
        return 1 if len(self.failed) == len(self.outcomes) else 3

    def report(self) -> Json:
        """The document of `larder enrich --json`: Step 4's output with what is to be told of it."""
        levels = [item["context"].get("degradation_level") or 0 for item in self.items]
        return {
            "success": not self.failed,
            **self.document,
            "stats": {
                "pbis": len(self.outcomes),
                "enriched": sum(o.status == "enriched" for o in self.outcomes),
                "failed": len(self.failed),
                "time_elapsed": round(self.seconds, 3),
            },
            "degradation_level": max(levels, default=0),
            "errors": [{"pbi": o.id, "index": o.index, "reason": o.error} for o in self.failed],
        }


def read_backlog(path: Path) -> BacklogFile:
    """The PBIs of a file (`-` is standard input): one, a list, what a step of the pipeline has written, or text.

    Raises:
        ConfigurationError: there is no such file.
        DocumentRejected: it holds no PBIs; the message names file and field.
    """
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}", fix="give the file that Step 3 wrote"
        ) from None
    words = _decoded(path, content)
    if is_text(words, path.suffix):
        return backlog_of(path, item_of_text(words))
    return backlog_of(path, _parsed(path, words))


def is_text(words: str, ending: str = "") -> bool:
    """Whether a text is a PBI as a person writes one, and no JSON; `ending` is that of its file."""
    if words.lstrip().startswith(("{", "[")):
        return ending.lower() in TEXT_ENDINGS and words.lstrip().startswith("[") and not _is_json(words)
    return ending.lower() != ".json"


def item_of_text(words: str, title: str = "") -> Json:
    """The PBI of a text: a header, and a title in it or on the first line."""
    head = read_front_matter(words.strip())
    facts: Json = json.loads(json.dumps(head.values, default=str))  # YAML has dates
    text = head.body.strip()
    first, _, below = text.partition("\n")
    titled = title or str(facts.get("title") or "")
    if not titled and len(first := first.lstrip("# ").strip()) <= MAX_TITLE_LINE:
        titled, text = first, below.strip()
    return {**facts, "title": titled, "description": text}


def _is_json(words: str) -> bool:
    with suppress(ValueError):
        return bool(json.loads(words))
    return False


def backlog_of(path: Path, data: Any) -> BacklogFile:
    """The PBIs of such a file's content, which is called `path` in messages.

    Raises:
        DocumentRejected: it holds no PBIs; the message names file and field.
    """
    if isinstance(data, Mapping):
        for key in INPUTS:
            inner = data.get(key)
            if isinstance(inner, Mapping) and isinstance(inner.get("scored_pbis"), list):
                _check(path, f"{key}.scored_pbis", inner["scored_pbis"])
                return _backlog(dict(data), inner["scored_pbis"], flat=False)
    items = pbi_items(data)
    if items is None:
        bare = data if isinstance(data, list) else [data]
        if all(map(_is_bare, bare)):
            return _backlog({"scored_pbis": {"scored_pbis": bare}}, bare, flat=True)
        raise DocumentRejected(
            f"{path} has no PBIs; it holds {top_level(data)}",
            fix='expected is a PBI such as {"title", "description"}, a list of them, text with a title line, or an '
            "object with scored_pbis, pbis, enriched_pbis or final_output.pbis",
        )
    latest = max(map(attrgetter("stage"), items), default=0)
    scored = [{"pbi": item.pbi, "scores": dict(item.scores)} for item in items if item.stage == latest]
    _check(path, "PBIs", [item["pbi"] for item in scored])
    return _backlog({"scored_pbis": {"scored_pbis": scored}}, scored, flat=True)


def _is_bare(item: Any) -> bool:
    """True for a PBI without an id or a title; False for what holds objects, as a run's report does."""
    pbi = item.get("pbi", item) if isinstance(item, Mapping) else None
    keys = plain_keys(pbi) if isinstance(pbi, Mapping) else {}
    fields = (value for key, value in keys.items() if key not in CRITERIA_KEYS)
    values = chain.from_iterable(value if isinstance(value, list) else [value] for value in fields)
    nested = any(isinstance(value, Mapping | list) for value in values)
    return not nested and bool(text_of(keys, (*TITLE_KEYS, *DESCRIPTION_KEYS)))


def _backlog(context: Json, items: Sequence[Json], *, flat: bool) -> BacklogFile:
    items = [item if "pbi" in item else {"pbi": item} for item in items]
    counted = Counter(pbi_id(item["pbi"]) for item in items)
    return BacklogFile(
        context=context,
        flat=flat,
        items=items,
        projects=sorted(set(map(project_of, items))),
        repeated=[name for name, n in counted.items() if n > 1],
    )


def _decoded(path: Path, content: bytes) -> str:
    if not content.strip():
        raise DocumentRejected(f"{path} is empty", fix="give a PBI, or the file that Step 3 wrote")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        kind = "is text in UTF-16, not in UTF-8" if content.startswith(_UTF16) else "is no text in UTF-8"
        raise DocumentRejected(f"{path} {kind}", fix="save it as UTF-8") from None


def _parsed(path: Path, words: str) -> Any:
    data = parse_json(words, str(path))
    try:
        json.dumps(data, allow_nan=False)
    except ValueError:
        raise DocumentRejected(
            f"{path} holds a number that JSON does not know: NaN or an infinite one", fix="write null instead"
        ) from None
    return data


def _check(path: Path, field: str, items: Sequence[Any]) -> None:
    for index, item in enumerate(items):
        inner = isinstance(item, Mapping) and "pbi" in item
        pbi = item["pbi"] if inner else item
        if not isinstance(pbi, Mapping):
            raise DocumentRejected(
                f"{path}: {field}[{index}]{'.pbi' if inner else ''} is {json_type_name(pbi)}, not an object",
                fix='each is a PBI, or {"pbi": {...}, "scores": {...}}',
            )


def enrich(
    runtime: Runtime,
    backlog: BacklogFile,
    *,
    scope: ProjectScope,
    timeout: float | None,
    tell: Callable[[Outcome], None],
) -> Enriched:
    """Send every PBI through the queue and put the answers together; `tell` is called with each outcome."""
    begun = time.monotonic()
    outcomes: list[Outcome] = []

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)
        tell(outcome)

    rag, settings = runtime.rag, runtime.settings
    options = StepOptions(
        enabled=rag.enabled and rag.feature_flags.rag_enrichment,
        rollout=rag.rollout_percentage,
        tenant=settings.tenant,
        project=scope.project or settings.project,
    )
    priority = INTERACTIVE if len(backlog.items) <= MOST_INTERACTIVE else BULK
    until = None if timeout is None else begun + timeout
    with Client.of(settings, runtime.addresses.database, runtime.addresses.broker) as client:
        asker = _Asker(client, until, project=scope.project, projects=scope.projects, priority=priority)
        context = dict(EnrichContextStep(asker, options, on_outcome=note).execute(backlog.context))
    written = context[INPUTS[scored_of(context)[0]]]
    return Enriched(
        document=written if backlog.flat else context,
        items=written["enriched_pbis"],
        outcomes=outcomes,
        seconds=time.monotonic() - begun,
    )


@dataclass(frozen=True, kw_only=True)
class ProjectScope:
    """Projects that a command looks into."""

    project: str | None = None
    """The project of all items; None: each item's own, else that of the installation."""
    projects: tuple[str, ...] = ()
    """Projects that are searched besides; `*` is all of the tenant."""

    @classmethod
    def parse(cls, words: Iterable[str]) -> Self:
        """Parse an option's values, several divided by commas: the first name is the project, the rest are more."""
        names = names_in(words)
        first = next((name for name in names if name != ALL), None)
        return cls(project=first, projects=tuple(name for name in names if name != first))


def notices(runtime: Runtime, backlog: BacklogFile, scope: ProjectScope) -> list[str]:
    """Notices about the projects that are asked for: those without documents, and documents that are left out."""
    named = [scope.project] if scope.project else backlog.projects
    tenant = runtime.settings.tenant_id
    names = [name or runtime.settings.project for name in named][:MOST_NOTICES]
    lines = unknown_projects(runtime, tenant, [*names, *scope.projects])
    with runtime.database.tenant(tenant) as connection:
        stored = sources.projects(connection)
    for name in names:
        visible = visible_projects(tenant, project_id(tenant, name), scope.projects)
        hidden = [] if visible == ALL else [stored[ident] for ident in stored if ident not in visible]
        if hidden:
            lines.append(
                f"project {name}: documents of other projects ({first_names(hidden, MOST_NAMED)}) are left out;"
                f" --projects '{ALL}' asks all"
            )
    return lines


class _Asker:
    """A client with the deadline of one command."""

    def __init__(self, client: Client, until: float | None, **scope: Any) -> None:
        self._client, self._until, self._scope = client, until, scope

    def enrich(self, pbi: Json, scores: Json) -> Json:
        remaining = None if self._until is None else max(0.1, self._until - time.monotonic())
        return self._client.enrich(pbi, scores, deadline=remaining, **self._scope)


def check_writable(path: Path, *, folder: bool = False) -> None:
    """Check before the work that its output can be written; `folder` allows for one.

    Raises:
        ConfigurationError: `path` is a folder, or its folder is not there.
    """
    if path.is_dir() and not folder:
        raise _unwritable(path, "it is a folder")
    if not path.absolute().parent.is_dir():
        raise _unwritable(path, "its folder does not exist")


def write(path: Path, document: Json) -> None:
    """Write Step 4's output, whole or not at all.

    Raises:
        ConfigurationError: it cannot be written there.
    """
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    # Half of a pair of surrogates, which JSON can only hold escaped, is escaped in just that way.
    _save(path, text.encode(errors="backslashreplace"))


def write_pages(path: Path, items: Sequence[Json], form: report.Form) -> int:
    """Write the answers for a person: into a file on one page, into a folder a page each with an index.

    A name without an ending is a folder's, unless there is such a file. As with `write`, files of the same names are
    replaced; returns how many of a folder, whose other files stay.

    Raises:
        ConfigurationError: it cannot be written there.
    """
    if path.is_file() or (path.suffix and not path.is_dir()):
        _save(path, report.document(items, form).encode())
        return 0
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise _unwritable(path, str(error.strerror)) from None
    pages = report.folder(items, form)
    replaced = sum((path / name).exists() for name in pages)
    for name, text in pages.items():
        _save(path / name, text.encode())
    return replaced


def _save(path: Path, content: bytes) -> None:
    check_writable(path)
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _unwritable(path, str(error.strerror)) from None


def _unwritable(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(f"{path} cannot be written: {why}", fix="give another file with -o")
