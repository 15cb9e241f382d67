"""All commands by name; the module of one is loaded when it is called."""

from __future__ import annotations

import pkgutil
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup
from typer.main import get_command_from_info, get_group_from_info
from typer.models import CommandInfo, TyperInfo

_PLACES = """
    processes:up processes:down processes:reload index:index index:ingest index:clear search:search search:explain
    search:why_visible enrich:enrich search:feedback status:status operate:runs operate:logs operate:doctor
    index:sources operate:dead operate:audit operate:keys operate:reindex status:stores stories:app eval:app
    config:app config:init processes:token processes:migrate processes:health processes:worker processes:beat
    processes:api processes:flower processes:mcp processes:lend
"""
COMMANDS = {
    (m if o == "app" else o.replace("_", "-")): (m, o)
    for m, _, o in (p.partition(":") for p in _PLACES.split())
}
"""Name -> module and object, in the order of the help."""
HIDDEN = ("lend",)


@cache
def lines_of(module: str) -> dict[str, str]:
    """Function or group of a module -> its line of the help, read from the source: to load it takes far longer."""
    text = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    lines = dict(re.findall(r'^(\w+) = typer\.Typer\([^)]*\bhelp="([^"]*)"', text, re.MULTILINE))
    # To parse all of them takes a third of the time that help may take.
    for function in text.split("\ndef ")[1:]:
        name, _, rest = function.partition("(")
        lines[name] = rest.partition('\n    """')[2].partition("\n")[0].removesuffix('"""')
    return {name: line.rstrip(".") for name, line in lines.items()}


class Listed(TyperGroup):
    """A command that is listed and not loaded."""

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002 (a line is shown whole)
        """Line of the command in the help."""
        module, name = COMMANDS[self.name or ""]
        return lines_of(module)[name]


class Commands(TyperGroup):
    """Lists the table, and loads what is called: the modules of all commands take longer than most of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands.update((name, Listed(name=name, hidden=name in HIDDEN)) for name in COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that these arguments begin with."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = loaded(args[0])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; where --k was written for -k, the error says so."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            short, context = str(getattr(error, "option_name", ""))[1:], getattr(error, "ctx", None)
            if context is not None and any(short in option.opts for option in context.command.params):
                error.possibilities = [short]  # type: ignore[attr-defined]
            raise


def loaded(name: str) -> Any:
    """Load the command or group of this name."""
    target = pkgutil.resolve_name("workers.cli.{}:{}".format(*COMMANDS[name]))
    if isinstance(target, typer.Typer):
        info = TyperInfo(target, name=name)
        return get_group_from_info(
            info, pretty_exceptions_short=False, rich_markup_mode=None, suggest_commands=True
        )
    return get_command_from_info(
        CommandInfo(name=name, callback=target), pretty_exceptions_short=False, rich_markup_mode=None
    )


app = typer.Typer(
    name="larder",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(is_set: bool) -> None:
    if is_set:
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
