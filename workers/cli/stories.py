"""Commands for the memory of user stories: seed, search, stats, delete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pipeline.documents import Json
from pipeline.documents.plain_text import first_names, plural
from pipeline.errors import RequestRejected
from workers.cli.context import FAILED, PARTLY, CommandContext, YesOption, command, resumable
from workers.cli.tables import Screen, first_lines, progress_bars, table, warn

if TYPE_CHECKING:
    from pipeline.stories import StoryMemory

app = typer.Typer(no_args_is_help=True, help="User stories that generators learn from.")
LONGEST_SEED = 86_400.0
"""Seconds that a command waits for the workers; what is accepted is stored in any case."""
MOST_SHOWN = 10
"""Most reasons on the screen, and most rows of each; --json has all."""

FileArgument = Annotated[
    Path | None,
    Argument(help="Stories as .json, .csv or .xlsx; without, those of a former model are embedded anew."),
]
TagOption = Annotated[list[str] | None, Option("--tag", help="The story has one of these; may be repeated.")]


def _memory(context: CommandContext) -> StoryMemory:
    from workers.app.enrichment.stories import memory_of

    return memory_of(context.runtime, context.tenant, context.settings.tenant)


@command(app)
def seed(
    context: CommandContext,
    file: FileArgument = None,
    source: Annotated[
        str | None, Option(help="What `delete` calls these stories. [default: the file's name]")
    ] = None,
) -> None:
    """Store earlier stories; bad rows are named by their numbers, and the good ones are stored."""
    from workers.app.enrichment.stories import rows_of
    from workers.client import Client
    from workers.queue.celeryconfig import ENRICHING

    rows = rows_of(file) if file else []  # before any server is asked
    with context.workers(ENRICHING) as owns_workers, resumable(own_workers=owns_workers):
        addresses = context.runtime.addresses
        with Client.of(context.settings, addresses.database, addresses.broker) as client:
            results = _seeded(client, rows, source or file.name[-64:]) if file else _embedded_anew(client)
            done: Json = {"stored": 0, "skipped": 0, "refused": []}
            with progress_bars(Screen(stderr=True, highlight=False)) as progress:
                bar = progress.add_task("storing", total=len(rows) or None, note="")
                for part, count in results:
                    done = {key: done[key] + part[key] for key in done}
                    progress.update(bar, advance=count)
    refused = [{"row": number, "reason": reason} for number, reason in done["refused"]]
    warn(*_lines_of_reasons(done["refused"]))
    stored = plural(done["stored"], "story", "stories")
    message = f"{stored} stored, {done['skipped']} were there already, {len(refused)} refused"
    code = (PARTLY if done["stored"] + done["skipped"] else FAILED) if refused else 0
    context.answer({"success": not code, **done, "refused": refused}, message, code=code)


def _lines_of_reasons(refused: list[tuple[int, str]]) -> list[str]:
    """A line for each reason, with the rows that have it as far as they fit."""
    rows: dict[str, list[int]] = {}
    for number, reason in refused:
        rows.setdefault(reason, []).append(number)
    lines = [f"row{'s' * (len(n) > 1)} {first_names(n, MOST_SHOWN)}: {reason}" for reason, n in rows.items()]
    return first_lines(lines, MOST_SHOWN, " reasons; --json has all")


def _seeded(client: Any, rows: list[tuple[int, Any]], source: str) -> Iterator[tuple[Json, int]]:
    """Results of the parts of a file, with their lengths; reasons of refusal by the file's own numbers."""
    from workers.app.enrichment.story_jobs import MOST_STORIES

    defaults = {"source_agent": "seed", "source_doc_id": source}
    for start in range(0, len(rows), MOST_STORIES):
        part = rows[start : start + MOST_STORIES]
        bad = [(number, row.message) for number, row in part if isinstance(row, RequestRejected)]
        good = [(number, row) for number, row in part if not isinstance(row, RequestRejected)]
        stories = [_filled(row, defaults) if isinstance(row, dict) else row for _, row in good]
        done = client.stored_stories(client.store_stories(stories), wait=LONGEST_SEED)
        done["refused"] = sorted([*bad, *((good[number - 1][0], why) for number, why in done["refused"])])
        yield done, len(part)


def _filled(row: Json, defaults: Json) -> Json:
    """The row, with defaults for what it does not tell itself."""
    return {**defaults, **row, **{key: value for key, value in defaults.items() if not row.get(key)}}


def _embedded_anew(client: Any) -> Iterator[tuple[Json, int]]:
    more = True
    while more:
        done = client.stored_stories(client.embed_stories_anew(), wait=LONGEST_SEED)
        yield done, done["stored"]
        more = done["stored"] > 0


@command(app, "search", looks=True)
def find(
    context: CommandContext,
    query: Annotated[str, Argument(metavar="TEXT")],
    k: Annotated[int | None, Option("-k", min=1, max=100, help="[default: stories.retrievalK]")] = None,
    threshold: Annotated[
        float | None, Option(min=0, max=1, help="Least similarity. [default: stories.similarityThreshold]")
    ] = None,
    tag: TagOption = None,
    prompt: Annotated[bool, Option("--prompt", help="Show what a generator's prompt would get.")] = False,
) -> None:
    """Find similar stories, nearest first."""
    request = {"query": query, "k": k, "threshold": threshold, "tags": tag}
    answer = context.ask("stories-search", {"query": request, "prompt": prompt})
    hits = answer["stories"]
    heads = ("alike", "id", "title", "agent", "edited")
    rows = []
    for s in hits:
        alike, edited = f"{s['similarity_score']:.2f}", "yes" if s["was_edited"] else ""
        rows.append((alike, s["user_story_id"], s["title"], s["source_agent"], edited))
    output = answer["prompt"] if prompt else table(heads, rows)
    context.answer({"stories": hits}, output if hits else answer["reason"])


@command(app, looks=True)
def stats(context: CommandContext) -> None:
    """Show how many stories there are, by agent, and how sure their agents were."""
    figures = context.ask("stories-stats")
    by = {f"  {agent}": count for agent, count in figures["by_source_agent"].items()}
    mean = figures["average_confidence_score"]
    rows: Json = {"stories": figures["total_stories"], **by, "edited": figures["edited"]}
    rows |= {"mean confidence": "-" if mean is None else mean}
    rows |= {f"by {model}": count for model, count in figures["by_model"].items()}
    context.answer(figures, table(("", ""), rows.items()))


@command(app, "delete")
def remove(
    context: CommandContext,
    source: Annotated[str, Argument(help="A run of a generator (source_doc_id), or a seeded file's name.")],
    yes: YesOption = False,
) -> None:
    """Remove the stories of one run or file."""
    from workers.app.enrichment.stories import delete

    if not yes:
        context.refuse_without_yes(f"remove the stories of {source}", "removed", source=source)
    deleted = delete(_memory(context), source)
    count = plural(deleted, "story", "stories")
    message = f"removed {count} of {source}" if deleted else f"no story came from {source}"
    context.answer({"success": True, "source": source, "deleted": deleted}, message)
