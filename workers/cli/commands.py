"""All commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from workers.cli import config, enrich, index, operate, processes, search, status, stories
from workers.cli.eval import app as eval_app

app = typer.Typer(
    name="larder",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        from workers import PACKAGE, installed_version

        print(f"{PACKAGE} {installed_version()}")
        raise typer.Exit


@app.callback()
def _larder(
    _version: Annotated[
        bool, Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Keeps what a team built, decided and wrote down in stock for its backlog pipeline."""


for command in (
    processes.up,
    processes.down,
    processes.worker,
    processes.beat,
    processes.api,
    processes.token,
    processes.mcp,
    processes.flower,
    processes.migrate,
    processes.health,
    index.index,
    index.ingest,
    index.clear,
    search.search,
    search.explain,
    search.why_visible,
    enrich.enrich,
    search.feedback,
    status.status,
    operate.doctor,
):
    app.command()(command)
app.add_typer(operate.sources, name="sources")
app.add_typer(operate.dead, name="dead")
app.add_typer(operate.audit, name="audit")
app.add_typer(operate.keys, name="keys")
app.add_typer(index.reindex, name="reindex")
app.add_typer(stories.app, name="stories")
app.add_typer(eval_app, name="eval")
app.add_typer(config.app, name="config")
