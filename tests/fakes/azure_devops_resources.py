"""What a pretended Azure DevOps says it can do: resources with their ids, routes and versions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

CORE_AREA = "79134c72-4a58-4b42-976c-04e7115f32bf"
BOARDS_AREA = "5264459e-e5e0-4bd8-b118-0985e68a4ec5"


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One line of the answer to OPTIONS, which is a route as well."""

    id: str
    area: str
    name: str
    template: str
    version: int
    handler: str
    """The method of `Endpoints` that answers; empty: only told of."""
    preview: bool = False
    """Never released: asks for `-preview` in the version."""
    methods: tuple[str, ...] = ("GET",)

    def json(self, newest: str) -> dict[str, Any]:
        """`newest` is the highest version of the whole server, such as 7.1."""
        return {
            "id": self.id,
            "area": self.area,
            "resourceName": self.name,
            "routeTemplate": self.template,
            "resourceVersion": self.version,
            "minVersion": "1.0",
            "maxVersion": newest,
            "releasedVersion": "0.0" if self.preview else newest,
        }

    def pattern(self) -> re.Pattern[str]:
        """Variables before `_apis` and at the very end may be missing."""
        made, seen_api = "", False
        segments = self.template.split("/")
        for n, segment in enumerate(segments):
            if segment in ("{area}", "{resource}"):
                made += "/" + re.escape(self.area if segment == "{area}" else self.name)
            elif segment.startswith("{"):
                greedy = segment.startswith("{*")
                group = rf"/(?P<{segment.strip('{*}')}>{'.+' if greedy else '[^/]+'})"
                made += f"(?:{group})?" if not seen_api or n == len(segments) - 1 else group
            else:
                seen_api = seen_api or segment == "_apis"
                made += "/" + re.escape(segment)
        return re.compile(made, re.IGNORECASE)


def _boards(
    resource_id: str,
    name: str,
    template: str,
    version: int,
    handler: str,
    methods: tuple[str, ...] = ("GET",),
    *,
    preview: bool = False,
) -> Resource:
    return Resource(
        id=resource_id,
        area="wit",
        name=name,
        template=template,
        version=version,
        handler=handler,
        methods=methods,
        preview=preview,
    )


_PLAIN = "{project}/_apis/{area}/{resource}/{id}"
_OF_ITEM = "{project}/_apis/{area}/workItems/{id}/{resource}"

RESOURCES: tuple[Resource, ...] = (
    Resource(
        id="e81700f7-3be2-46de-8624-2eb35882fcaa",
        area="Location",
        name="ResourceAreas",
        template="_apis/{resource}/{areaId}",
        version=1,
        handler="resource_areas",
        preview=True,
    ),
    Resource(
        id="00d9565f-ed9c-4a06-9a50-00e7896ccab4",
        area="Location",
        name="ConnectionData",
        template="_apis/{resource}",
        version=1,
        handler="connection_data",
        preview=True,
    ),
    Resource(
        id="603fe2ac-9723-48b9-88ad-09305aa6c6e1",
        area="core",
        name="projects",
        template="_apis/{resource}/{*projectId}",
        version=4,
        handler="projects",
    ),
    _boards("72c7ddf8-2cdc-4f60-90cd-ab71c14a399b", "workItems", _PLAIN, 3, "items"),
    _boards(
        "908509b6-4248-4475-a1cd-829139ba419f",
        "workItemsBatch",
        "{project}/_apis/{area}/{resource}",
        1,
        "items_batch",
        ("POST",),
    ),
    _boards(
        "1a9c53f7-f243-4447-b110-35ef023636e4",
        "wiql",
        "{project}/{team}/_apis/{area}/{resource}",
        2,
        "wiql",
        ("POST",),
    ),
    _boards(
        "608aac0a-32e1-4493-a863-b9cf4566d257",
        "comments",
        "{project}/_apis/{area}/workItems/{workItemId}/{resource}/{commentId}",
        4,
        "comments",
        preview=True,
    ),
    _boards("6570bf97-d02c-4a91-8d93-3abe9895b1a9", "updates", _OF_ITEM + "/{updateNumber}", 3, "updates"),
    _boards(
        "a00c85a5-80fa-4565-99c3-bcd2181434bb", "revisions", _OF_ITEM + "/{revisionNumber}", 3, "revisions"
    ),
    _boards(
        "f828fe59-dd87-495d-a17c-7a8d6211ca6c",
        "workItemRevisions",
        "{project}/_apis/{area}/reporting/{resource}",
        2,
        "feed",
        ("GET", "POST"),
    ),
    _boards("b70d8d39-926c-465e-b927-b1bf0e5ca0e0", "recyclebin", _PLAIN, 2, "recycle_bin"),
    _boards(
        "7c8d7a76-4a09-43e8-b5df-bd792f4ac6aa",
        "workItemTypes",
        "{project}/_apis/{area}/{resource}/{type}",
        2,
        "types",
    ),
    _boards(
        "7c9d7a76-4a09-43e8-b5df-bd792f4ac6aa",
        "states",
        "{project}/_apis/{area}/workItemTypes/{type}/{resource}",
        1,
        "states",
    ),
    _boards(
        "b51fd764-e5c2-4b9b-aaf7-3395cf4bdd94",
        "fields",
        _PLAIN.replace("{id}", "{fieldNameOrRefName}"),
        3,
        "fields",
    ),
    _boards(
        "a70579d1-f53a-48ee-a5be-7be8659023b9",
        "classificationNodes",
        "{project}/_apis/{area}/{resource}",
        2,
        "nodes",
    ),
    _boards(
        "5a172953-1b41-49d3-840a-33f79c3ce89f",
        "classificationNodes",
        "{project}/_apis/{area}/{resource}/{structureGroup}/{*path}",
        2,
        "nodes",
    ),
)
