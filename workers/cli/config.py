"""The configuration file: larder config init, show, check. Starts no server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from pipeline.documents import Json
from pipeline.errors import ConfigurationError, LarderError
from workers.cli.context import WRONG, CommandContext, command

if TYPE_CHECKING:
    from workers.settings import Settings, SourceSettings

app = typer.Typer(no_args_is_help=True, help="Write, show or check the configuration file.")


@app.command("init")
@command()
def init(
    context: CommandContext,
    file: Annotated[Path | None, typer.Argument(help="[default: larder.yaml]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented file with every key, its default and an example of each source."""
    from workers.settings import initial_file

    path = file or context.config or Path("larder.yaml")
    if path.exists() and not force:
        raise ConfigurationError(f"{path} is there already", fix="name another file, or add --force")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(initial_file(), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    context.answer(
        {"success": True, "file": str(path)},
        text=f"wrote {path}: name your sources there, then `larder config check`",
    )


@app.command("show")
@command()
def show(context: CommandContext) -> None:
    """Print the values in force, environment included, with secrets masked."""
    from workers.settings import effective
    from workers.settings import show as shown

    context.answer(effective(context.settings), text=shown(context.settings).rstrip("\n"))


@app.command("check")
@command()
def check(context: CommandContext) -> None:
    """Report everything that is wrong at once; else what was understood."""
    understood = _understood(context)
    context.answer(understood, lambda: _tell(context, understood))
    for problem in understood["problems"]:
        print(problem, file=sys.stderr)
    if understood["problems"]:
        raise typer.Exit(WRONG)


def _understood(context: CommandContext) -> Json:
    """What the file means, and what opening its sources and its model says against it."""
    from workers import search
    from workers.runtime import Addresses, Runtime
    from workers.sources import configured_sources, open_source

    settings = context.settings
    parts = Runtime(settings, Addresses(database="", control="", admin="", broker=""))
    tries: list[tuple[str, Callable[[], object]]] = [
        (f"source {one.settings.name}: ", partial(open_source, parts, one.settings))
        for one in configured_sources(parts.settings).values()
    ]
    tries += [("embedding: ", lambda: parts.embedder), ("", lambda: search.synonyms_of(parts))]
    problems = [f"{what}{wrong}" for what, attempt in tries if (wrong := _refusal(attempt))]
    # Searches go on without it, so it keeps nobody from starting.
    reranker = _refusal(lambda: parts.reranker)
    return {
        "success": not problems,
        "file": str(settings.path) if settings.path else None,
        "tenant": settings.tenant,
        "project": settings.project,
        "sources": [_source(context, source) for source in settings.rag.sources],
        "warnings": [
            *settings.notes,
            *([f"searches go without the reranker: {reranker}"] if reranker else []),
        ],
        "problems": problems,
    }


def _refusal(attempt: Callable[[], object]) -> str:
    """Why something cannot be made as configured; empty if it can."""
    try:
        attempt()
    except LarderError as error:
        return str(error)
    return ""


def _source(context: CommandContext, source: SourceSettings) -> Json:
    settings = context.settings
    return {
        "name": source.name,
        "type": source.type,
        "enabled": source.enabled,
        "schedule": source.schedule,
        "root": _where(settings, source),
        "paths": list(getattr(source, "paths", ())),
        "exclude": list(getattr(source, "exclude", ())),
        "tenant": source.tenant or settings.tenant,
        "project": source.project or settings.project,
    }


def _where(settings: Settings, source: SourceSettings) -> str:
    """The folder or the address that a source reads."""
    from connectors import FileOptions

    return str(settings.resolve(source.root)) if isinstance(source, FileOptions) else source.place


def _tell(context: CommandContext, understood: Json) -> None:
    print(understood["file"] or "no file: the defaults hold")
    print(f"tenant {understood['tenant']}, project {understood['project']}")
    for source in understood["sources"]:
        off = "" if source["enabled"] else ", disabled"
        when = f", {source['schedule']}" if source["schedule"] else ""
        print(f"source {source['name']} ({source['type']}{when}{off}) at {source['root']}")
        for pattern in source["paths"]:
            print(f"  reads   {pattern}")
        for pattern in source["exclude"]:
            print(f"  without {pattern}")
    if not understood["sources"]:
        print("no sources: `larder config init` shows how one looks")
    for warning in understood["warnings"]:
        context.console.print(f"[yellow]warning[/] {escape(warning)}", soft_wrap=True)
