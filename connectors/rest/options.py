"""Options of a source of type `rest`: requests, paging, and the fields of a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from connectors.documents.options import HookOptions, ServiceOptions
from connectors.rest.expressions import Expression, Span, Template, names_in, value_at, with_values
from connectors.rest.presets import preset, preset_names, with_preset
from connectors.sections import (
    ConfigSection,
    Expected,
    Flag,
    Mismatch,
    OneOf,
    Positive,
    Secret,
    Text,
    WebUrl,
    Whole,
    as_list,
    mismatched,
    refuse,
)
from connectors.web.hooks import plain_ids, texts_of
from pipeline.documents import Json, Kind

FORMATS = ("markdown", "html", "adf", "plain")
METHODS = ("GET", "POST")
PLACEHOLDERS = frozenset({"cursor", "next", "id"})
"""Names of placeholders that the connector fills in."""
Format = Annotated[Literal["markdown", "html", "adf", "plain"], OneOf(FORMATS)]


def _values(value: Any) -> Any:
    items = value if isinstance(value, list) else [value]
    return [str(item).lower() if isinstance(item, bool) else str(item) for item in items]


def _parts(value: Any) -> Any:
    items = [value] if isinstance(value, str | dict) else value
    return [{"field": item} if isinstance(item, str) else item for item in as_list(items)]


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _condition(value: Any) -> Any:
    return {"field": value} if isinstance(value, str) else value


Choices = Annotated[tuple[Text, ...], BeforeValidator(_values), Expected("a value or a list of values")]
Params = Annotated[Mapping[str, Any], Expected("a mapping of parameters to values")]
Expressions = Annotated[Mapping[str, Expression], Expected("a mapping of names to JMESPath expressions")]


class SignIn(ConfigSection):
    """A user with a password or token."""

    username: Text
    """Name or e-mail of the user."""
    password: Secret
    """Password or token of that user."""


class NamedSecret(ConfigSection):
    """A key that is sent under a name."""

    name: Text
    """Name of the header or parameter."""
    value: Secret
    """The key itself."""


class Paging(ConfigSection):
    """Request of the next page of a list; one of cursor, url, link, number and offset."""

    cursor: Expression | None = None
    """Expression for the cursor of the next page in an answer; without a value the list ends."""
    url: Expression | None = None
    """Expression for the address of the next page in an answer."""
    link: Flag = False
    """Address of the next page in the header Link (rel="next")."""
    number: Whole | None = None
    """Number of the first page, 0 or 1; the list ends with an empty page."""
    offset: Flag = False
    """Number of records before the page; the list ends with an empty page."""
    param: Text | None = None
    """Parameter for the cursor, number or offset. In a body write {next} instead."""
    more: Expression | None = None
    """Expression that is true if a further page follows."""
    total: Expression | None = None
    """Expression for the number of all records; a list with fewer ones is not complete."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        ways = {
            "cursor": self.cursor, "url": self.url, "link": self.link or None, "number": self.number,
            "offset": self.offset or None,
        }  # fmt: skip
        chosen = [key for key, value in ways.items() if value is not None]
        if len(chosen) != 1:
            expected = "one of cursor, url, link, number and offset"
            fix = f"there are {' and '.join(chosen)}; null takes out that of a preset" if chosen else ""
            raise mismatched(
                [Mismatch(key=chosen[0] if chosen else "cursor", expected=expected, fix=fix)], self
            )
        return self

    @property
    def counts(self) -> bool:
        """Whether pages are counted, so that a list that is edited meanwhile moves below the reader."""
        return self.number is not None or self.offset


class Request(ConfigSection):
    """A request."""

    path: Template
    """Path below baseUrl, such as /tickets/{id}. {name} is quoted, {+name} keeps its slashes."""
    method: Annotated[
        Literal["GET", "POST"], BeforeValidator(lambda v: str(v).upper()), Expected("GET or POST")
    ] = "GET"
    """GET, or POST for services that are asked by a body, such as GraphQL."""
    params: Params = Field(default_factory=dict)
    """Parameters of the query. {cursor} is the time since when changes are asked for, {next} the position of the
    page; a parameter that is one of them is left out where it has no value."""
    body: Annotated[Any, Expected("JSON")] = None
    """JSON to send, with the same placeholders."""


class ListRequest(Request):
    """The request of a list, page by page."""

    records: Expression = "@"
    """Expression for the list of records in an answer."""
    next: Paging | None = None
    """Request of the next page. Empty: there is one page."""


class ItemRequest(Request):
    """The request of one record by its id."""

    record: Expression = "@"
    """Expression for the record in the answer."""
    gone: Expression | None = None
    """Expression that is true for an answer which says that there is no such record, beside the status 404 and 410."""
    within: ListRequest | None = None
    """List that has the record {id} if it belongs to the source: asked for what an event or the walk names, where list
    leaves out records that the account may read. Empty: any record of this request belongs to it."""
    in_list: Flag = False
    """true: records of the list are whole, and only changed ones of the id walk are read one by one."""


class Child(ConfigSection):
    """Records that belong to an item, such as its comments: a section of its document."""

    name: Text
    """Heading of the section. With heading: false it has none."""
    heading: Flag = True
    """false: the texts stand without a heading, as paragraphs."""
    path: Template | None = None
    """Path of their list, with {id}. Empty: they are in the record."""
    params: Params = Field(default_factory=dict)
    """Parameters of the query."""
    records: Expression = "@"
    """Expression for the list of records in an answer."""
    next: Paging | None = None
    """Request of the next page. Empty: as that of the list."""
    inline: Expression | None = None
    """Expression for those in the record itself; the request is left out if these are all."""
    count: Expression | None = None
    """Expression for their number in the record; without any, the request is left out."""
    text: Expression
    """Expression for the text of one."""
    author: Expression | None = None
    """Expression for its author."""
    created: Expression | None = None
    """Expression for its time."""
    format: Format | None = None
    """Format of the text. Empty: that of the document."""


class Changed(ConfigSection):
    """Time of change, by which later syncs ask for what is new."""

    field: Expression
    """Expression for the time in a record."""
    overlap: Span = Field(default="5m", validate_default=True)
    """Time before the last change from which is read again, since a service may show a change late."""
    format: Annotated[Text, Expected("iso, epoch, epochms, ago or a pattern such as %Y-%m-%d %H:%M")] = "iso"
    """Form of {cursor}: iso, epoch (seconds), epochms, ago (minutes before now, as in -90m), or a pattern as of
    strftime, in UTC."""
    start: Text | None = None
    """Value of {cursor} in the first sync. Empty: parameters with it are left out."""
    descending: Flag = False
    """true: the list begins with the newest change and takes no {cursor}; it is read as far as the last change."""


class TextPart(ConfigSection):
    """A part of the text."""

    field: Expression
    """Expression for the text."""
    heading: Text | None = None
    """Heading above it. Empty: none."""
    format: Format | None = None
    """Format of this part. Empty: that of the document."""


class Condition(ConfigSection):
    """A condition on a record."""

    field: Expression
    """Expression for a value of the record."""
    is_: Choices = Field(default=(), alias="is")
    """Values for which it holds, in any case. Empty: any value but false, 0 and an empty one."""
    because: Text = "excluded"
    """Reason in a few words, by which such records are counted."""


class AclField(ConfigSection):
    """Readers of a record; without any, only callers with the permission admin find its document."""

    field: Expression
    """Expression for a list of names."""
    prefix: Text = "group"
    """Kind of the names: group or user."""


class DocumentFields(ConfigSection):
    """Expressions for the fields of a document, for a record of the item's request, else of the list."""

    id: Expression = "id"
    """Id, which stays the same as long as the item exists."""
    title: Expression = "title"
    """Title."""
    url: Text | None = None
    """Expression for the address for people, or an address or path with {id}, such as /browse/{id}."""
    text: Annotated[
        tuple[TextPart, ...], BeforeValidator(_parts), Expected("an expression or a list of them")
    ] = ()
    """Text, or its parts one after the other: expressions, or mappings of field, heading and format."""
    format: Format = "plain"
    """Format of texts: markdown, html, adf (documents of Atlassian's editor) or plain."""
    kind: Annotated[Kind, OneOf(tuple(map(str, Kind)))] = Kind.REFERENCE
    """Kind: work, decision or reference."""
    status: Expression | None = None
    """State, such as open or done."""
    created: Expression | None = None
    """Time of creation."""
    updated: Expression | None = None
    """Time of the last change. Empty: changed.field."""
    tags: Expression | None = None
    """List of tags, or text with commas."""
    acl: Annotated[AclField | None, BeforeValidator(_condition)] = None
    """Readers. Empty: as for the source."""
    metadata: Expressions = Field(default_factory=dict)
    """Further metadata. Step 4 knows duplicate_of, parent_id, resolution, story_points, estimated_hours,
    actual_hours, started_at, resolved_at and closed_at of work."""


class RestHook(HookOptions):
    """What proves the events that a service sends, and the items that they name (docs/webhooks.md)."""

    ids: Annotated[
        tuple[Expression, ...], BeforeValidator(_one_or_more), Expected("an expression or a list of them")
    ] = ()
    """Expressions for the ids, or lists of ids, of the items that an event is about. {"ids": [...]} is always read."""
    steps: Annotated[tuple[Text, ...], Expected("a list of texts")] = ()
    """What to do at the service, as `larder sources hooks` shows it."""


class RestOptions(ServiceOptions):
    """Records of any REST service, or of a known one by its preset (docs/sources/rest.md).

    Expressions are JMESPath. The keys bearer, basic, header and query may be written below `auth`.
    """

    type: Text = "rest"
    """Type of the source."""
    preset: Text | None = Field(default=None, examples=["jira"])
    """Name of a known service, whose keys hold where this section has none (docs/sources/rest.md)."""
    values: Annotated[Mapping[str, str], Expected("a mapping of names to texts")] = Field(
        default_factory=dict
    )
    """Values for {name} in paths, parameters, bodies and url; a preset says which it needs."""
    base_url: WebUrl = Field(examples=["https://support.example.com/api"])
    """Address of the API; paths begin below it."""
    bearer: Secret | None = Field(default=None, examples=["${SERVICE_TOKEN}"])
    """Token in the header Authorization: Bearer."""
    basic: SignIn | None = None
    """User name and password, or what the service takes for them."""
    header: NamedSecret | None = None
    """Key in a header of another name."""
    query: NamedSecret | None = None
    """Key in a parameter of the query."""
    headers: Annotated[Mapping[str, str], Expected("a mapping of headers to texts")] = Field(
        default_factory=dict
    )
    """Further headers of each request, such as the version of the API."""
    hook: RestHook | None = None
    """What changes is read as soon as the service tells of it; of a preset only the secret is to be given. Empty: no
    events are taken."""
    list_: ListRequest = Field(alias="list")
    """List of all records, and of changed ones."""
    walk: Annotated[Mapping[str, Any], Expected("a mapping")] = Field(default_factory=dict)
    """Keys of list that differ in the daily walk over all ids, such as an order that edits do not change."""
    changed: Changed | None = None
    """Time of change. Empty: each sync reads all records."""
    item: ItemRequest | None = None
    """Request of one record. Empty: the list has all there is."""
    children: Annotated[tuple[Child, ...], BeforeValidator(as_list)] = ()
    """Records that belong to an item."""
    document: DocumentFields = DocumentFields()
    """Fields of a document."""
    deleted: Annotated[Condition | None, BeforeValidator(_condition)] = None
    """Condition for records that are deleted. Empty: they are found by the daily walk."""
    exclude: Annotated[tuple[Condition, ...], BeforeValidator(as_list)] = ()
    """Conditions for records that are not read."""
    busy: Expression | None = None
    """Expression that is true for an answer that asks to come later, for services that say so in the body."""
    page_items: Positive = 50
    """Documents that are stored at once."""

    product: ClassVar = "the service"
    example: ClassVar = {
        "name": "tickets",
        "type": "rest",
        "enabled": "${TICKETS_ENABLED:-false}",
        "baseUrl": "${TICKETS_URL}",
        "bearer": "${TICKETS_TOKEN}",
        "list": {
            "path": "/tickets",
            "params": {"since": "{cursor}"},
            "records": "items",
            "next": {"cursor": "next", "param": "cursor"},
        },
        "changed": {"field": "updated_at"},
        "document": {"title": "subject", "text": "description", "kind": "work", "status": "state"},
        "updateSchedule": "*/30 * * * *",
    }

    @model_validator(mode="before")
    @classmethod
    def _expanded(cls, value: Any) -> Any:
        """The section with the keys of its preset where it has none of its own, and values within expressions."""
        name = value.get("preset") if isinstance(value, dict) else None
        if name is not None:
            if name not in preset_names():
                raise mismatched([Mismatch(key="preset", expected="one of " + ", ".join(preset_names()))])
            value = with_preset(name, value)
        values = value.get("values") if isinstance(value, dict) else None
        if not isinstance(values, dict):
            return value
        parts = {key: value[key] for key in ("children", "exclude", "deleted", "document") if key in value}
        return {**value, **with_values(parts, values)}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse(self, [*self._sign_in_mismatches(), *self._name_mismatches(), *self._walk_mismatches()])
        return self

    def _sign_in_mismatches(self) -> Iterator[Mismatch]:
        ways = ("bearer", "basic", "header", "query")
        keys = [key for key in ways if getattr(self, key) is not None]
        for key in keys[1:]:
            yield Mismatch(key=key, expected=f"one of {', '.join(ways)}", fix=f"there is {keys[0]} as well")

    def _name_mismatches(self) -> Iterator[Mismatch]:
        """Placeholders without a value, and a text that is neither an address nor an expression."""
        names_with_values = PLACEHOLDERS | self.values.keys()
        meanings = (preset(self.preset).get("values") or {}) if self.preset else {}
        missing: dict[str, str] = {}
        for key, template in self._templates().items():
            for name in sorted(names_in(template) - names_with_values):
                missing.setdefault(name, key.rstrip("_"))
        filled = ", ".join(f"{{{name}}}" for name in sorted(PLACEHOLDERS))
        for name, key in missing.items():
            if name in meanings:
                yield Mismatch(key="values", expected=f"a value for {name}", fix=meanings[name])
            else:
                fix = f"give values.{name}; only {filled} have one of their own"
                yield Mismatch(key=key, expected=f"a value for {{{name}}} in it", fix=fix)

    def _templates(self) -> dict[str, Any]:
        """The sections that may have placeholders, by their key."""
        requests = {"list_": self.list_, "item": self.item}
        return {
            **{key: request.model_dump() for key, request in requests.items() if request},
            "walk": self.walk,
            "children": [child.model_dump() for child in self.children],
            "document": {"url": self.document.url} if self.url_is_template else {},
        }

    def _walk_mismatches(self) -> Iterator[Mismatch]:
        if unknown := sorted(self.walk.keys() - {"path", "params", "body", "records", "next"}):
            yield Mismatch(key="walk", expected="keys of list", fix=f"{', '.join(unknown)} is none of them")

    def hinted_ids(self, event: Json) -> list[str]:
        """Ids of the records that an event names."""
        values = [value_at(expression, event) for expression in self.hook.ids] if self.hook else []
        ids = [one for value in values for one in (value if isinstance(value, list) else [value])]
        return texts_of([*plain_ids(event), *ids])

    @property
    def event_steps(self) -> tuple[str, ...]:
        """Those of the preset, else those of any service."""
        return (self.hook.steps if self.hook else ()) or self.hook_steps

    @property
    def place(self) -> str:
        """The base URL."""
        return self.base_url

    @property
    def url_is_template(self) -> bool:
        """Whether the address for people is an address or path, and not an expression."""
        return (self.document.url or "").startswith(("/", "http://", "https://"))

    @property
    def walk_list(self) -> ListRequest:
        """The list as the walk over all ids asks for it."""
        keys = self.list_.model_dump(by_alias=True)
        return ListRequest.model_validate(
            {**keys, **self.walk, "params": {**keys["params"], **self.walk.get("params", {})}}
        )

    @property
    def selection_hash(self) -> str:
        """A short hash over all options that select or shape documents; a cursor with another hash is not used."""
        unrelated = {"bearer", "basic", "header", "query", "headers", "page_items", "busy", "preset"}
        fields = RestOptions.model_fields.keys() - ServiceOptions.model_fields.keys() - unrelated
        return self._hash_with(self.model_dump(mode="json", include=fields))
