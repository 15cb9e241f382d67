"""Common to all commands: options, runtime, output and exit code."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, is_dataclass
from functools import cached_property, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from uuid import UUID

import typer
from rich.console import Console, RenderableType
from rich.text import Text
from typer import Option

from pipeline.documents import Json
from pipeline.errors import ConfigurationError, LarderError
from workers.cli import DATA, FILE, folder_above
from workers.cli.tables import Screen, to_stdout_json, warn
from workers.processes.interrupts import INTERRUPTED, interruptible

if TYPE_CHECKING:
    from workers.runtime import Runtime
    from workers.settings import Settings

ConfigOption = Annotated[
    Path | None, Option("--config", help="Configuration file. [default: LARDER_CONFIG, else ./larder.yaml]")
]
JsonOption = Annotated[bool, Option("--json", help="One JSON document on stdout.")]
DataOption = Annotated[
    Path | None, Option("--data", help="Folder of the embedded servers. [default: .larder]")
]
YesOption = Annotated[bool, Option("--yes", help="Do it; without it nothing happens.")]

Tell = Callable[[str, Any], None]

ANSWER_TIMEOUT = 10.0
"""Seconds in which the database must say something to a command."""
LONG_ANSWER_TIMEOUT = 60.0
"""Seconds in which the database must say something to commands that count many rows or wait behind workers."""
_NAMING = ("LARDER_CONFIG", "LARDER_DATA", "LARDER_DATABASE_URL")
"""Variables that say which installation is meant."""
FAILED, WRONG, PARTLY = 1, 2, 3
"""Exit codes besides 0: failed, usage or configuration, partly done."""


@dataclass
class CommandContext:
    """One command being run."""

    config: Path | None
    as_json: bool
    data: Path | None = None
    answer_timeout: float | None = ANSWER_TIMEOUT
    """Seconds in which the database must give each answer; None is for work on many rows, and waits."""
    looks: bool = False
    """True: it only looks, from any folder below that of an installation."""
    makes: bool = False
    """True: it makes an installation where there is none, and starts embedded servers."""

    @cached_property
    def settings(self) -> Settings:
        """The configuration.

        Raises:
            SettingsError: all that is wrong with it.
        """
        from workers.settings import load
        from workers.settings.environment import absolute_files, lookup

        environ: dict[str, str] = dict(os.environ)
        config = self.config
        if self.data is not None:
            environ["LARDER_DATA"] = str(self.data.resolve())
        elif self.looks and not config and not any(map(lookup(environ), _NAMING)):
            above = folder_above()
            if above != Path.cwd():
                config = above / FILE if (above / FILE).exists() else None
                environ["LARDER_DATA"] = "" if config else str(above / DATA)
        settings = load(config, environ)
        # What we start is in another folder.
        os.environ.update(absolute_files(os.environ, settings.variables))
        return settings

    @cached_property
    def runtime(self) -> Runtime:
        """The runtime on living servers; queue and database are connected on first use."""
        from workers import runtime as runtimes
        from workers.local import embedded
        from workers.local.embedded.locating import START_SECONDS, open_runtime, uses_embedded

        data = self.settings.data
        if not self.makes and uses_embedded(self.settings) and not (data / "credentials.json").exists():
            named = self.data or self.settings.path
            place = f"in {data if named else data.parent}"
            place += " or a folder above it" if self.looks and not named else ""
            fix = "make one with `larder up --detach`, or name another folder with --data or --config"
            raise ConfigurationError(f"there is no installation {place}", fix=fix)
        begins = self.makes and uses_embedded(self.settings) and embedded.find(data) is None
        runtime = open_runtime(self.settings, start=self.makes)
        if begins:
            warn(f"started PostgreSQL and Valkey in {data}: they stay for later commands until `larder down`")
        runtime.answer_timeout, runtime.start_timeout = self.answer_timeout, START_SECONDS
        if not self.looks:  # else nothing is sent, and Celery need not be loaded
            from workers.queue.app import configure

            configure(
                self.settings.rag.queue, runtime.addresses.broker, send_only=self.answer_timeout is not None
            )
        runtimes.use(runtime)
        return runtime

    @property
    def tenant(self) -> UUID:
        """The tenant of this installation's commands."""
        return self.settings.tenant_id

    def ask(self, question: str, arguments: Json | None = None, tell: Tell | None = None) -> Any:
        """The answer to a question of `workers.app.questions`: by the API of a running `larder up`, else made here.

        `tell` hears of what is no notice.
        """
        answer = self.ask_api(question, arguments, tell)
        if answer is None:
            from workers.app import questions

            answer = questions.answer(self.runtime, _hearing(tell), question, arguments or {})
        return answer

    def ask_api(self, question: str, arguments: Json | None = None, tell: Tell | None = None) -> Any:
        """The answer as `ask` has it; None if no API of `larder up` gives one."""
        from workers.local import local_socket

        file, folder = self._places
        request = {"question": question, "arguments": arguments or {}, "answer_timeout": self.answer_timeout}
        return local_socket.ask(folder, file, os.environ, request, _hearing(tell))

    @property
    def _places(self) -> tuple[Path | None, Path]:
        """Configuration file, None if there is none, and data folder, as far as no file need be read to know them."""
        data = self.data or os.environ.get("LARDER_DATA")
        named = self.config or os.environ.get("LARDER_CONFIG")
        around = folder_above() if self.looks and not data else Path.cwd()
        file = Path(named) if named else around / FILE
        folder = Path(data) if data else (file.parent if named else around) / DATA
        return (file if file.exists() else None), folder

    def ping(self) -> None:
        """Find out within seconds whether the database answers, before it is given what takes it long.

        Raises:
            StoreUnavailable: it does not.
        """
        from workers.local.embedded.locating import START_SECONDS, ping

        ping(self.runtime.addresses.database, start_timeout=START_SECONDS)

    @property
    def console(self) -> Console:
        """Console for text; with --json it is stderr, since stdout belongs to the document."""
        return Screen(stderr=self.as_json, highlight=False)

    def answer(self, data: Any, *lines: RenderableType, code: int = 0) -> None:
        """Print the result: the document with --json, else what is said. Another `code` than 0 ends the command."""
        console = self.console
        if self.as_json:
            print(to_stdout_json(data))
        for part in () if self.as_json else lines:
            # Lines stand as they are, to be copied; only tables are made for the width of the screen.
            renderable = Text(part) if isinstance(part, str) else part
            console.print(renderable, soft_wrap=isinstance(renderable, Text))
        if code:
            raise typer.Exit(code)

    @contextmanager
    def workers(self, *queues: Sequence[str]) -> Iterator[bool]:
        """Workers for the length of the command, if none run; of the queues that a sync needs, or of those given.

        Yields True if they are the command's own, and end with it.
        """
        from workers.app.ingestion.temporary_workers import temporary_workers

        with temporary_workers(self.runtime, *queues) as borrowed:
            if borrowed:
                warn("no workers are running: started some for this command (see `larder up`)")
            yield borrowed

    def refuse_without_yes(self, would: str, done: str, **facts: Any) -> NoReturn:
        """End a command that was not given --yes.

        Args:
            would: what it does with it, for a person: "drop index 3".
            done: the same as done: "dropped".
            facts: what it is about, for the document.
        """
        error = {"message": f"nothing {done}: --yes is missing", **facts}
        self.answer({"success": False, "error": error}, f"this would {would}; repeat it with --yes")
        raise typer.Exit(WRONG)


@dataclass(frozen=True)
class RightsOptions:
    """Rights of a user of the API, or of an agent."""

    project: Annotated[list[str] | None, Option(help="May be repeated; * is all. [default: *]")] = None
    group: Annotated[list[str] | None, Option(help="May be repeated.")] = None
    level: Annotated[str, Option(help="public, internal, confidential or restricted.")] = "internal"


_SHARED = {"config": (ConfigOption, None), "data": (DataOption, None), "as_json": (JsonOption, False)}


def command(
    group: typer.Typer | None = None,
    called: str | None = None,
    *,
    answer_timeout: float | None = ANSWER_TIMEOUT,
    without: Collection[str] = (),
    looks: bool = False,
    makes: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that takes a context first and then its own options; in `group`, if one is given.

    --config, --data and --json are added behind them, but for those in `without`. A parameter that is a dataclass
    stands for its fields, each an option. One that only `looks` does so from any folder of an installation, and only
    one that `makes` may begin a new one and start embedded servers.
    Errors become a sentence and an exit code, never a traceback.
    """

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        parameters = list(signature(run, eval_str=True).parameters.values())[1:]
        kinds: dict[str, Any] = {
            one.name: one.annotation for one in parameters if is_dataclass(one.annotation)
        }
        fields = {name: signature(kind, eval_str=True).parameters for name, kind in kinds.items()}
        options = [option for one in parameters for option in fields.get(one.name, {one.name: one}).values()]
        options += [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in _SHARED.items()
            if name not in without
        ]

        @wraps(run)
        def wrapped(
            config: Path | None = None, data: Path | None = None, as_json: bool = False, **arguments: Any
        ) -> None:
            for name, kind in kinds.items():
                arguments[name] = kind(**{option: arguments.pop(option) for option in fields[name]})
            context = CommandContext(config, as_json, data, answer_timeout, looks, makes)
            try:
                with interruptible():
                    _run(context, run, arguments)
            except KeyboardInterrupt:
                warn("stopped")
                raise typer.Exit(INTERRUPTED) from None

        keyword_only = [option.replace(kind=Parameter.KEYWORD_ONLY) for option in options]
        wrapped.__signature__ = Signature(keyword_only)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {option.name: option.annotation for option in options}
        # Without it, lists of commands cut the line to their width.
        line = (run.__doc__ or "").partition("\n")[0].rstrip(".")
        return group.command(called, short_help=line)(wrapped) if group else wrapped

    return decorate


def _hearing(tell: Tell | None) -> Tell:
    """Shows notices, and tells all else."""

    def hear(kind: str, value: Any) -> None:
        if kind == "notice":
            warn(value)
        elif tell:
            tell(kind, value)

    return hear


def _run(context: CommandContext, run: Callable[..., None], options: dict[str, Any]) -> None:
    try:
        run(context, **options)
    except LarderError as error:
        _refuse(context, error)
    except BrokenPipeError:
        raise  # whoever read stdout has left: typer ends without a word
    except OSError as error:
        file_name = f"{error.filename}: " if error.filename else ""
        fix = "see whether it is there, and what this user may do with it"
        _refuse(context, LarderError(f"{file_name}{error.strerror or error}", fix=fix))


def _refuse(context: CommandContext, error: LarderError) -> NoReturn:
    problems = [str(problem) for problem in getattr(error, "problems", ())]  # of the settings, all at once
    with suppress(OSError):  # it may be stdout that cannot be written to
        error_json = {"code": error.code, "problems": problems} if problems else error.to_json()
        context.answer({"success": False, "error": error_json})
    sentence = f"{error.code}: {error.message}" + (f"\n  {error.fix}" if error.fix else "")
    warn(*(problems or [sentence]))
    raise typer.Exit(WRONG if problems else error.exit_code) from None


@contextmanager
def resumable(*, goes_on: bool = False, own_workers: bool = True) -> Iterator[None]:
    """Work that workers of this command do: it takes them a while to stop, so Ctrl-C is answered at once.

    `goes_on`: they are not this command's, so nothing stops. Not `own_workers`: they are not either, but get no
    more of it.
    """
    try:
        yield
    except KeyboardInterrupt:
        if goes_on:
            warn(
                "the work goes on in the background",
                "  `larder status --watch` shows it, `larder down` stops it",
            )
        else:
            when = " within half a minute, at once with another Ctrl-C" if own_workers else ""
            warn(f"stopping{when}; what is done is kept")
        raise typer.Exit(INTERRUPTED) from None
