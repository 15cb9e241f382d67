"""Attached text files as documents of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from connectors.confluence.addresses import PageLinks, address
from connectors.confluence.faults import Missing, Refused
from connectors.confluence.fingerprints import file_fingerprint
from connectors.confluence.item import Item, nested
from connectors.confluence.options import ConfluenceOptions
from connectors.confluence.site import WHO, Site
from connectors.documents.redaction import redact
from connectors.documents.values import clean_text, json_able, json_text, parse_json
from connectors.files.source import Unreadable, decode, is_blank
from connectors.markup import to_markdown
from connectors.web import AnswerTooLarge
from pipeline.documents import DEFAULT_KIND, Document, Problem, SourceType
from pipeline.errors import DocumentRejected, SourceDenied

TEXT_SUFFIXES = (".md", ".txt", ".csv", ".json", ".html")

Layers = list[list[str]]


def is_text_file(file: Item, options: ConfluenceOptions) -> bool:
    """Whether it becomes a document: by its name, and within the limit as far as the size is told."""
    size = nested(file.raw, "extensions", "fileSize")
    return _suffix(file) in TEXT_SUFFIXES and not (
        isinstance(size, int) and size > options.attachment_max_bytes
    )


class _TooLarge(Exception):
    """More bytes came than the limit allows, whatever size was told before."""


@dataclass(frozen=True, kw_only=True)
class AttachedFile:
    """What became of one: a document, or the problem that it has."""

    document: Document | None = None
    failed: Problem | None = None
    skipped: Problem | None = None


class Files:
    """Downloads attachments from the host itself, never from where it may send us."""

    def __init__(self, site: Site, options: ConfluenceOptions) -> None:
        self._site = site
        self._options = options
        self._lead_elsewhere = False

    def read(self, base: str, file: Item, page: Item, layers: Layers) -> AttachedFile:
        """One text file.

        Raises:
            SourceDenied: the credentials are refused altogether.
            SourceUnavailable: the service does not answer.
        """
        url = address(base, file)
        try:
            text = self._text(base, file, page)
        except (AnswerTooLarge, _TooLarge):
            return AttachedFile(skipped=_problem(file, url, "is larger than the limit; split it"))
        except (Unreadable, DocumentRejected) as error:
            return AttachedFile(failed=_problem(file, url, str(error)))
        except (Missing, SourceDenied) as error:
            self._tell_apart(error)
            return AttachedFile(failed=_problem(file, url, f"cannot be downloaded: {error.message}"))
        if is_blank(text):
            return AttachedFile(skipped=_problem(file, url, "holds no text"))
        return AttachedFile(document=self._document(url, file, page, layers, text))

    def _text(self, base: str, file: Item, page: Item) -> str:
        data = self._download(file)
        if len(data) > self._options.attachment_max_bytes:
            raise _TooLarge
        return redact(clean_text(_text_of(file, decode(data)[0], PageLinks(base, page))))

    def _download(self, file: Item) -> bytes:
        path = nested(file.raw, "_links", "download")
        if not isinstance(path, str) or not path:
            raise Unreadable("has no address to download it from")
        return self._site.download(path, html=_suffix(file) == ".html")

    def _tell_apart(self, error: Missing | SourceDenied) -> None:
        """A refusal of this one file (it lies on another host) is no refusal of our credentials."""
        if self._lead_elsewhere or isinstance(error, Missing | Refused):
            return
        try:
            self._site.json(WHO)
        except SourceDenied:
            raise error from None
        self._lead_elsewhere = True

    def _document(self, url: str, file: Item, page: Item, layers: Layers, text: str) -> Document:
        source_type = self._options.source_type or SourceType.CONFLUENCE
        metadata = {
            **json_able(self._options.metadata),
            "space": page.space_key,
            "space_name": page.space_name,
            "breadcrumb": [redact(title) for title in (*(t for _, t in page.ancestors), page.title)],
            "author": file.author,
            "version": file.version,
            "page_id": page.id,
            "page_title": redact(page.title),
            **({"acl": layers} if layers else {}),
            "source_path": url,
        }
        return Document(
            external_id=file.id,
            title=redact(file.title) or f"File {file.id}",
            text=text,
            source_type=source_type,
            kind=DEFAULT_KIND[source_type],
            url=url,
            metadata=metadata,
            created_at=file.created,
            updated_at=file.changed,
            fingerprint=file_fingerprint(file, page, layers),
        )


def _suffix(file: Item) -> str:
    return PurePosixPath(file.title).suffix.lower()


def _text_of(file: Item, text: str, links: PageLinks) -> str:
    if _suffix(file) == ".html":
        return to_markdown(text, links).text
    return json_text(parse_json(text, file.title)) if _suffix(file) == ".json" else text


def _problem(file: Item, url: str, reason: str) -> Problem:
    return Problem(external_id=file.id, reason=f"{file.title} {reason}", url=url)
