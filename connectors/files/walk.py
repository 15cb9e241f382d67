"""Files below a root that match a source's globs: listed without opening them, then read one by one."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from pathlib import Path

from connectors.documents.encodings import Unreadable, decode
from connectors.documents.globs import Globs, Pattern
from connectors.documents.values import from_epoch, is_blank
from connectors.files.front_matter import NO_HEADER, FrontMatter
from connectors.files.options import BINARY, FileOptions
from pipeline.documents import Problem
from pipeline.errors import ConfigurationError, IndexingError, SourceDenied, SourceUnavailable

SPECIAL = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip
_by_id = attrgetter("external_id")
Signature = tuple[str, str, int, int, int, int]
"""Relative and real path, times of modification and status change in nanoseconds, size, inode."""


@dataclass(frozen=True, kw_only=True)
class FoundFile:
    """A regular file that matches the globs."""

    external_id: str
    """Path below the root with slashes, in Unicode form NFC; bytes that are no UTF-8 are escaped."""
    relative: str
    """Path below the root as the file system spells it."""
    path: str
    """Path of the real file, also if it was found through a link."""
    status: os.stat_result
    patterns: tuple[int, ...]
    """Indices of the include patterns that match."""

    def signature(self, status: os.stat_result | None = None) -> Signature:
        """Value that differs after an edit, replacement, renaming or change of rights; `status` is a newer one."""
        s = status or self.status
        return (self.relative, self.path, s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino)


class Skipped(Problem):
    """An item left out on purpose."""


@dataclass(frozen=True, kw_only=True)
class FileListing:
    """Result of one walk."""

    root: str
    files: tuple[FoundFile, ...]
    """Sorted by external id, each real file once."""
    failed: tuple[Problem, ...]
    present: frozenset[str]
    """External ids of matching entries that exist, but cannot be read as files."""
    complete: bool
    """False if a folder could not be listed, so that a missing file may still exist."""

    @property
    def stamp(self) -> str:
        """Hash that differs after a file was added, removed, renamed, edited or replaced; reads no content."""
        signatures = [f.signature() for f in self.files]
        troubles = sorted(p.external_id for p in self.failed)
        return hashlib.sha256(repr((signatures, troubles, self.complete)).encode()).hexdigest()


def list_files(options: FileOptions, globs: Globs) -> FileListing:
    """List the matching files, by a walk over the folders that may hold them.

    Raises:
        SourceUnavailable: the root is not there.
        SourceDenied: the root may not be listed.
        ConfigurationError: the root is not a folder, or is the excluded one.
    """
    root = os.path.realpath(options.root)
    closed = os.path.realpath(options.excluded_folder) if options.excluded_folder else ""
    try:
        mode = os.stat(root).st_mode  # noqa: PTH116
    except OSError as error:
        raise _root_error(root, error) from error
    subject = f"the root {root} of source {options.name} is"
    if not stat.S_ISDIR(mode):
        raise ConfigurationError(f"{subject} not a folder", fix="correct root")
    if root == closed:
        fix = "correct root, or move the data folder with storage.data"
        raise ConfigurationError(f"{subject} the data folder of Larder, which holds passwords", fix=fix)
    if _below(root, closed):
        closed = ""  # a root inside of it is configured on purpose
    return _Walk(root, globs, closed).listing()


class _Walk:
    def __init__(self, root: str, globs: Globs, closed: str) -> None:
        self._root = root
        self._globs = globs
        self._closed = closed
        self._files: dict[str, FoundFile] = {}
        self._real_paths: set[str] = set()
        self._links: list[tuple[str, str]] = []
        self._followed: set[str] = set()
        self._failed: list[Problem] = []
        self._present: set[str] = set()
        self._complete = True

    def listing(self) -> FileListing:
        """Walk all folders, links last, so that a file's own path wins over links to it."""
        self._descend("", self._root)
        while self._links:
            links, self._links = sorted(self._links), []
            for relative, path in links:
                self._follow(relative, path)
        for index, pattern in enumerate(self._globs.include):
            if not any(index in file.patterns for file in self._files.values()):
                self._explain_absence(pattern)
        return FileListing(
            root=self._root,
            files=tuple(sorted(self._files.values(), key=_by_id)),
            failed=tuple(sorted(self._failed, key=_by_id)),
            present=frozenset(self._present),
            complete=self._complete,
        )

    def _descend(self, relative: str, path: str) -> None:
        folders = [(relative, path)]
        while folders:
            folder, path = folders.pop()
            for entry in self._entries(folder, path):
                relative = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    self._look_at(relative, entry, folders)
                except FileNotFoundError:
                    continue  # gone since the folder was listed
                except OSError as error:
                    self._fail(relative, f"cannot be inspected: {error.strerror}", present=True)

    def _look_at(self, relative: str, entry: os.DirEntry[str], folders: list[tuple[str, str]]) -> None:
        """Take a matching file; collect links for later, and folders to walk in `folders`."""
        real_relative = entry.path[len(self._root) :].lstrip("/")
        if real_relative != relative and self._globs.excludes(real_relative):
            return  # excluded at its real path, reached by a link
        if entry.is_symlink():
            if self._globs.included(relative) or self._globs.may_hold(relative):
                self._links.append((relative, entry.path))
        elif entry.is_dir(follow_symlinks=False):
            if entry.path != self._closed and self._globs.may_hold(relative):
                folders.append((relative, entry.path))
        elif patterns := self._globs.included(relative):
            self._take(relative, entry.path, entry.stat(follow_symlinks=False), patterns)

    def _entries(self, relative: str, path: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(path) as entries:
                return sorted(entries, key=attrgetter("name"))
        except OSError as error:
            if not relative:
                raise _root_error(self._root, error) from error
            if not isinstance(error, FileNotFoundError | NotADirectoryError):  # else it was removed meanwhile
                reason = f"is a folder that cannot be listed: {error.strerror}; let the worker's user read it"
                self._fail(relative, reason)
                self._complete = False
        return []

    def _take(self, relative: str, path: str, status: os.stat_result, patterns: tuple[int, ...]) -> None:
        name = external_id(relative)
        if not stat.S_ISREG(status.st_mode):
            special = SPECIAL.get(stat.S_IFMT(status.st_mode), "no regular file")
            self._fail(relative, f"is {special}, not a file; move it away or exclude it", present=True)
        elif path in self._real_paths:
            return
        elif name in self._files:
            self._fail(relative, "has the name of another file, spelt in another Unicode form; rename one")
        else:
            self._real_paths.add(path)
            self._files[name] = FoundFile(
                external_id=name,
                relative=relative,
                path=path,
                status=status,
                patterns=patterns,
            )

    def _follow(self, relative: str, link: str) -> None:
        patterns = self._globs.included(relative)
        included = bool(patterns)
        try:
            real = os.path.realpath(link, strict=True)
            status = os.stat(real)  # noqa: PTH116 (strings throughout the walk: Path objects double its time)
        except OSError as error:
            reason = f"is a link whose target cannot be reached: {error.strerror}; mend or remove it"
            self._fail(relative, reason, present=included)
            # The target may be a folder of files on a disk that is not mounted at the moment.
            self._complete &= included
            return
        folder = stat.S_ISDIR(status.st_mode)
        if _below(real, self._closed) or not (self._globs.may_hold(relative) if folder else included):
            return
        if not _below(real, self._root):
            reason = "is a link that leads outside the source's root; copy the target below the root"
            self._fail(relative, reason, present=True)
        elif self._globs.excludes(real[len(self._root) :].lstrip("/")):
            return  # a link does not include an excluded file
        elif not folder:
            self._take(relative, real, status, patterns)
        # A link to a folder above itself would be followed for ever, and leads to no new file.
        elif not _below(os.path.dirname(link), real) and real not in self._followed:  # noqa: PTH120
            self._followed.add(real)
            self._descend(relative, real)

    def _explain_absence(self, pattern: Pattern) -> None:
        """Record why a pattern matches nothing, if the user can do something about it."""
        relative = "/".join(pattern.segments)
        path = f"{self._root}/{relative}"
        if pattern.fixed and not self._globs.excludes(relative):
            if not os.path.lexists(path):
                self._fail(relative, "is not there; create it or take it out of paths")
            elif os.path.isdir(path):  # noqa: PTH112
                self._fail(relative, f"is a folder; write a glob such as ./{relative}/**/*.md")
        elif not pattern.fixed and pattern.prefix and not os.path.lexists(f"{self._root}/{pattern.prefix}"):
            effect = f"no file of {pattern.text} is read, and none is deleted"
            reason = f"there is no folder {pattern.prefix}; {effect}"
            self._failed.append(Problem(external_id=pattern.prefix, reason=reason))
            self._complete = False

    def _fail(self, relative: str, reason: str, *, present: bool = False) -> None:
        """Record a problem; `present` if the entry exists, but is no readable file."""
        name = external_id(relative)
        self._failed.append(Problem(external_id=name, reason=f"{name} {reason}"))
        if present:
            self._present.add(name)


def external_id(relative: str) -> str:
    """External id of a relative path: in Unicode form NFC, bytes that are no UTF-8 escaped."""
    text = os.fsencode(relative).decode("utf-8", "backslashreplace")
    return unicodedata.normalize("NFC", text)


def _root_error(root: str, error: OSError) -> IndexingError:
    if isinstance(error, PermissionError):
        fix = "give the worker's user the right to read it"
        return SourceDenied(f"the root {root} may not be listed", fix=fix, cause=error)
    message = f"the root {root} cannot be listed: {error.strerror}"
    return SourceUnavailable(message, fix="mount it or correct the path", cause=error)


def _below(path: str, root: str) -> bool:
    """True if the path is the root or below it; False if `root` is empty."""
    return bool(root) and f"{path}/".startswith(root.rstrip("/") + "/")


# One file ------------------------------------------------------------------------------------------

TINY_BYTES = 64
ROUGH_SECONDS = 2.0
"""Resolution of file times: a further edit of a file written so recently may leave time and size unchanged."""


@dataclass(frozen=True, kw_only=True)
class FileText:
    """A file that was read."""

    external_id: str
    relative: str
    url: str
    text: str
    """Text with line ends `\\n`, without a byte order mark; of a PDF or DOCX its bytes, one character each."""
    linked_path: str = ""
    """Real path below the root, if the file was found through a link; else empty."""
    encoding: str
    """Encoding, declared or detected; `utf-8` for a PDF or DOCX."""
    modified: datetime | None
    signature: Signature | None = None
    """Signature when the file was opened; None if a later edit might not change it."""
    header: FrontMatter = NO_HEADER
    """Header of the file, once it is parsed and taken out of the text."""


def read_file(file: FoundFile, root: str, options: FileOptions) -> FileText | Problem | None:
    """The file as text, the problem with it, or None if it is gone."""
    url, opened_at = options.url_of(file.relative), time.time()
    try:
        data, status = _read(file, root, options.max_bytes)
        if status.st_size > options.max_bytes:
            too_large = f"has {status.st_size} bytes, the limit is {options.max_bytes}"
            reason = f"{file.external_id} {too_large}; raise maxBytes or split the file"
            return Skipped(
                external_id=file.external_id, reason=reason, url=url, because="larger than maxBytes"
            )
        binary = file.external_id.lower().endswith(BINARY)
        text, encoding = (data.decode("latin-1"), "utf-8") if binary else decode(data)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, Unreadable) as error:
        return Problem(external_id=file.external_id, reason=_reason(file, error), url=url)
    if is_blank(text):
        return blank(file.external_id, url)
    real_relative = file.path[len(root) :].lstrip("/")
    return FileText(
        external_id=file.external_id,
        relative=file.relative,
        url=url,
        text=text,
        linked_path="" if real_relative == file.relative else external_id(real_relative),
        encoding=encoding,
        modified=from_epoch(status.st_mtime),
        signature=file.signature(status) if _is_settled(status, opened_at) else None,
    )


def _is_settled(status: os.stat_result, opened_at: float) -> bool:
    """True if any edit after `looked_at` must change the file's times."""
    return max(status.st_mtime, status.st_ctime) < opened_at - ROUGH_SECONDS


def blank(external_id: str, url: str) -> Skipped:
    """The problem of a file without text."""
    reason = f"{external_id} holds no text, so no search can find it"
    return Skipped(external_id=external_id, reason=reason, url=url, because="holds no text")


def holds_nothing(file: FoundFile, root: str) -> bool:
    """True if the file is empty or blank, so that a document stored earlier has no text any more.

    Only tiny files are opened, so that a walk for ids stays cheap.
    """
    if file.status.st_size > TINY_BYTES:
        return False
    try:
        data, _ = _read(file, root, TINY_BYTES)
        return is_blank(decode(data)[0])
    except (OSError, Unreadable):
        return False


def is_file_below(root: Path, path: str) -> bool:
    """True if the path is a file; False for invalid names too."""
    return os.path.isfile(f"{root}/{path}")  # noqa: PTH113 (a text may have a thousand links)


def open_problem(file: FoundFile, root: str) -> str:
    """Reason why the file cannot be opened; empty if it can."""
    try:
        _read(file, root, 0)
    except FileNotFoundError:
        return ""
    except (OSError, Unreadable) as error:
        return _reason(file, error)
    return ""


def _read(file: FoundFile, root: str, limit: int) -> tuple[bytes, os.stat_result]:
    """Bytes of a file, empty if more than `limit`, and its status; it may have been replaced since it was listed."""
    # Without O_NONBLOCK, a pipe put in the file's place would block for ever.
    handle = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("is not a regular file any more; move it away or exclude it")
        replaced = (status.st_dev, status.st_ino) != (file.status.st_dev, file.status.st_ino)
        if replaced and not _below(os.path.realpath(file.path), root):
            raise Unreadable("lies outside the source's root since a folder became a link")
        return stream.read(status.st_size if status.st_size <= limit else 0), status


def _reason(file: FoundFile, error: OSError | Unreadable) -> str:
    if isinstance(error, Unreadable):
        return f"{file.external_id} {error}"
    if error.errno == errno.ELOOP:
        return f"{file.external_id} became a link while it was read; the next sync reads it again"
    return f"{file.external_id} cannot be read: {error.strerror}; let the worker's user read it"
