"""The files below a root that match a source's globs, found without opening any of them."""

from __future__ import annotations

import hashlib
import os
import stat
import unicodedata
from dataclasses import dataclass
from operator import attrgetter

from connectors.documents.globs import Globs, Pattern, Place
from connectors.files.options import FileOptions
from pipeline.documents import Problem
from pipeline.errors import ConfigurationError, IndexingError, SourceDenied, SourceUnavailable

SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_by_id = attrgetter("external_id")


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


@dataclass(frozen=True, kw_only=True)
class FileListing:
    """What one walk found."""

    root: str
    files: tuple[FoundFile, ...]
    """Sorted by external id, each real file once."""
    failed: tuple[Problem, ...]
    skipped: tuple[Problem, ...]
    present: frozenset[str]
    """External ids of things that match and are there, although they cannot be read as files."""
    complete: bool
    """False if a folder could not be listed: what is not here may be there all the same."""

    @property
    def stamp(self) -> str:
        """Differs when a file was added, removed, renamed, edited or replaced; no content is read."""
        seen = [(f.external_id, f.status.st_mtime_ns, f.status.st_size, f.status.st_ino) for f in self.files]
        troubles = sorted(p.external_id for p in (*self.failed, *self.skipped))
        return hashlib.sha256(repr((seen, troubles, self.complete)).encode()).hexdigest()


class FileTree:
    """The root and the globs of one source.

    Raises:
        ConfigurationError: a glob is empty, absolute, or climbs out of the root.
    """

    def __init__(self, options: FileOptions) -> None:
        self._options = options
        self.globs = Globs(options.paths, options.exclude)

    def listing(self) -> FileListing:
        """Walks the folders that can hold a match.

        Raises:
            SourceUnavailable: the root is not there.
            SourceDenied: the root may not be listed.
            ConfigurationError: the root is not a folder, or the one that is closed.
        """
        return _Walk(_real_root(self._options), self.globs, _closed(self._options)).listing()


@dataclass(frozen=True, kw_only=True)
class _Item:
    path: str
    relative: str
    place: Place


class _Walk:
    def __init__(self, root: str, globs: Globs, closed: str) -> None:
        self._root = root
        self._globs = globs
        self._closed = closed
        self._files: dict[str, FoundFile] = {}
        self._real_paths: set[str] = set()
        self._links: list[_Item] = []
        self._followed: set[str] = set()
        self._failed: list[Problem] = []
        self._skipped: list[Problem] = []
        self._present: set[str] = set()
        self._complete = True

    def listing(self) -> FileListing:
        """Everything that is no link first, so that a file's own path wins over the links to it."""
        self._descend(_Item(path=self._root, relative="", place=self._globs.root()))
        while self._links:
            links, self._links = sorted(self._links, key=lambda link: link.relative), []
            for link in links:
                self._follow(link)
        for index, pattern in enumerate(self._globs.include):
            if not any(index in file.patterns for file in self._files.values()):
                self._explain_absence(pattern)
        return FileListing(
            root=self._root,
            files=tuple(sorted(self._files.values(), key=_by_id)),
            failed=tuple(sorted(self._failed, key=_by_id)),
            skipped=tuple(sorted(self._skipped, key=_by_id)),
            present=frozenset(self._present),
            complete=self._complete,
        )

    def _descend(self, start: _Item) -> None:
        folders = [start]
        while folders:
            folder = folders.pop()
            for entry in self._entries(folder):
                try:
                    self._visit(entry, folder, folders)
                except FileNotFoundError:
                    continue  # gone since the folder was listed
                except OSError as error:
                    reason = f"cannot be looked at: {error.strerror}"
                    self._fail(_join(folder, entry.name), reason, present=True)

    def _entries(self, folder: _Item) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder.path) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if not folder.relative:
                raise _root_error(self._root, error) from error
            if not isinstance(error, FileNotFoundError | NotADirectoryError):  # else it is gone meanwhile
                reason = f"is a folder that cannot be listed: {error.strerror}; let the worker's user read it"
                self._fail(folder.relative, reason)
                self._complete = False
        return []

    def _visit(self, entry: os.DirEntry[str], folder: _Item, folders: list[_Item]) -> None:
        place = self._globs.step(folder.place, entry.name)
        if not (place.wanted or place.may_hold):
            return
        item = _Item(path=entry.path, relative=_join(folder, entry.name), place=place)
        if entry.is_symlink():
            self._links.append(item)
        elif entry.is_dir(follow_symlinks=False):
            if place.may_hold and item.path != self._closed:
                folders.append(item)
        elif place.wanted:
            self._take(item, entry.stat(follow_symlinks=False))

    def _take(self, item: _Item, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            special = SPECIAL.get(stat.S_IFMT(status.st_mode), "something else")
            self._fail(item.relative, f"is {special}, not a file; move it away or exclude it", present=True)
            return
        name = external_id(item.relative)
        if item.path in self._real_paths:
            return
        if name in self._files:
            reason = "has the name of another file, spelt in another Unicode form; rename one"
            self._fail(item.relative, reason)
            return
        self._real_paths.add(item.path)
        self._files[name] = FoundFile(
            external_id=name,
            relative=item.relative,
            path=item.path,
            status=status,
            patterns=item.place.included,
        )

    def _follow(self, link: _Item) -> None:
        try:
            real = os.path.realpath(link.path, strict=True)
            status = os.stat(real)  # noqa: PTH116 (strings throughout the walk: Path objects double its time)
        except OSError as error:
            self._lost_link(link, error)
            return
        if self._closed and _below(real, self._closed):
            return
        target = _Item(path=real, relative=link.relative, place=link.place)
        if stat.S_ISDIR(status.st_mode):
            self._follow_folder(link, target)
        elif not link.place.wanted:
            return
        elif self._inside(real, link):
            self._take(target, status)

    def _follow_folder(self, link: _Item, target: _Item) -> None:
        if not link.place.may_hold or not self._inside(target.path, link):
            return
        # A link to a folder it lies in would lead round for ever, and to nothing new.
        cycle = _below(os.path.dirname(link.path), target.path)  # noqa: PTH120
        if not cycle and target.path not in self._followed:
            self._followed.add(target.path)
            self._descend(target)

    def _inside(self, real: str, link: _Item) -> bool:
        if _below(real, self._root):
            return True
        reason = "is a link that leads outside the source's root; copy the target below the root"
        self._fail(link.relative, reason, present=True)
        return False

    def _lost_link(self, link: _Item, error: OSError) -> None:
        reason = f"is a link whose target cannot be reached: {error.strerror}; mend or remove it"
        self._fail(link.relative, reason, present=link.place.wanted)
        # What it led to may have been a folder of files, on a disk that is not there at the moment.
        self._complete = self._complete and link.place.wanted

    def _explain_absence(self, pattern: Pattern) -> None:
        """Says why nothing matches, where a person can do something about it."""
        relative = "/".join(pattern.parts)
        path = f"{self._root}/{relative}"
        if pattern.fixed and not self._globs.place_of(relative).excluded:
            if not os.path.lexists(path):
                self._fail(relative, "is not there; create it or take it out of paths")
            elif os.path.isdir(path):  # noqa: PTH112
                self._fail(relative, f"is a folder; write a glob such as ./{relative}/**/*.md")
        elif not pattern.fixed and pattern.prefix and not os.path.lexists(f"{self._root}/{pattern.prefix}"):
            nothing = f"nothing of {pattern.text} is read, and nothing deleted"
            reason = f"there is no folder {pattern.prefix}; {nothing}"
            self._skipped.append(Problem(external_id=pattern.prefix, reason=reason))
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


def _real_root(options: FileOptions) -> str:
    root = os.path.realpath(options.root)
    try:
        mode = os.stat(root).st_mode  # noqa: PTH116
    except OSError as error:
        raise _root_error(root, error) from error
    found = f"the root {root} of source {options.name} is"
    if not stat.S_ISDIR(mode):
        raise ConfigurationError(f"{found} not a folder", fix="correct root")
    if root == _closed(options):
        fix = "correct root, or move the data folder with storage.data"
        raise ConfigurationError(f"{found} the data folder of Larder, which holds passwords", fix=fix)
    return root


def _closed(options: FileOptions) -> str:
    """The real path of the folder that is never read, empty without one; a root inside of it was meant."""
    if options.closed is None:
        return ""
    root, closed = os.path.realpath(options.root), os.path.realpath(options.closed)
    return "" if root != closed and _below(root, closed) else closed


def _root_error(root: str, error: OSError) -> IndexingError:
    if isinstance(error, PermissionError):
        fix = "give the worker's user the right to read it"
        return SourceDenied(f"the root {root} may not be listed", fix=fix, cause=error)
    found = f"the root {root} cannot be listed: {error.strerror}"
    return SourceUnavailable(found, fix="mount it or correct the path", cause=error)


def _join(folder: _Item, name: str) -> str:
    return f"{folder.relative}/{name}" if folder.relative else name


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
