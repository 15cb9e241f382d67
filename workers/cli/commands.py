"""All commands by name; the module of one is loaded when it is called."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup
from typer.main import get_command_from_info, get_group_from_info
from typer.models import CommandInfo, TyperInfo

COMMANDS: Mapping[str, tuple[str, str]] = {
    "up": ("processes:up", "Start servers, workers, beat and Flower on this machine, and look after them"),
    "down": (
        "processes:down",
        "Stop everything that `up` started, and the embedded servers; what they hold stays",
    ),
    "index": ("index:index", "Sync sources now: read them, and make what is new or changed searchable"),
    "ingest": ("index:ingest", "Index a folder that no source names; run it again to take in what changed"),
    "clear": ("index:clear", "Remove documents and chunks of this tenant; the next sync brings them back"),
    "search": ("search:search", "Find documents by meaning and by words"),
    "explain": ("search:explain", "Tell where a document stands, and with --query why it is found or not"),
    "why-visible": (
        "search:why_visible",
        "Tell which rule lets a user of the API find a document, or keeps it from them",
    ),
    "enrich": (
        "enrich:enrich",
        "Run Step 4: give every PBI of a file the similar work, decisions and documents that are in stock",
    ),
    "feedback": (
        "search:feedback",
        "Say that a document is useful or noise for an item: it ranks higher or lower, for this item above all",
    ),
    "status": ("status:status", "Show sources, backlog, workers and what to do next, over all tenants"),
    "runs": ("operate:runs", "Show the last syncs with their counts, times and errors, newest first"),
    "logs": ("operate:logs", "Read what the processes of this machine log, as lines for people"),
    "doctor": ("operate:doctor", "Look at everything; exit 1 if an error remains"),
    "sources": ("operate:sources", "List, check, pause and reconcile sources"),
    "dead": ("operate:dead", "Documents that were given up on"),
    "audit": ("operate:audit", "Who searched and who changed something"),
    "keys": ("operate:keys", "Keys of encrypted metadata (docs/security.md)"),
    "reindex": ("index:reindex", "Fill another search index beside the one that is searched, and switch"),
    "stories": ("stories:app", "User stories that generators learn from"),
    "eval": (
        "eval:app",
        "Measure search and Step 4: `larder eval DIR` is short for `larder eval measure DIR`",
    ),
    "config": ("config:app", "Write, show or check the configuration file"),
    "token": (
        "processes:token",
        "Make a token for the HTTP API, for development: whoever has it is let in as this user",
    ),
    "migrate": (
        "processes:migrate",
        "Bring the database to the schema of this version; needs the owner's address",
    ),
    "health": (
        "processes:health",
        "Exit 0 if the processes of this container or machine gave a sign of life within 30 seconds",
    ),
    "worker": ("processes:worker", "Run one worker in the foreground, for containers and the supervisor"),
    "beat": (
        "processes:beat",
        "Run the clock in the foreground; one per installation is enough, two do no harm",
    ),
    "api": ("processes:api", "Run the HTTP API in the foreground"),
    "flower": ("processes:flower", "Run Flower in the foreground: read-only, with basic auth"),
    "mcp": (
        "processes:mcp",
        "Serve an agent on standard input and output, by the Model Context Protocol; it only reads",
    ),
    "serve": ("processes:serve", ""),
}
"""Name -> module and object, and its line of the help: the first of the command's own."""


class Commands(TyperGroup):
    """Shows the table, and loads what is called: the modules of all commands take longer than most of them."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands.update(
            (name, TyperGroup(name=name, short_help=line, hidden=not line))
            for name, (_, line) in COMMANDS.items()
        )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that these arguments begin with."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = loaded(args[0])
        return super().resolve_command(ctx, args)


def loaded(name: str) -> Any:
    """The command or group of this name, as the table tells."""
    found = pkgutil.resolve_name(f"workers.cli.{COMMANDS[name][0]}")
    if isinstance(found, typer.Typer):
        info = TyperInfo(found, name=name)
        return get_group_from_info(
            info, pretty_exceptions_short=False, rich_markup_mode=None, suggest_commands=True
        )
    return get_command_from_info(
        CommandInfo(name=name, callback=found), pretty_exceptions_short=False, rich_markup_mode=None
    )


app = typer.Typer(
    name="larder",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        from workers import version_line

        print(version_line())
        raise typer.Exit


@app.callback()
def _larder(
    _version: Annotated[
        bool, Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Keeps what a team built, decided and wrote down in stock for its backlog pipeline."""
