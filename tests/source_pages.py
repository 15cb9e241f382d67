"""Pages of the services that presets read, made from the presets: `python -m tests.source_pages` writes docs/sources/."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from connectors.rest.options import Child, RestOptions, TextPart
from connectors.rest.presets import preset, preset_names
from workers.settings.sources import SOURCE_TYPES

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "sources"
MADE = "Made from `connectors/rest/presets/{files}` by `python -m tests.source_pages`.\n"
SIZES = ("per_page", "maxResults", "pagelen", "limit", "sysparm_limit", "page_size", "page[size]")
"""Parameters for the number of records in an answer."""
STORED = {
    "estimated_seconds": "estimated_hours", "spent_seconds": "actual_hours", "spent_hours": "actual_hours",
}  # fmt: skip
"""Names under which effort is stored."""
INDEX_HEAD = """\
# Sources

| source | `type` | |
|---|---|---|
| Markdown, text, HTML, AsciiDoc, reStructuredText, PDF, DOCX, JSON in a folder | `markdown`, `text`, `json` | [files](files.md) |
| outputs of the backlog pipeline | `pbi_json` | [files](files.md) |
| Confluence, Cloud and Data Center | `confluence` | [Confluence](../confluence.md) |
| Azure DevOps Boards, Services and Server | `azure_devops` | [Azure DevOps](../azure-devops.md) |
"""
INDEX_FOOT = """\
| any other REST service, in twenty lines | `rest` | [REST](rest.md) |

Each page says what the account must be allowed, what is read, how it stays in step, what it costs in requests, and how the
service tells of its changes ([webhooks](../webhooks.md)). All keys are in [configuration](../configuration.md);
[CONTRIBUTING](../../CONTRIBUTING.md#adding-a-preset) says how a preset is added.
"""


def pages() -> dict[str, str]:
    """Content of each file that is made, by its name."""
    names: dict[str, list[str]] = {}
    # A preset with a page of another's name is a section of it.
    for name in sorted(preset_names(), key=lambda name: ("page" in preset(name), name)):
        names.setdefault(preset(name).get("page", name), []).append(name)
    made = {f"{page}.md": "\n".join(_page(presets)) for page, presets in sorted(names.items())}
    rows = [
        f"| {preset(name)['about']} | `rest`, `preset: {name}` | [{preset(page)['title']}]({page}.md) |\n"
        for page, presets in sorted(names.items())
        for name in presets
    ]
    return {**made, "README.md": INDEX_HEAD + "".join(rows) + INDEX_FOOT}


def _page(names: list[str]) -> Iterator[str]:
    yield f"# {preset(names[0])['title']}\n"
    yield MADE.format(files="`, `".join(f"{name}.yaml" for name in names))
    for name in names:
        if name != names[0]:
            yield f"## {preset(name)['title']}\n"
        yield from _preset(name)


def example_of(name: str) -> dict[str, Any]:
    """The section that a person would write for a preset."""
    example: Mapping[str, Any] = preset(name).get("example", {})
    head = {"name": name, "type": "rest", "preset": name}
    hook = {"secret": f"${{{name.upper()}_HOOK_SECRET}}"}
    address = {"baseUrl": example["baseUrl"]} if "baseUrl" in example else {}
    return {**head, **address, **example, "updateSchedule": "*/30 * * * *", "hook": hook}


def _preset(name: str) -> Iterator[str]:
    content, example = preset(name), example_of(name)
    options = SOURCE_TYPES["rest"].model_validate(example)
    assert isinstance(options, RestOptions)
    yield f"`preset: {name}` reads {content['about']}:\n"
    lines = [f"{key}: {_flow(value)}" for key, value in example.items()]
    yield "```yaml\n- " + "\n  ".join(lines) + "\n```\n"
    yield "| | |\n|---|---|"
    facts = {
        "account": content["account"],
        "values": _values(content),
        "text": "; ".join(_parts(options)),
        "metadata": ", ".join(f"`{key}`" for key in _metadata(options)) + f"; kind `{options.document.kind}`",
        "left out": "; ".join(one.because for one in options.exclude) or "nothing",
        "in step": _step(options),
        "deletions": _deletions(options),
        "requests": _requests(options),
    }
    for key, text in facts.items():
        if text:
            yield f"| {key} | {text.replace('|', chr(92) + '|')} |"
    yield ""
    yield from (f"- {note}" for note in content.get("notes", ()))
    yield "\nWith a hook, an edit is found within seconds (`larder sources hooks NAME` shows address and secret):\n"
    yield from (f"{n}. {step}" for n, step in enumerate(options.event_steps, 1))
    yield ""


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _values(content: Mapping[str, Any]) -> str:
    defaults = content["source"].get("values", {})
    texts = []
    for key, meaning in (content.get("values") or {}).items():
        default = str(defaults.get(key, ""))
        suffix = "" if key not in defaults else f" (`{default}`)" if 0 < len(default) <= 40 else " (set)"
        texts.append(f"`{key}`: {meaning}{suffix}")
    return "; ".join(texts)


def _parts(options: RestOptions) -> Iterator[str]:
    yield "title"
    yield from (_part(part) for part in options.document.text)
    yield from (child.name for child in options.children)


def _part(part: TextPart) -> str:
    return part.heading or part.field.rpartition(".")[2]


def _metadata(options: RestOptions) -> Iterator[str]:
    yield from (key for key in ("status", "tags", "created", "updated") if _is_read(options, key))
    yield from (STORED.get(key, key) for key in options.document.metadata)


def _is_read(options: RestOptions, key: str) -> bool:
    return bool(getattr(options.document, key) or (key == "updated" and options.changed))


def _step(options: RestOptions) -> str:
    changed = options.changed
    if changed is None:
        return "each sync reads all; what is as before is not indexed again"
    overlap = f"and {changed.overlap / 60:g} minutes before it"
    if changed.descending:
        return f"each sync reads the list from the newest change to the last one that is known, {overlap}"
    return f"each sync asks for what changed since the last one, {overlap} (`{changed.field}`)"


def _deletions(options: RestOptions) -> str:
    marked = ""
    if options.deleted:
        values = " or ".join(f"`{value}`" for value in options.deleted.is_)
        marked = f"marked by `{options.deleted.field}`{f' as {values}' if values else ''}; else "
    return f"{marked}found by the walk over all ids: absent once hidden, absent twice deleted; also by a hook"


def _requests(options: RestOptions) -> str:
    size, walk = _size(options.list_), _size(options.walk_list)
    first = f"N/{size}" if size else "one"
    parts = [f"{first} for N records"]
    if options.item and not options.item.in_list:
        parts.append("one for each")
    parts += [_child(child) for child in options.children if child.path]
    daily = "" if options.changed is None else f"; one if nothing changed; N/{walk} for the daily walk"
    event = "the list" if options.item is None else "two" if options.item.within else "one"
    return f"{' and '.join(parts)}{daily}; {event} for each record that an event names"


def _child(child: Child) -> str:
    if child.inline:
        return f"one for each with more {child.name.lower()} than the list shows"
    condition = " that has any" if child.count else ""
    return f"one for the {child.name.lower()} of each{condition}"


def _size(request: Any) -> int | None:
    """Records in an answer, as the request asks for them."""
    body = request.body if isinstance(request.body, dict) else {}
    for key in SIZES:
        if isinstance(value := {**body, **request.params}.get(key), int):
            return value
    match = re.search(r"first: (\d+), after", str(body.get("query", "")))
    return int(match[1]) if match else None


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in pages().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
