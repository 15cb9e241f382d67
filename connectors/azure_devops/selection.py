"""Which work items belong to a source: as conditions of a query, and as a look at one item."""

from __future__ import annotations

from collections.abc import Sequence

from connectors.azure_devops.options import AzureDevOpsOptions
from connectors.azure_devops.work_item import WorkItem


def literal(text: str) -> str:
    """A text value as a query spells it."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def conditions(options: AzureDevOpsOptions, project: str) -> list[str]:
    """What an item of this source fulfils; without the first, other projects would leak in."""
    found = [f"[System.TeamProject] = {literal(project)}"]
    if options.work_item_types:
        found.append(f"[System.WorkItemType] IN ({_literals(options.work_item_types)})")
    if options.area_paths:
        places = [f"[System.AreaPath] UNDER {literal(area_path(path))}" for path in options.area_paths]
        found.append(f"({' OR '.join(places)})")
    if options.states:
        found.append(f"[System.State] IN ({_literals(options.states)})")
    if options.wiql.strip():
        found.append(f"({options.wiql.strip()})")
    return found


def area_path(path: str) -> str:
    r"""`\Shop\Web\` as the service writes it: `Shop\Web`."""
    return path.strip().replace("/", "\\").strip("\\")


def fits(options: AzureDevOpsOptions, projects: Sequence[str], item: WorkItem) -> bool:
    """Whether an item fulfils all that `conditions` ask, but for the configured `wiql`; case is no matter."""
    area = item.text("System.AreaPath").casefold()
    return (
        _among(item.project, projects)
        and (not options.work_item_types or _among(item.type, options.work_item_types))
        and (not options.states or _among(item.text("System.State"), options.states))
        and (not options.area_paths or any(_under(area, path) for path in options.area_paths))
    )


def _among(value: str, allowed: Sequence[str]) -> bool:
    return value.casefold() in {one.strip().casefold() for one in allowed}


def _under(area: str, path: str) -> bool:
    top = area_path(path).casefold()
    return area == top or area.startswith(top + "\\")


def _literals(values: Sequence[str]) -> str:
    return ", ".join(literal(value) for value in values)
