"""The files below a root that match a source's globs: found without opening any of them, then read one by one."""

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
"""Two spellings of the path, times of edit and of change, size and inode."""


@dataclass(frozen=True, kw_only=True)
class FoundFile:
    """A regular file that matches."""

    external_id: str
    """Path below the root with slashes, in Unicode form NFC; bytes that are no UTF-8 are escaped."""
    relative: str
    """The same path as the file system spells it."""
    path: str
    """Where to open it: the real file, also if it was found through a link."""
    status: os.stat_result
    patterns: tuple[int, ...]
    """Indices of the include patterns that match."""

    def signature(self, status: os.stat_result | None = None) -> Signature:
        """Differs when the file was edited, replaced, renamed or given other rights; `status` is a newer one of it."""
        s = status or self.status
        return (self.relative, self.path, s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino)


class Skipped(Problem):
    """An item left out on purpose."""


@dataclass(frozen=True, kw_only=True)
class FileListing:
    """What one walk found."""

    root: str
    files: tuple[FoundFile, ...]
    """Sorted by external id, each real file once."""
    failed: tuple[Problem, ...]
    present: frozenset[str]
    """External ids of things that match and are there, although they cannot be read as files."""
    complete: bool
    """False if a folder could not be listed: what is not here may be there all the same."""

    @property
    def stamp(self) -> str:
        """Differs when a file was added, removed, renamed, edited or replaced; no content is read."""
        seen = [f.signature() for f in self.files]
        troubles = sorted(p.external_id for p in self.failed)
        return hashlib.sha256(repr((seen, troubles, self.complete)).encode()).hexdigest()


def list_files(options: FileOptions, globs: Globs) -> FileListing:
    """Walks the folders that can hold a match.

    Raises:
        SourceUnavailable: the root is not there.
        SourceDenied: the root may not be listed.
        ConfigurationError: the root is not a folder, or the one that is closed.
    """
    root = os.path.realpath(options.root)
    closed = os.path.realpath(options.excluded_folder) if options.excluded_folder else ""
    try:
        mode = os.stat(root).st_mode  # noqa: PTH116
    except OSError as error:
        raise _root_error(root, error) from error
    found = f"the root {root} of source {options.name} is"
    if not stat.S_ISDIR(mode):
        raise ConfigurationError(f"{found} not a folder", fix="correct root")
    if root == closed:
        fix = "correct root, or move the data folder with storage.data"
        raise ConfigurationError(f"{found} the data folder of Larder, which holds passwords", fix=fix)
    if _below(root, closed):
        closed = ""  # a root inside of it was meant
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
        """Everything that is no link first, so that a file's own path wins over the links to it."""
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
                    self._fail(relative, f"cannot be looked at: {error.strerror}", present=True)

    def _look_at(self, relative: str, entry: os.DirEntry[str], folders: list[tuple[str, str]]) -> None:
        """Takes a file that matches; puts off links, and adds to `folders`."""
        own = entry.path[len(self._root) :].lstrip("/")
        if own != relative and self._globs.excludes(own):
            return  # reached by a link to a folder above
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
            if not isinstance(error, FileNotFoundError | NotADirectoryError):  # else it is gone meanwhile
                reason = f"is a folder that cannot be listed: {error.strerror}; let the worker's user read it"
                self._fail(relative, reason)
                self._complete = False
        return []

    def _take(self, relative: str, path: str, status: os.stat_result, patterns: tuple[int, ...]) -> None:
        name = external_id(relative)
        if not stat.S_ISREG(status.st_mode):
            special = SPECIAL.get(stat.S_IFMT(status.st_mode), "something else")
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
        wanted = bool(patterns)
        try:
            real = os.path.realpath(link, strict=True)
            status = os.stat(real)  # noqa: PTH116 (strings throughout the walk: Path objects double its time)
        except OSError as error:
            reason = f"is a link whose target cannot be reached: {error.strerror}; mend or remove it"
            self._fail(relative, reason, present=wanted)
            # What it led to may have been a folder of files, on a disk that is not there at the moment.
            self._complete &= wanted
            return
        folder = stat.S_ISDIR(status.st_mode)
        if _below(real, self._closed) or not (self._globs.may_hold(relative) if folder else wanted):
            return
        if not _below(real, self._root):
            reason = "is a link that leads outside the source's root; copy the target below the root"
            self._fail(relative, reason, present=True)
        elif self._globs.excludes(real[len(self._root) :].lstrip("/")):
            return  # a link gives no way to what is excluded
        elif not folder:
            self._take(relative, real, status, patterns)
        # A link to a folder it lies in would lead round for ever, and to nothing new.
        elif not _below(os.path.dirname(link), real) and real not in self._followed:  # noqa: PTH120
            self._followed.add(real)
            self._descend(relative, real)

    def _explain_absence(self, pattern: Pattern) -> None:
        """Says why nothing matches, where a person can do something about it."""
        relative = "/".join(pattern.segments)
        path = f"{self._root}/{relative}"
        if pattern.fixed and not self._globs.excludes(relative):
            if not os.path.lexists(path):
                self._fail(relative, "is not there; create it or take it out of paths")
            elif os.path.isdir(path):  # noqa: PTH112
                self._fail(relative, f"is a folder; write a glob such as ./{relative}/**/*.md")
        elif not pattern.fixed and pattern.prefix and not os.path.lexists(f"{self._root}/{pattern.prefix}"):
            nothing = f"nothing of {pattern.text} is read, and nothing deleted"
            reason = f"there is no folder {pattern.prefix}; {nothing}"
            self._failed.append(Problem(external_id=pattern.prefix, reason=reason))
            self._complete = False

    def _fail(self, relative: str, reason: str, *, present: bool = False) -> None:
        """Records a problem; `present` if the thing is there, though it is no file to read."""
        name = external_id(relative)
        self._failed.append(Problem(external_id=name, reason=f"{name} {reason}"))
        if present:
            self._present.add(name)


def external_id(relative: str) -> str:
    """The stable, storable name of a relative path."""
    text = os.fsencode(relative).decode("utf-8", "backslashreplace")
    return unicodedata.normalize("NFC", text)


def _root_error(root: str, error: OSError) -> IndexingError:
    if isinstance(error, PermissionError):
        fix = "give the worker's user the right to read it"
        return SourceDenied(f"the root {root} may not be listed", fix=fix, cause=error)
    found = f"the root {root} cannot be listed: {error.strerror}"
    return SourceUnavailable(found, fix="mount it or correct the path", cause=error)


def _below(path: str, root: str) -> bool:
    """True if the path is the root or lies in it; False without a root."""
    return bool(root) and f"{path}/".startswith(root.rstrip("/") + "/")


# One file ------------------------------------------------------------------------------------------

TINY_BYTES = 64
ROUGH_SECONDS = 2.0
"""How roughly file systems tell times: in a file written so short a time ago, another edit may leave time and size."""


@dataclass(frozen=True, kw_only=True)
class FileText:
    """A file that was read."""

    external_id: str
    relative: str
    url: str
    text: str
    """Line ends are `\\n`, a byte order mark is gone; of a PDF or DOCX its bytes, one character each."""
    linked_path: str = ""
    """Where the file itself lies below the root, if it was found through a link; else empty."""
    encoding: str
    """`utf-8` unless the file says or shows otherwise."""
    modified: datetime | None
    signature: Signature | None = None
    """That of the file when it was opened; None if it may have changed since without another one."""
    header: FrontMatter = NO_HEADER
    """What stood above the text, which is taken out of it once it is read."""


def read_file(file: FoundFile, root: str, options: FileOptions) -> FileText | Problem | None:
    """The file as text, a problem that says why not, or None if it is not there any more."""
    url, looked_at = options.url_of(file.relative), time.time()
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
    own = file.path[len(root) :].lstrip("/")
    return FileText(
        external_id=file.external_id,
        relative=file.relative,
        url=url,
        text=text,
        linked_path="" if own == file.relative else external_id(own),
        encoding=encoding,
        modified=from_epoch(status.st_mtime),
        signature=file.signature(status) if _is_settled(status, looked_at) else None,
    )


def _is_settled(status: os.stat_result, looked_at: float) -> bool:
    """True if whatever was written since the file was looked at must have given it another time."""
    return max(status.st_mtime, status.st_ctime) < looked_at - ROUGH_SECONDS


def blank(external_id: str, url: str) -> Skipped:
    """What is said of a file without text."""
    reason = f"{external_id} holds no text; nothing of it can be found"
    return Skipped(external_id=external_id, reason=reason, url=url, because="holds no text")


def holds_nothing(file: FoundFile, root: str) -> bool:
    """True if the file is empty or a few blanks, so that a document made of it earlier has no text any more.

    Only tiny files are opened: a walk for ids must cost no more than a look at each file.
    """
    if file.status.st_size > TINY_BYTES:
        return False
    try:
        data, _ = _read(file, root, TINY_BYTES)
        return is_blank(decode(data)[0])
    except (OSError, Unreadable):
        return False


def is_file_below(root: Path, path: str) -> bool:
    """True if a file is there; also False for impossible names."""
    return os.path.isfile(f"{root}/{path}")  # noqa: PTH113 (a text may have a thousand links)


def open_problem(file: FoundFile, root: str) -> str:
    """Why the file cannot be opened; empty if it can."""
    try:
        _read(file, root, 0)
    except FileNotFoundError:
        return ""
    except (OSError, Unreadable) as error:
        return _reason(file, error)
    return ""


def _read(file: FoundFile, root: str, limit: int) -> tuple[bytes, os.stat_result]:
    """The bytes, unless they are more than `limit`; the file may have been replaced since it was found."""
    # Without O_NONBLOCK a pipe put in the file's place would hold us for ever.
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
        return f"{file.external_id} became a link while it was read; it is looked at again next time"
    return f"{file.external_id} cannot be read: {error.strerror}; let the worker's user read it"
