"""The configuration file: larder config init, show, check. Starts no server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qsl

import typer
from rich.console import RenderableType
from rich.text import Text
from typer import Argument, Option

from pipeline.documents import Json
from pipeline.errors import ConfigurationError, LarderError
from workers.cli import DATA
from workers.cli.context import WRONG, CommandContext, command
from workers.cli.tables import table, warn

if TYPE_CHECKING:
    from workers.runtime import Runtime

app = typer.Typer(no_args_is_help=True, help="Write, show or check the configuration file.")


@command(app, "init")
def init(
    context: CommandContext,
    file: Annotated[Path | None, Argument(help="[default: larder.yaml]")] = None,
    force: Annotated[bool, Option("--force", help="Replace a file that is there.")] = False,
    full: Annotated[bool, Option("--full", help="With every key, its default and its meaning.")] = False,
) -> None:
    """Look at this folder and the environment, and write a file with the sources that are there."""
    from workers.settings.rendering import initial_file, short_file

    path = file or context.config or Path("larder.yaml")
    if path.exists() and not force:
        raise ConfigurationError(f"{path} is there already", fix="name another file, or add --force")
    facts: Json = {"sources": [], "left_out": [], "services": [], "complete": True}
    text = initial_file()
    if not full:
        facts, sources = _look(context.data)
        root = os.path.relpath(Path.cwd(), path.absolute().parent)
        text = short_file(sources, "" if root == "." else root)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    context.answer({"success": True, "file": str(path), **facts}, *_surveyed(path, facts, full=full))


def _look(data: Path | None) -> tuple[Json, list[tuple[str, Json]]]:
    """Facts about this folder and the environment, and (comment, section) of each source for the file."""
    from connectors import DecisionRules
    from connectors.files.contents import look_into
    from connectors.files.survey import Survey
    from workers.settings.rendering import services_of

    contents = look_into(Path.cwd(), (data or Path(DATA)).resolve())
    survey = Survey(contents, DecisionRules())
    services = services_of(os.environ)
    sources: list[tuple[str, Json]] = []
    facts: list[Json] = []
    for one in survey.sources:
        counts = ", ".join(f"{ending} {n}" for ending, n in one.endings.items())
        sources.append((f"{one.purpose}: {counts}", dict(one.section)))
        number = sum(one.endings.values())
        facts.append({**one.section, "files": number, "endings": dict(one.endings), "purpose": one.purpose})
    for kind, service in services.items():
        if service.section:
            sources.append((f"as {', '.join(service.set_)} say", dict(service.section)))
            facts.append({**service.section, "files": None, "endings": {}, "purpose": kind})
    left_out = [{"reason": reason, **vars(one)} for reason, one in contents.left_out.items()]
    if other_endings := contents.other_endings:
        endings = [f"{ending} {n}" for ending, n in other_endings.most_common(5)]
        reason = "files that are no documents"
        left_out.append({"reason": reason, "count": other_endings.total(), "examples": endings})
    lines = [{"type": k, "variables": s.set_, "reason": s.reason} for k, s in services.items()]
    return {"sources": facts, "left_out": left_out, "services": lines, "complete": contents.complete}, sources


def _surveyed(path: Path, facts: Json, *, full: bool) -> Iterator[RenderableType]:
    """Lines of `config init` for a person."""
    sources = facts["sources"]
    if sources:
        rows = [
            (s["name"], s["type"], "-" if s["files"] is None else s["files"], s["purpose"]) for s in sources
        ]
        yield table(("source", "type", "files", "reads"), rows, right=("files",))
    for one in facts["left_out"]:
        more = ", ..." if one["count"] > len(one["examples"]) else ""
        yield Text(
            f"excluded: {one['count']} {one['reason']} ({', '.join(one['examples'])}{more})".encode(
                "utf-8", "replace"
            ).decode()
        )
    for one in filter(itemgetter("reason"), facts["services"]):
        yield f"not written: {one['type']}, though {', '.join(one['variables'])} is set: {one['reason']}"
    if not facts["complete"]:
        yield "the folder is too large to be looked at whole in ten seconds: name what is missing yourself"
    if sources:
        yield f"wrote {path} with these sources; next `larder config check`, then `larder index`"
    elif full:
        yield f"wrote {path}: name your sources there, then `larder config check`"
    else:
        yield f"wrote {path} without a source, for there is no document here:"
        yield "take one of its examples, or begin again in the folder of your documents"


@command(app, "show", looks=True)
def show(context: CommandContext) -> None:
    """Print the values in force, environment included, with secrets masked."""
    from workers.settings.rendering import effective
    from workers.settings.rendering import show as render

    context.answer(effective(context.settings), render(context.settings).rstrip("\n"))


@command(app, "check", looks=True)
def check(context: CommandContext) -> None:
    """Report everything that is wrong at once; else what was understood."""
    from connectors import FileOptions
    from workers.app.health.supervised import differing
    from workers.runtime import Addresses, Runtime

    settings = context.settings
    runtime = Runtime(settings, Addresses())
    problems = _refusals(_attempts(runtime))
    # Searches go on without it, so it keeps nobody from starting.
    reranker = _refusals({"searches go without the reranker: ": lambda: runtime.reranker})
    report: Json = {
        "success": not problems,
        "file": str(settings.path) if settings.path else None,
        "tenant": settings.tenant,
        "project": settings.project,
        "sources": [
            {
                "name": one.name,
                "type": one.type,
                "enabled": one.enabled,
                "schedule": one.schedule,
                "root": str(settings.resolve(one.root)) if isinstance(one, FileOptions) else one.place,
                "paths": list(getattr(one, "paths", ())),
                "exclude": list(getattr(one, "exclude", ())),
                "tenant": one.tenant or settings.tenant,
                "project": one.project or settings.project,
            }
            for one in settings.rag.sources
        ],
        "warnings": [*settings.notes, *reranker],
        "not_running": differing(context.settings),
        "problems": problems,
    }
    context.answer(report, *_lines(report))
    if problems:
        warn(*problems)
        raise typer.Exit(WRONG)


def _attempts(runtime: Runtime) -> dict[str, Callable[[], object]]:
    """Attempts to use a configuration, by how a refusal begins; no server is asked."""
    from connectors.sections import secret_value
    from pipeline.database.driver_errors import check_parameters
    from pipeline.database.encryption import Keyring
    from workers.app import search
    from workers.app.ingestion.sync import configured_sources, open_source
    from workers.local.embedded.locating import addresses, uses_embedded

    settings = runtime.settings
    attempts: dict[str, Callable[[], object]] = {
        f"source {one.settings.name}: ": partial(open_source, runtime, one.settings)
        for one in configured_sources(settings).values()
    }
    storage, security = settings.rag.storage, settings.rag.security
    urls = {
        "storage.database.url": storage.database.url,
        "storage.database.controlUrl": storage.database.control_url,
        "storage.database.adminUrl": storage.database.admin_url,
    }
    attempts |= {
        f"{key}: ": partial(check_parameters, url.get_secret_value()) for key, url in urls.items() if url
    }
    urls |= {"storage.broker.url": storage.broker.url, "storage.broker.valkeyUrl": storage.broker.valkey_url}
    attempts |= {
        f"{key}: its TLS: ": partial(_check_tls_files, url.get_secret_value())
        for key, url in urls.items()
        if url
    }
    if not uses_embedded(settings):
        attempts["storage: "] = partial(addresses, settings)
    if security.encrypt and not uses_embedded(settings):  # these have a key of their own
        sealed = dict.fromkeys(security.encrypt, "")
        keys = Keyring(keys=secret_value(security.encryption_keys), fields=security.encrypt)
        attempts["security.encrypt: "] = partial(keys.seal, sealed)
    attempts |= {"embedding: ": lambda: runtime.embedder, "": lambda: search.synonyms_of(runtime)}
    return attempts


_TLS_FILES = {
    *("sslrootcert", "sslcert", "sslkey", "sslcrl"),
    *("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "cafile", "certfile", "keyfile"),
}
"""Options of an address of PostgreSQL, Valkey or RabbitMQ that name a file."""


def _check_tls_files(url: str) -> None:
    for name, value in parse_qsl(url.partition("?")[2]):
        if name in _TLS_FILES and value != "system" and not Path(value).is_file():
            raise ConfigurationError(
                f"{name} names {value}, and there is no such file", fix="correct its path"
            )


def _refusals(attempts: Mapping[str, Callable[[], object]]) -> list[str]:
    """Refusals of the attempts that fail, with their reasons."""
    refusals = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except LarderError as error:
            refusals.append(f"{name}{error}")
    return refusals


def _lines(report: Json) -> Iterator[RenderableType]:
    yield report["file"] or "no file: the defaults hold"
    yield f"tenant {report['tenant']}, project {report['project']}"
    for s in report["sources"]:
        facts = ", ".join(filter(None, (s["type"], s["schedule"], "disabled" * (not s["enabled"]))))
        yield f"source {s['name']} ({facts})" + (f" at {s['root']}" if s["root"] else "")
        yield from (f"  reads   {pattern}" for pattern in s["paths"])
        yield from (f"  without {pattern}" for pattern in s["exclude"])
    if not report["sources"]:
        yield "no sources: `larder config init` shows how one looks"
    for word, key in (("warning", "warnings"), ("differs", "not_running")):
        yield from (Text.assemble((word, "yellow"), f" {line}") for line in report[key])
    if report["not_running"]:
        yield "next  larder reload"
