"""A source with one document per file; what a document looks like is given to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from connectors.documents.options import SourceOptions
from connectors.files.contents import FileText, blank, holds_nothing, open_problem, read_file
from connectors.files.paging import Entry, failed, pages_of, resume_key, selected, skipped
from connectors.files.walk import FileListing, FileTree, FoundFile
from pipeline.documents import Cursor, Document, Finding, Listing, Page
from pipeline.errors import DocumentRejected

Convert = Callable[[SourceOptions, FileText], Document | None]
"""A file's document, or None if it holds no text; raises DocumentRejected if it is broken."""

SHOWN_PROBLEMS = 20


class FileSource:
    """Files below a root, in the order of their paths.

    Raises:
        ConfigurationError: a glob is empty, absolute, or climbs out of the root.
    """

    walks_all = True

    def __init__(self, options: SourceOptions, *, extractor: str, convert: Convert) -> None:
        self.extractor = extractor
        self._options = options
        self._convert = convert
        self._tree = FileTree(options)

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """All files behind the cursor; files are compared by content, so a finished walk starts over."""
        return pages_of(self._entries(resume_key(since)))

    def ids(self) -> Listing:
        """The paths of all matching files, readable or not, without those that became empty."""
        listing = self._tree.listing()
        living = {f.external_id for f in listing.files if not holds_nothing(f, listing.root)}
        return Listing(ids=frozenset(living) | listing.present, complete=listing.complete)

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """These files as they are now."""
        return selected(self.pages(None), ids)

    def check(self) -> list[Finding]:
        """The root, each glob with its number of files, and what could not be read."""
        return findings_of(self._tree)

    def stamp(self) -> str:
        """A hash over names, times, sizes and inodes of the matching files."""
        return self._tree.listing().stamp

    def _entries(self, after: str) -> Iterator[Entry]:
        listing = self._tree.listing()
        items: list[tuple[str, FoundFile | Entry]] = [(f.external_id, f) for f in listing.files]
        items += [(entry.key, entry) for entry in walk_entries(listing)]
        for key, item in sorted(items, key=lambda pair: pair[0]):
            if key > after:
                entry = item if isinstance(item, Entry) else self._entry(item, listing.root)
                if entry is not None:
                    yield entry

    def _entry(self, file: FoundFile, root: str) -> Entry | None:
        read = read_file(file, root, self._options)
        return convert_file(read, self._options, self._convert) if isinstance(read, FileText) else read


def convert_file(file: FileText, options: SourceOptions, convert: Convert) -> Entry:
    """The entry of a file that was read: its document, or why there is none."""
    try:
        document = convert(options, file)
    except DocumentRejected as error:
        return failed(file.external_id, str(error), file.url)
    if document is None:
        return blank(file, options)
    return Entry(key=file.external_id, document=document)


def walk_entries(listing: FileListing) -> list[Entry]:
    """What the walk itself could not take."""
    return [
        *(failed(p.external_id, p.reason) for p in listing.failed),
        *(skipped(p.external_id, p.reason) for p in listing.skipped),
    ]


def findings_of(tree: FileTree) -> list[Finding]:
    """What `larder sources check` says about a tree of files; opens each file once, reads none."""
    listing = tree.listing()
    found = [
        Finding(
            ok=True, subject=f"root {listing.root}", detail=f"can be listed; {len(listing.files)} files match"
        )
    ]
    for index, pattern in enumerate(tree.globs.include):
        count = sum(index in file.patterns for file in listing.files)
        fix = "" if count else f"correct the glob, or put files below {listing.root}"
        detail = f"matches {count} file{'' if count == 1 else 's'}"
        found.append(Finding(ok=bool(count), subject=f"paths {pattern.text}", detail=detail, fix=fix))
    return found + _problem_findings(listing)


def _problem_findings(listing: FileListing) -> list[Finding]:
    problems = [(p.external_id, p.reason) for p in (*listing.failed, *listing.skipped)]
    problems += [(f.external_id, why) for f in listing.files if (why := open_problem(f, listing.root))]
    fix = "see what is said about it, or add it to exclude"
    found = [Finding(ok=False, subject=name, detail=why, fix=fix) for name, why in problems[:SHOWN_PROBLEMS]]
    if len(problems) > SHOWN_PROBLEMS:
        more = f"{len(problems) - SHOWN_PROBLEMS} more files and folders cannot be read"
        found.append(Finding(ok=False, subject="...", detail=more, fix="mend those shown first"))
    return found
