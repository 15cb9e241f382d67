"""Proposal of sources for the documents of a folder, each document in exactly one of them."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate, chain, count, filterfalse, product
from typing import Any, NamedTuple

from connectors.documents.globs import Globs, exclude_pattern, include_pattern
from connectors.documents.options import DecisionRules
from connectors.files.contents import FolderContents, LeftOut, ending_of, glob_of
from connectors.files.formats import READERS
from connectors.files.options import FORMATS
from connectors.pbi.shapes import holds_pbis, id_of, is_step, pbi_items
from pipeline.documents.plain_text import plain_keys

LEAST_IN_GROUP, MOST_GROUPS, MOST_PLACES, _ALIKE = 5, 8, 8, 3
"""Fewest documents of a folder with a separate source; most such folders; most places of a source, above which the
names of at least `_ALIKE` similar folders become `*`."""
_ALWAYS = (".*", "**/node_modules/**")
"""Patterns excluded from every source, even if nothing matches yet: packages may be installed later."""
_SAMPLE, _MOST_READ = 4, 3000
_HEAD_BYTES, _JSON_BYTES = 3000, 2_000_000
_NUMBERED = re.compile(r"\D{0,15}\d{1,5}[-_. ]")
_TASK_KEYS = frozenset((
    "id", "priority", "assignee", "assignees", "dependencies", "depends_on", "parent", "parent_task_id", "estimate",
    "points", "story_points", "sprint", "milestone", "epic",
))  # fmt: skip
_TEXT_KEYS = ("text", "description", "content", "body", "summary")
_FILLED = re.compile(r"\{%|\{\{|<%|<div id=[\"']?(?:root|app)[\"' >]")
_LEAST_TEXT = 120
"""Fewest characters of a text in JSON that is written for readers."""


@dataclass(frozen=True, kw_only=True)
class ProposedSource:
    """A proposed source with at least one file."""

    section: Mapping[str, Any]
    """Keys of its section, as in the configuration file."""
    endings: Mapping[str, int]
    """Ending -> number of files."""
    purpose: str
    """Description of its documents, for messages."""


class _Place(NamedTuple):
    """Folders that a source reads: those that match `glob`, with all folders below them if `tree`."""

    glob: str
    tree: bool

    def path(self, ending: str) -> str:
        """Pattern of `paths` for an ending."""
        return "/".join(filter(None, (".", self.glob, "**" if self.tree else "", f"*{ending}")))

    def exclude(self, endings: Iterable[str]) -> Iterator[str]:
        """Patterns of `exclude` that leave these folders to this source."""
        yield from [f"./{self.glob}/**"] if self.tree else map(self.path, endings)

    def contains(self, other: _Place) -> bool:
        """True if, by the globs alone, these folders include those of the other place."""
        return self != other and self.tree and other.glob.startswith(f"{self.glob}/")

    def holds(self, folder: str) -> bool:
        """True if the documents directly in this folder are read."""
        if not self.glob:
            return self.tree or not folder
        if self.glob == folder or (self.tree and folder.startswith(f"{self.glob}/")):
            return True
        if not any(mark in self.glob for mark in "*?["):
            return False
        pattern = include_pattern(f"./{self.glob}")
        return any(map(pattern.matches, _upwards(folder) if self.tree else (folder,)))


def _upwards(folder: str) -> list[str]:
    """The folder and all folders above it, the top one first."""
    return list(accumulate(folder.split("/"), "{}/{}".format)) if folder else []


class Survey:
    """Proposes sources for the files of a folder, each file in exactly one of them.

    Args:
        contents: listing of the folder; files that the survey leaves out are added to it.
        rules: rules that make a document a decision.
    """

    def __init__(self, contents: FolderContents, rules: DecisionRules) -> None:
        self.contents = contents
        self.sources: list[ProposedSource] = []
        self._reads = 0
        self._exclude = [*contents.exclude]
        self._propose_markdown(self._readable(contents.files["markdown"]), rules)
        everywhere = [_Place("", tree=True)]
        self._add("texts", contents.files["text"], everywhere, (), "plain text", source_type="text")
        self._propose_json(contents.files["json"])

    def _propose_markdown(self, files: Mapping[str, Sequence[str]], rules: DecisionRules) -> None:
        decisions = _decision_folders(files, rules)
        work = {f for f, names in files.items() if f not in decisions and self._holds_tasks(f, names)}
        other_folders = [folder for folder in files if folder not in decisions | work]
        decided, worked = _places(decisions, files), _places(work, files)
        before = [*decided, *worked]
        self._add("decisions", files, decided, (), "records of decisions")
        self._add("backlog", files, worked, decided, "work items", kind="work")
        sizes: Counter[str] = Counter()
        for folder in filter(None, other_folders):
            sizes[folder.partition("/")[0]] += len(files[folder])
        groups = [top for top, size in sizes.most_common(MOST_GROUPS) if size >= LEAST_IN_GROUP]
        for top in sorted(groups):
            place = _Place(glob_of(top), tree=True)
            self._add(top, files, [place], before, f"documents below {top}")
            before = [*before, place]
        ungrouped = {folder for folder in other_folders if folder.partition("/")[0] not in groups}
        place = _Place("", tree=ungrouped != {""})
        self._add("documents", files, [place], before, "other documents" if before else "documents")

    def _propose_json(self, files: Mapping[str, Sequence[str]]) -> None:
        """Propose sources for backlog items and for texts; other JSON is left out."""
        chosen: dict[str, list[str]] = {"pbi_json": [], "json": []}
        paths = [_joined(folder, name) for folder, names in files.items() for name in names]
        keyed: list[bool] = []
        for path in paths:
            content = self._parsed(path)
            kind = "pbi_json" if holds_pbis(content) else "json" if _is_text(content) else ""
            if kind:
                chosen[kind].append(path)
                keyed.append(_has_own_ids(kind, content))
            else:
                self._leave_out("JSON without backlog items or texts", path)
        exclude: list[str] = []
        for kind, name, purpose in (
            ("pbi_json", "pipeline_outputs", "backlog items of pipeline runs"),
            ("json", "records", "texts in JSON"),
        ):
            if patterns := _file_patterns(chosen[kind]):
                globs = Globs(patterns, exclude)
                matching = sum(bool(globs.included(path)) for path in paths)
                keys = _identity(kind, keyed)
                self._propose(name, kind, patterns, exclude, {".json": matching}, purpose, **keys)
                exclude = patterns

    def _readable(self, files: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Files by folder, without templates and formats whose library is not installed."""
        lacking = {end for end, form in FORMATS.items() if (lib := READERS[form][0]) and not find_spec(lib)}
        readable: dict[str, list[str]] = defaultdict(list)
        for folder, names in files.items():
            templates = {name: ending_of(name) for name in names if self._is_template(_joined(folder, name))}
            for name in names:
                ending = ending_of(name)
                if ending in lacking:
                    self._leave_out(f"{ending} needs `pip install larder[office]`", _joined(folder, name))
                elif name not in templates:
                    readable[folder].append(name)
            endings = set(map(ending_of, readable.get(folder, ())))
            below = glob_of(_joined(folder, ""))
            self._exclude += dict.fromkeys(
                f"./{below}{glob_of(name) if end in endings else f'*{end}'}"
                for name, end in templates.items()
            )
        return readable

    def _is_template(self, path: str) -> bool:
        """True for HTML with marks of a template, or that is only the frame of an application."""
        is_html = FORMATS.get(ending_of(path)) == "html"
        is_template = is_html and _FILLED.search(self._beginning(path, _HEAD_BYTES)) is not None
        if is_template:
            self._leave_out("HTML templates that a program fills in", path)
        return is_template

    def _leave_out(self, reason: str, path: str) -> None:
        self.contents.left_out.setdefault(reason, LeftOut()).add(path)

    def _beginning(self, path: str, most: int) -> str:
        """First `most` bytes of a file as text; empty if it cannot be read, or _MOST_READ files were read already."""
        self._reads += 1
        if self._reads <= _MOST_READ:
            with suppress(OSError), (self.contents.root / path).open("rb") as stream:
                return stream.read(most).decode("utf-8", "replace").removeprefix("\ufeff")
        return ""

    def _holds_tasks(self, folder: str, names: Sequence[str]) -> bool:
        """True if at least half of a sample of these files are tasks by their headers."""
        sample = names[:: max(1, len(names) // _SAMPLE)][:_SAMPLE]
        heads = [self._beginning(_joined(folder, name), _HEAD_BYTES) for name in sample]
        return 2 * sum(map(_is_task, heads)) >= len(sample)

    def _parsed(self, path: str) -> Any:
        with suppress(ValueError, RecursionError):
            return json.loads(self._beginning(path, _JSON_BYTES))
        return None

    def _add(
        self,
        name: str,
        files: Mapping[str, Sequence[str]],
        places: Sequence[_Place],
        before: Sequence[_Place],
        purpose: str,
        *,
        source_type: str = "markdown",
        **keys: Any,
    ) -> None:
        """Propose a source of these places, if it has any file; folders that sources `before` it read are excluded."""
        folders = [*filter(_any_holds(places), files)]
        shared = [p for p in before if any(map(p.holds, folders)) and not any(o.contains(p) for o in before)]
        folders = [*filterfalse(_any_holds(shared), folders)]
        endings = Counter(map(ending_of, chain.from_iterable(map(files.__getitem__, folders))))
        paths = [place.path(ending) for place, ending in product(places, endings)]
        exclude = chain.from_iterable(place.exclude(endings) for place in shared)
        # Links to folders that the source reads itself need no pattern: it reads their targets once.
        links = [pattern for pattern, target in self.contents.links.items() if target not in folders]
        if endings:
            self._propose(name, source_type, paths, [*exclude, *links], endings, purpose, **keys)

    def _propose(
        self,
        name: str,
        source_type: str,
        paths: Sequence[str],
        exclude: Sequence[str],
        endings: Mapping[str, int],
        purpose: str,
        **keys: Any,
    ) -> None:
        short = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "folder"
        used_names = {str(source.section["name"]) for source in self.sources}
        unique = next(n for n in chain((short,), (f"{short}-{i}" for i in count(2))) if n not in used_names)
        relevant = [p for p in (*exclude, *_ALWAYS, *self._exclude) if _concerns(p, paths, endings)]
        section = {"name": unique, "type": source_type, **keys, "paths": list(paths)}
        trees = tuple(p.removesuffix("**") for p in relevant if p.startswith("./") and p.endswith("/**"))
        section["exclude"] = list(
            dict.fromkeys(
                p
                for p in relevant
                if not p.removesuffix("**").startswith(trees) or p.removesuffix("**") in trees
            )
        )
        self.sources.append(ProposedSource(section=section, endings=endings, purpose=purpose))


_OWN_ID = re.compile(r"(?!(?:PBI|US|STORY|ITEM|TASK|REQ)-)[A-Z][A-Z0-9]{1,9}-\d+")
"""Lasting ids of a tracker, unlike those of a pipeline, which number the items of one run."""


def _identity(kind: str, keyed: Iterable[bool]) -> dict[str, str]:
    return {"identity": "id"} if kind == "pbi_json" and all(keyed) else {}


def _has_own_ids(kind: str, content: Any) -> bool:
    """Whether each item of a file has a lasting id such as SHOP-12, and the file is not of a pipeline's run."""
    if kind != "pbi_json":
        return True
    ids = [id_of(plain_keys(item.pbi)) for item in pbi_items(content) or () if isinstance(item.pbi, Mapping)]
    return bool(ids) and not is_step(content) and all(map(_OWN_ID.fullmatch, ids))


def _any_holds(places: Sequence[_Place]) -> Callable[[str], bool]:
    """Function that tells whether one of these places reads a folder."""
    return lambda folder: any(place.holds(folder) for place in places)


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _concerns(pattern: str, paths: Sequence[str], endings: Collection[str]) -> bool:
    """True if a pattern of `exclude` may match files of these endings in `paths`."""
    top, below, _ = pattern.removeprefix("./").partition("/") if pattern.startswith("./") else ("*", "", "")
    tops = [path.split("/")[1] for path in paths if not below or "/" in path[2:]]
    may_match = top in tops or _is_wild(top) or any(map(_is_wild, tops))
    return may_match and (pattern.endswith("/**") or ending_of(pattern.removesuffix(".*")) in ("", *endings))


def _is_wild(segment: str) -> bool:
    return any(mark in segment for mark in "*?[")


def _is_task(text: str) -> bool:
    """True if the header of a Markdown file is that of a task."""
    header = text.partition("\n---")[0] if text.startswith("---") else ""
    keys = {key.lower() for key in re.findall(r"^([A-Za-z_]+)\s*:", header, re.MULTILINE)}
    return {"title", "status"} <= keys and not keys.isdisjoint(_TASK_KEYS)


def _is_text(content: Any) -> bool:
    """True if JSON has a title and a text of some length."""
    keys = plain_keys(content) if isinstance(content, Mapping) else {}
    texts = [keys.get(key) for key in _TEXT_KEYS]
    titled = any(isinstance(keys.get(key), str) for key in ("title", "name"))
    return titled and any(isinstance(text, str) and len(text) >= _LEAST_TEXT for text in texts)


def _decision_folders(files: Mapping[str, Sequence[str]], rules: DecisionRules) -> set[str]:
    """Folders in or below one that the rules name and that has numbered files."""
    patterns = [p for p in map(exclude_pattern, rules.paths) if p.folders_only]
    named = {
        folder: top
        for folder in files
        if (top := next((f for f in _upwards(folder) if any(p.matches(f) for p in patterns)), ""))
    }
    numbered = {top for folder, top in named.items() if any(map(_NUMBERED.match, files[folder]))}
    return {folder for folder, top in named.items() if top in numbered}


def _places(chosen: Collection[str], all_folders: Iterable[str]) -> list[_Place]:
    """Places of the chosen folders; a tree where all folders below one are chosen."""
    mixed = {above for folder in all_folders if folder not in chosen for above in _upwards(folder)} | {""}
    trees = [folder for folder in chosen if folder not in mixed]
    tops = [f for f in trees if not any(above in trees for above in _upwards(f)[:-1])]
    places = [_Place(glob_of(f), tree=True) for f in tops]
    places += [_Place(glob_of(f), tree=False) for f in chosen if f in mixed]
    return sorted(places) if len(places) <= MOST_PLACES else _generalized(places)


def _generalized(places: Sequence[_Place]) -> list[_Place]:
    """Fewer places: those that differ in one folder's name only become one with a `*` there."""
    deepest = max(place.glob.count("/") for place in places)
    for at in range(deepest + 1):
        similar: dict[tuple[str, bool], list[_Place]] = defaultdict(list)
        for place in places:
            segments = place.glob.split("/")
            starred = (
                "/".join((*segments[:at], "*", *segments[at + 1 :])) if at < len(segments) else place.glob
            )
            similar[starred, place.tree].append(place)
        places = [
            merged
            for (starred, tree), same in similar.items()
            for merged in ([_Place(starred, tree=tree)] if len(same) >= _ALIKE else same)
        ]
    return sorted(places)


def _file_patterns(paths: Iterable[str]) -> list[str]:
    """Patterns of these files with `*` for the numbers of runs and steps; patterns of folders if there are many."""
    patterns = {"./" + re.sub(r"\d[\d._T:-]*(?=[^/]*[/.])", "*", glob_of(path)) for path in paths}
    if len(patterns) > MOST_PLACES:
        patterns = {f"{pattern.rpartition('/')[0]}/*.json" for pattern in patterns}
    return sorted(patterns)
