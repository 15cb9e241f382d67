"""Projects, types, fields and areas as a pretended Azure DevOps tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from tests.fakes.azure_devops_call import Call, collection
from tests.fakes.azure_devops_errors import Refusal, bad_request, no_project
from tests.fakes.azure_devops_fields import STATES
from tests.fakes.azure_devops_model import Boards
from tests.fakes.azure_devops_records import Project
from tests.fakes.azure_devops_resources import BOARDS_AREA, CORE_AREA
from tests.fakes.azure_devops_shapes import Json, Shapes
from tests.fakes.server import Answer

EXPANSIONS = ("none", "relations", "fields", "links", "all")


@dataclass(kw_only=True)
class Limits:
    """What the service caps; small ones make small tests."""

    hits: int = 20_000
    """Of one query or recycle bin."""
    feed_page: int = 200
    feed_most: int = 1000
    """What $maxPageSize is lowered to without a word."""
    feed_scans: bool = False
    """A batch covers this many revisions before filtering: it may be short or empty and not be the last."""
    url: int = 4096


class Places:
    """The methods are named in `azure_devops_resources.RESOURCES`."""

    def __init__(self, boards: Boards, base: str, limits: Limits, zone: str, *, hosted: bool) -> None:
        self._boards = boards
        self._base = base
        self._limits = limits
        self._zone = ZoneInfo(zone)
        self._hosted = hosted
        self._shapes = Shapes(boards, base)

    def resource_areas(self, call: Call) -> Answer:
        """A Server has none to tell of."""
        named = (("core", CORE_AREA), ("wit", BOARDS_AREA)) if self._hosted else ()
        areas = [{"id": guid, "name": name, "locationUrl": self._base + "/"} for name, guid in named]
        wanted = call.args.get("areaId")
        if wanted is None:
            return collection(areas)
        return Answer(json=next((a for a in areas if a["id"] == wanted.lower()), {}))

    def connection_data(self, _call: Call) -> Answer:
        person = {"id": "5c5d5e5f-0000-4000-8000-000000000001", "providerDisplayName": "Robo Reader"}
        return Answer(
            json={"authenticatedUser": person, "authorizedUser": person, "deploymentType": "hosted"}
        )

    def projects(self, call: Call) -> Answer:
        wanted = call.args.get("projectId")
        if wanted is not None:
            return Answer(json=self._shapes.project(self._project(wanted)))
        shown = [p for p in self._boards.projects.values() if not p.hidden]
        skip = max(call.number("$skip", 0), call.number("continuationToken", 0))
        page = shown[skip : skip + call.number("$top", 100)]
        end = skip + len(page)
        headers = {"X-MS-ContinuationToken": str(end)} if end < len(shown) else {}
        return collection([self._shapes.project(p) for p in page], headers)

    def types(self, call: Call) -> Answer:
        project = self._of(call)
        if "type" not in call.args:
            return collection([self._shapes.type(project, name) for name in sorted(project.types)])
        return Answer(json=self._shapes.type(project, self._type(project, call.args["type"])))

    def states(self, call: Call) -> Answer:
        self._type(self._of(call), call.args["type"])
        return collection([{"name": n, "color": "b2b2b2", "category": c} for n, c in STATES])

    def fields(self, call: Call) -> Answer:
        outside = {"tags": "plainText", "identity": "string"}
        known = [
            {
                "name": f.name,
                "referenceName": f.reference,
                "type": outside.get(f.type, f.type),
                "usage": "workItem",
                "isIdentity": f.type == "identity",
                "url": f"{self._base}/_apis/wit/fields/{f.reference}",
            }
            for f in self._boards.fields.values()
        ]
        wanted = call.args.get("fieldNameOrRefName", "").lower()
        if not wanted:
            return collection(known)
        for field in known:
            if wanted in (str(field["name"]).lower(), str(field["referenceName"]).lower()):
                return Answer(json=field)
        text = f"TF51535: Cannot find field {wanted}."
        raise Refusal(404, "WorkItemTrackingFieldDefinitionNotFoundException", text)

    def nodes(self, call: Call) -> Answer:
        """Areas and iterations as trees, as deep as `$depth`."""
        project, depth = self._of(call), call.number("$depth", 0)
        group, path = call.args.get("structureGroup"), call.args.get("path", "")
        if group is None:
            return collection(
                [self._node(project, kind, project.name, depth) for kind in ("area", "iteration")]
            )
        kind = "area" if group.lower() == "areas" else "iteration"
        full = "\\".join([project.name, *path.split("/")]) if path else project.name
        for known in self._paths(project, kind):
            if known.lower() == full.lower():
                return Answer(json=self._node(project, kind, known, depth))
        raise Refusal(
            404, "WorkItemTrackingTreeNodeNotFoundException", f"VS402485: The path {path} is not known."
        )

    # --- inside

    def _project(self, name: str) -> Project:
        project = self._boards.project(name)
        if project is None or project.hidden:
            raise no_project(name)
        return project

    @staticmethod
    def _of(call: Call) -> Project:
        if call.project is None:
            raise bad_request("The project is missing in the address.")
        return call.project

    @staticmethod
    def _type(project: Project, name: str) -> str:
        for known in project.types:
            if known.lower() == name.lower():
                return known
        text = f"VS402323: Work item type {name} does not exist in project {project.name}."
        raise Refusal(404, "WorkItemTypeNotFoundException", text)

    @staticmethod
    def _paths(project: Project, kind: str) -> set[str]:
        return project.areas if kind == "area" else project.iterations

    def _node(self, project: Project, kind: str, path: str, depth: int) -> Json:
        below = sorted(p for p in self._paths(project, kind) if p.rpartition("\\")[0] == path)
        found: Json = {
            "id": abs(hash((kind, path))) % 100_000,
            "name": path.rpartition("\\")[2],
            "structureType": kind,
            "hasChildren": bool(below),
            "path": "\\" + "\\".join([project.name, kind.title(), *path.split("\\")[1:]]),
        }
        if below and depth:
            found["children"] = [self._node(project, kind, p, depth - 1) for p in below]
        return found

    def _selection(self, fields: Sequence[str], expand: str) -> tuple[Sequence[str], str]:
        """Checked: known names, and not both at once."""
        expand = expand.lower()
        if expand not in EXPANSIONS:
            raise bad_request(f"The value '{expand}' is not valid for $expand.")
        if fields and expand != "none":
            text = "The expand parameter can not be used with the fields parameter."
            raise Refusal(400, "ConflictingParametersException", text)
        known = {name.lower() for name in self._boards.fields}
        for name in fields:
            if str(name).lower() not in known:
                text = f"TF51535: Cannot find field {name}."
                raise Refusal(400, "WorkItemTrackingFieldDefinitionNotFoundException", text)
        return fields, expand

    def _column(self, reference: str) -> Json:
        name = self._boards.fields[reference].name
        return {"referenceName": reference, "name": name, "url": f"{self._base}/_apis/wit/fields/{reference}"}
