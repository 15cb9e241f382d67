"""Contents of Confluence as records, and the documents of pages and text files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import quote, quote_plus, unquote_plus, urlencode, urljoin, urlsplit

from pydantic import AliasPath, BaseModel, BeforeValidator, Field

from connectors.confluence.options import ConfluenceOptions
from connectors.documents.decisions import Evidence, kind_and_facts
from connectors.documents.headings import headings_of
from connectors.documents.redaction import redact
from connectors.documents.values import clean_text, is_blank, json_text, parse_json, parse_time
from connectors.markup.elements import to_markdown
from pipeline.documents import DEFAULT_KIND, Document, Json, Kind, SourceType

READERS = ("restrictions.read.restrictions.user", "restrictions.read.restrictions.group")
PAGE_WALK = ("version", "history", "ancestors", "metadata.labels", "space", *READERS)
"""Expanded properties of a page, without the body."""
PAGE_FULL = ("body.storage", "history.lastUpdated", *PAGE_WALK)
COMMENT_WALK = ("version", "container", "extensions.resolution")
COMMENT_FULL = ("body.storage", "history", "ancestors", *COMMENT_WALK)
FILE = ("version", "history", "container", "extensions", "metadata")

NOBODY = ("nobody",)
"""Readers of a page whose restrictions are unknown."""
TEXT_SUFFIXES = (".md", ".txt", ".csv", ".json", ".html")
MOST_DEPTH = 6
"""Deepest indented level of replies; deeper ones have the same indent."""
FINGERPRINT_LENGTH = 24
_BEGINNING = datetime.min.replace(tzinfo=UTC)
# `/display/SPACE/Title` cannot have these characters; Confluence uses the longer form then.
_UNFIT = frozenset('/\\?%;+&"<>:#')

Readers = tuple[str, ...]
"""Users and groups that pass one restriction, as `user:ID` and `group:NAME`; empty: everybody."""
Layers = Sequence[Sequence[str]]
"""Restrictions from the outermost page down to the page; readers must pass all of them. Empty: everybody."""


# -- the record ------------------------------------------------------------------------------------------


def _value(row: Any, *names: str) -> Any:
    """The value at a path of nested objects; None if one of them is missing."""
    for name in names:
        row = row.get(name) if isinstance(row, dict) else None
    return row


def _text(row: Any, *names: str) -> str:
    value = _value(row, *names)
    return clean_text(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _objects(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _user_keys(user: Any) -> list[str]:
    return [key for name in ("accountId", "username", "userKey") if (key := _text(user, name))]


def readers_of(restrictions: Any) -> Readers | None:
    """Users and groups of a restriction; None if the answer lacks one of both lists."""
    users, groups = (_value(restrictions, kind, "results") for kind in ("user", "group"))
    if not isinstance(users, list) or not isinstance(groups, list):
        return None
    names = [f"user:{keys[0]}" if (keys := _user_keys(user)) else "" for user in users]
    names += [f"group:{name}" if (name := _text(group, "name")) else "" for group in groups]
    return tuple(sorted(filter(None, names))) or (NOBODY if names else ())


def _labels(labels: Any) -> tuple[str, ...]:
    """Names of labels, sorted; without `my:` labels, which are a person's favourites."""
    return tuple(
        sorted({_text(label, "name") for label in _objects(labels) if _text(label, "prefix") != "my"} - {""})
    )


def _field_at(path: str) -> Any:
    """A field at this path of an answer; None if it is missing."""
    return Field(default=None, validate_default=True, validation_alias=AliasPath(*path.split(".")))


Words = Annotated[str, BeforeValidator(_text)]
Moment = Annotated[datetime | None, BeforeValidator(parse_time)]
Count = Annotated[int, BeforeValidator(lambda value: value if isinstance(value, int) else 0)]


class Content(BaseModel, frozen=True):
    """A page, blog post, comment or attachment of API v1; only the id is required."""

    id: Words = _field_at("id")
    kind: Words = _field_at("type")
    """`page`, `blogpost`, `comment` or `attachment`."""
    status: Annotated[str, BeforeValidator(lambda value: _text(value) or "current")] = _field_at("status")
    title: Annotated[str, BeforeValidator(lambda value: " ".join(_text(value).split()))] = _field_at("title")
    space_key: Words = _field_at("space.key")
    space_name: Words = _field_at("space.name")
    version: Count = _field_at("version.number")
    changed: Moment = _field_at("version.when")
    created: Moment = _field_at("history.createdDate")
    creator: Any = _field_at("history.createdBy")
    editor: Any = _field_at("version.by")
    ancestors: Annotated[
        tuple[tuple[str, str], ...],
        BeforeValidator(lambda value: tuple((_text(a, "id"), _text(a, "title")) for a in _objects(value))),
    ] = _field_at("ancestors")
    """Ids and titles of the pages above, outermost first; for a reply, of the comments above it."""
    labels: Annotated[tuple[str, ...], BeforeValidator(_labels)] = _field_at("metadata.labels.results")
    container: Words = _field_at("container.id")
    """Id of the page or space of a comment or an attachment."""
    container_kind: Words = _field_at("container.type")
    webui: Words = _field_at("_links.webui")
    """Address for people, relative to the base."""
    readers: Annotated[Readers | None, BeforeValidator(readers_of)] = _field_at(
        "restrictions.read.restrictions"
    )
    """Readers by its own restriction; None if that is not in the answer."""
    location: Words = _field_at("extensions.location")
    """Location of a comment: `inline` for one on a passage of the text."""
    resolution: Words = _field_at("extensions.resolution.status")
    size: Count = _field_at("extensions.fileSize")
    """Bytes of an attachment; 0 if not in the answer."""
    download: Words = _field_at("_links.download")
    """Address of an attachment, relative to the base."""
    body: Words = _field_at("body.storage.value")
    """Body in storage format; empty if it was not requested."""

    @property
    def author(self) -> str:
        """Display name of its creator, else of its last editor."""
        return _text(self.creator, "displayName") or _text(self.editor, "displayName")

    @property
    def resolved(self) -> bool:
        """True for a resolved inline comment."""
        return "resolved" in (self.location, self.resolution)

    @property
    def versioned_id(self) -> str:
        """`id:version`."""
        return f"{self.id}:{self.version}"

    @property
    def is_page(self) -> bool:
        """True for a page or blog post."""
        return self.kind in ("page", "blogpost")

    @property
    def suffix(self) -> str:
        """Ending of a file's name in lower case, such as `.txt`."""
        return PurePosixPath(self.title).suffix.lower()

    def becomes_document(self, options: ConfluenceOptions) -> bool:
        """Whether an attachment becomes a document, by its ending and its size, if known."""
        return self.suffix in TEXT_SUFFIXES and self.size <= options.attachment_max_bytes


# -- fingerprints: changes with or without a new version, as far as they are visible without the body -------


def fingerprints(
    options: ConfluenceOptions, page: Content, layers: Layers, attached: Sequence[Content]
) -> dict[str, str]:
    """Fingerprints of the documents of a page and of its text files, by id."""
    # The page's includes whether inline comments are resolved, which changes no version.
    files = [content for content in attached if content.kind != "comment"]
    rows = sorted(f"c{c.versioned_id}{'r' if c.resolved else ''}" for c in attached if c.kind == "comment")
    rows += sorted(f"f{file.versioned_id}" for file in files)
    values = {page.id: _fingerprint(page, layers, [page.version, page.labels, rows])}
    texts = (file for file in files if file.becomes_document(options))
    return values | {file.id: _fingerprint(page, layers, [file.versioned_id, file.title]) for file in texts}


def _fingerprint(page: Content, layers: Layers, details: Sequence[Any]) -> str:
    place = [page.kind, page.title, page.space_key, page.space_name, page.ancestors, layers]
    text = json.dumps([*place, *details], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:FINGERPRINT_LENGTH]


# -- documents -------------------------------------------------------------------------------------------


def page_document(
    options: ConfluenceOptions, base: str, page: Content, layers: Layers, attached: Sequence[Content]
) -> Document | None:
    """The document of a page; None if neither the page nor its comments have text."""
    links = PageLinks(base, page)
    rendered = to_markdown(page.body, links)
    comments = [content for content in attached if content.kind == "comment"]
    unread = [
        f"- {file.title}"
        for file in attached
        if file.kind != "comment" and not file.becomes_document(options)
    ]
    sections = (
        rendered.text,
        _section("Comments", comment_lines(comments, links)),
        _section("Attachments", unread),  # those without a document of their own
    )
    text = clean_text("\n\n".join(filter(None, sections)))
    if is_blank(text):
        return None
    titles = (title.replace("/", "-") for title in (*(title for _, title in page.ancestors), page.title))
    evidence = Evidence(
        path="/".join((page.space_key, *titles)),
        text=rendered.text,
        front_matter={},
        tags=page.labels,
        headings=list(headings_of(rendered.text)),
    )
    source_type = options.source_type or SourceType.CONFLUENCE
    kind, facts = kind_and_facts(options.decisions, evidence, source_type)
    capped = {"capped": True} if rendered.capped else {}
    metadata = {"labels": list(page.labels), **facts, **capped}
    fingerprint = fingerprints(options, page, layers, attached)[page.id]
    return _document(options, base, page, page, layers, text, kind, metadata, fingerprint)


def file_document(
    options: ConfluenceOptions,
    base: str,
    file: Content,
    page: Content,
    layers: Layers,
    decoded: str,
    encoding: str = "utf-8",
) -> Document | None:
    """The document of a text file on a page; None if it has no text.

    Raises:
        DocumentRejected: it is invalid JSON.
    """
    text = decoded
    if file.suffix == ".html":
        text = to_markdown(decoded, PageLinks(base, page)).text
    elif file.suffix == ".json":
        text = json_text(parse_json(decoded, file.title))
    text = clean_text(text)
    if is_blank(text):
        return None
    kind = DEFAULT_KIND[options.source_type or SourceType.CONFLUENCE]
    metadata = {"page_id": page.id, "page_title": page.title}
    metadata |= {} if encoding == "utf-8" else {"encoding": encoding}
    fingerprint = fingerprints(options, page, layers, [file])[file.id]
    return _document(options, base, file, page, layers, text, kind, metadata, fingerprint)


def _document(
    options: ConfluenceOptions, base: str, content: Content, page: Content, layers: Layers,
    text: str, kind: Kind, metadata: Mapping[str, Any], fingerprint: str,
) -> Document:  # fmt: skip
    """Common part of the documents of pages and files: address, place, author, readers."""
    url = address(base, content)
    above = [*page.ancestors, *([] if content is page else [(page.id, page.title)])]
    place = {
        "space": page.space_key,
        "space_name": page.space_name,
        "breadcrumb": [title for _, title in above],
        "author": content.author,
        "version": content.version,
        # Only if the page is restricted.
        **({"acl": [list(layer) for layer in layers]} if layers else {}),
    }
    return Document(
        external_id=content.id,
        title=content.title or f"{'Page' if content is page else 'File'} {content.id}",
        text=text,
        source_type=options.source_type or SourceType.CONFLUENCE,
        kind=kind,
        url=url,
        tags=page.labels if content is page else (),
        metadata=options.metadata_of({**place, **metadata, "source_path": url}),
        created_at=content.created,
        updated_at=content.changed,
        fingerprint=fingerprint,
    )


def _section(heading: str, lines: Sequence[str]) -> str:
    return "\n".join((f"## {heading}", "", *lines)) if lines else ""


def comment_lines(comments: Sequence[Content], links: PageLinks) -> list[str]:
    """Comments as a list with author, day and state; replies below the comment that they answer."""
    comment_ids = {comment.id for comment in comments}
    replies: dict[str, list[Content]] = {}
    for comment in sorted(comments, key=lambda c: (c.created or c.changed or _BEGINNING, c.id)):
        # Below the nearest comment above it that was read.
        above = (key for key, _ in reversed(comment.ancestors) if key in comment_ids and key != comment.id)
        replies.setdefault(next(above, ""), []).append(comment)
    lines: list[str] = []
    # Each comment before its replies, without recursion: threads may be long.
    waiting = [(comment, 0) for comment in reversed(replies.get("", []))]
    while waiting:
        comment, depth = waiting.pop()
        lines += _comment(comment, "  " * min(depth, MOST_DEPTH), links)
        waiting += [(reply, depth + 1) for reply in reversed(replies.get(comment.id, []))]
    return lines


def _comment(comment: Content, indent: str, links: PageLinks) -> Iterator[str]:
    text = to_markdown(comment.body, links).text
    if not text.strip():
        return
    moment = comment.created or comment.changed
    attribution = [comment.author or "Unknown", f"{moment:%Y-%m-%d}" if moment else ""]
    if comment.location in ("inline", "resolved") and not comment.ancestors:
        attribution.append("inline, resolved" if comment.resolved else "inline")
    inset = re.sub(r"\n(?=.)", f"\n{indent}  ", text)  # lines without text stay empty
    yield f"{indent}- **{', '.join(filter(None, attribution))}**: {inset}"


# -- addresses -------------------------------------------------------------------------------------------


def address(base: str, content: Content) -> str:
    """Address of a content for people; `webui` never has the context path, `base` always does.

    The title is part of the address; if it holds a secret, the page's id replaces it.
    """
    if content.webui.startswith("/") and not _holds_secret(unquote_plus(content.webui)):
        return f"{base}{content.webui}"
    return f"{base}/pages/viewpage.action?pageId={content.container or content.id}"


def _holds_secret(text: str) -> bool:
    return redact(text) != text


class PageLinks:
    """Resolves the links of one page's text without requests, so that equal texts have equal addresses."""

    def __init__(self, base: str, page: Content) -> None:
        self._base = base
        self._page = page
        writers = [(key, user) for user in (page.creator, page.editor) for key in _user_keys(user)]
        self._names = {key: name for key, user in writers if (name := _text(user, "displayName"))}

    def page(self, title: str, space: str | None) -> str | None:
        """Address of a page by its title, which Confluence resolves when it is opened."""
        key = space or self._page.space_key
        if not title or not key or _holds_secret(title):
            return None
        if _UNFIT & set(title):
            query = urlencode({"spaceKey": key, "title": title})
            return f"{self._base}/pages/viewpage.action?{query}"
        return f"{self._base}/display/{quote(key, safe='~')}/{quote_plus(title)}"

    def attachment(self, name: str, page_title: str | None) -> str | None:
        """Address of a file on this page; None for a file of another page, whose id is unknown."""
        if page_title is not None and page_title != self._page.title:
            return None
        return f"{self._base}/download/attachments/{self._page.id}/{quote(name)}"

    def user(self, key: str) -> str | None:
        """Display name of a user who wrote the page; None for others."""
        return self._names.get(key)

    def href(self, href: str) -> str | None:
        """The absolute address; None for an anchor on the page itself."""
        if href.startswith("#"):
            return None
        try:
            return href if urlsplit(href).scheme else urljoin(f"{self._base}/", href)
        except ValueError:
            return None
