"""Options of sources that read files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Self
from urllib.parse import quote_from_bytes

import annotated_types
from pydantic import Field

from connectors.documents.options import SourceContext, SourceOptions
from connectors.sections import Expected, Flag, Folder, OneOf, Size, Texts, WebUrl
from pipeline.documents import Kind

FORMATS: Mapping[str, str] = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    ".rst": "rst",
    **dict.fromkeys((".adoc", ".asciidoc"), "asciidoc"),
    ".pdf": "pdf",
    ".docx": "docx",
}
"""Ending of a file name -> format that `connectors.files.formats` converts to Markdown."""
ENDINGS: Mapping[str, tuple[str, ...]] = {
    "markdown": (
        ".md", ".markdown", ".mdx", ".mkd", ".mkdn", ".mdwn", ".mdown", ".mdtxt", ".qmd", ".rmd", *FORMATS,
    ),
    "text": (".txt", ".text"),
    "json": (".json",),
}  # fmt: skip
"""Type of source -> endings of its files, in any case, unless a pattern names another one."""
BINARY = (".pdf", ".docx")
"""Endings of binary formats."""


KindName = Annotated[Kind, OneOf(tuple(map(str, Kind)))]


class FileOptions(SourceOptions):
    """Files below a folder, found by patterns."""

    paths: Annotated[Texts, annotated_types.MinLen(1), Expected("a list of one pattern or more")]
    """Patterns of the files to read, below root; ** is any number of folders. An ending holds in any case: *.md reads
    C.MD. One that names no ending, such as docs/**/*, leaves out programs: only *.py reads them."""
    exclude: Texts = Field(default=(), examples=[["**/node_modules/**"]])
    """Patterns of files to leave out; one without a slash holds in every folder."""
    root: Folder = Path()
    """The folder the patterns start at and never leave."""
    base_url: WebUrl | None = Field(default=None, examples=["https://git.example.com/project/blob/main"])
    """Address at which people open these files, without the path, which is appended. Empty: no links."""
    watch: Flag = False
    """Look for changed files every few seconds."""
    max_bytes: Size = Field(default="10m", validate_default=True)
    """Larger files are skipped and reported."""
    kind: KindName | None = Field(default=None, examples=["work"])
    """Kind of all documents: work (tasks, stories), decision or reference. Empty: by header, folder and headings."""

    def with_context(self, context: SourceContext) -> Self:
        """A copy of the options with this context and an absolute root."""
        options = super().with_context(context)
        return options.model_copy(update={"root": context.folder / self.root.expanduser()})

    @property
    def place(self) -> str:
        """The root, as configured."""
        return str(self.root)

    @property
    def excluded_folder(self) -> Path | None:
        """Folder that is never read, whatever the patterns say; None if there is none."""
        return self._context.closed

    @property
    def root_folders(self) -> str:
        """The last two folders of the root's path, for rules about names of folders."""
        return "/".join(Path(os.path.abspath(self.root)).parts[1:][-2:])  # noqa: PTH100 (keeps links as given)

    @property
    def kept_fields(self) -> tuple[str, ...]:
        """Fields of headers that are stored as metadata, beside the usual ones."""
        return ()

    @property
    def outcome_hash(self) -> str:
        """A short hash over all options that affect the documents of files."""
        return self._hash_with(self.model_dump(mode="json"), self.url_of(""))

    def url_of(self, relative: str) -> str:
        """Address of the file at the path `relative` to the root, with slashes."""
        path = quote_from_bytes(os.fsencode(relative))
        start = self.base_url or Path(os.path.abspath(self.root)).as_uri()  # noqa: PTH100 (keeps links as given)
        return f"{start.rstrip('/')}/{path}"


class TextOptions(FileOptions):
    """Plain text files."""


class MarkdownOptions(FileOptions):
    """Markdown files with front matter."""

    frontmatter_fields: Texts = ("title", "tags", "category")
    """Fields of the header that are stored, beside author, dates, status, assignee, labels, priority, dependencies,
    parent and type."""

    @property
    def kept_fields(self) -> tuple[str, ...]:
        """Fields of headers that are stored as metadata, beside the usual ones."""
        return self.frontmatter_fields

    example: ClassVar = {
        "name": "project_docs",
        "type": "markdown",
        "paths": ["./docs/**/*.md", "./README.md"],
        "exclude": ["**/node_modules/**", "**/CHANGELOG.md", "**/.git/**"],
    }


class PbiOptions(FileOptions):
    """Backlog items in JSON files."""

    identity: Annotated[str, OneOf(("run", "id"))] = "run"
    """Matching of items with one id in several runs. run: by title, nearly equal ones are one item, because each
    run of a pipeline numbers anew. id: by id alone, for a backlog with lasting ids such as SHOP-12."""

    strategy: ClassVar = "pbi_aware"
    example: ClassVar = {
        "name": "pipeline_outputs",
        "type": "pbi_json",
        "paths": ["./output/run-*/final-output.json", "./output/run-*/step-*.json"],
    }
