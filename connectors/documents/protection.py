"""What the documents of every source go through before anything of them is stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from connectors.documents.options import NAMES, SourceOptions
from connectors.documents.redaction import redact
from pipeline.documents import LEVEL, Cursor, Document, Page, Problem, Source
from pipeline.errors import DocumentRejected

PEOPLE = ("author", "authors", "created_by", "assigned_to", "assignee", "deciders")
"""Metadata with names of people."""
AS_IT_IS: Mapping[str, Callable[[str], str]] = {"acl": str, "source_path": redact, "links": redact}
"""Metadata that lead somewhere or let somebody in: they lose secrets at most."""
SHORTEST_NAME, LONGEST_NAME, MOST_NAMES = 3, 80, 200
_HEADS = re.compile(
    # As the connectors write who said or did something.
    r"^(?: *- \*\*|### )([^\n,*]{1,80}), \d{4}-\d\d-\d\d|^- (?:Created|Resolved|Closed) [\d-]{10} by ([^\n:]{1,80})",
    re.MULTILINE,
)


class ProtectedSource:
    """A source whose documents have their level and were redacted, as its options say."""

    def __init__(self, source: Source, options: SourceOptions) -> None:
        self._source = source
        self._options = options
        self.extractor, self.walks_all = source.extractor, source.walks_all
        self.ids, self.check, self.stamp = source.ids, source.check, source.stamp

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """Those of the source."""
        return map(self._page, self._source.pages(since))

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """Those of the source."""
        return map(self._page, self._source.read(ids))

    def _page(self, page: Page) -> Page:
        documents, failed = [], list(page.failed)
        for document in page.documents:
            try:
                documents.append(protected(document, self._options))
            except DocumentRejected as error:
                failed.append(Problem(external_id=document.external_id, reason=str(error), url=document.url))
        return replace(page, documents=tuple(documents), failed=tuple(failed))


def protected(document: Document, options: SourceOptions) -> Document:
    """The document as it may be stored; who may read it and where it is are told as before.

    Raises:
        DocumentRejected: it asks for a security level that does not exist.
    """
    names = names_in(document) if NAMES in options.redact else ()
    clean = partial(redact, kinds=options.redact, names=names)
    return replace(
        document,
        title=clean(document.title),
        text=clean(document.text),
        url=redact(document.url),
        tags=tuple(map(clean, document.tags)),
        metadata={k: _each(v, AS_IT_IS.get(k, clean)) for k, v in document.metadata.items() if k != LEVEL},
        security_level=options.level_of(document),
    )


def names_in(document: Document) -> list[str]:
    """Names of people that its metadata tell, and those that connectors write above comments."""
    texts: list[str] = []
    _each([document.metadata.get(key) for key in PEOPLE], texts.append)
    told = [name for text in texts for name in re.split(r"[,;<>]|\s(?:and|&)\s", text)]
    told += [name for found in _HEADS.findall(document.text) for name in found]
    names = dict.fromkeys(name.strip() for name in told)
    return [name for name in names if SHORTEST_NAME <= len(name) <= LONGEST_NAME][:MOST_NAMES]


def _each(value: Any, change: Callable[[str], object]) -> Any:
    """The value with every text in it changed; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _each(inner, change) for key, inner in value.items()}
    return [_each(inner, change) for inner in value] if isinstance(value, list | tuple) else value
