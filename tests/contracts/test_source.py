"""What every Source must do, run for each of them over a world of its own."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from connectors import SOURCES, open_source
from connectors.azure_devops import source as azure_devops
from connectors.files import source as files
from connectors.files import walk
from pipeline.documents import Document, Kind, Page, Source, SourceType
from pipeline.errors import LarderError
from tests.connectors.azure_devops.world import azure_world
from tests.connectors.confluence.world import confluence_world
from tests.connectors.folders import file_options
from tests.connectors.rest.world import github_world, jira_world, tickets_world
from tests.connectors.worlds import Clock, SourceStore

AT_ONCE = 20
"""Documents of a page and rows of a service's answer in these worlds, so that a few items come in several."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A populated foreign system: how to open it, and how it changes under our hands."""

    source: Callable[[], Source]
    """Opens it anew, as another process would."""
    edit: Callable[[str], str]
    """Gives one item a text with this word; its external id comes back."""
    remove: Callable[[], str]
    """Takes one item away; its external id comes back."""
    add: Callable[[], str]
    spoil: Callable[[], tuple[str, str]]
    """Makes one item fail whenever it is read; its external id, and the one it is reported by, come back."""
    destroy: Callable[[], None]
    """Makes the whole system unreachable."""
    items: int
    """How many it begins with."""


Made = Callable[[Path, int, ExitStack], World]
"""Makes a world below a folder whose walk has so many pages."""


def _some(pages: int) -> int:
    """So many that they come in this number of pages, the last of them a short one."""
    return (pages - 1) * AT_ONCE + 10


def _file_world(root: Path, pages: int, kind: str, suffix: str, content: Callable[[int, str], str]) -> World:
    """A folder with one item per file."""
    names = [f"area-{n % 7}/item-{n:03d}{suffix}" for n in range(_some(pages))]
    for n, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content(n, "first"))

    def edit(word: str) -> str:
        (root / names[11]).write_text(content(11, word))
        return names[11]

    def remove() -> str:
        (root / names[5]).unlink()
        return names[5]

    def add() -> str:
        (root / f"zz-new{suffix}").write_text(content(999, "new"))
        return f"zz-new{suffix}"

    def spoil() -> tuple[str, str]:
        (root / names[7]).write_bytes(b'{"\x00\x01\x02')
        return names[7], names[7]

    options = file_options(name="world", type=kind, root=root, paths=(f"./**/*{suffix}",))
    return World(
        source=lambda: open_source(options),
        edit=edit,
        remove=remove,
        add=add,
        spoil=spoil,
        destroy=lambda: shutil.rmtree(root),
        items=len(names),
    )


def _pbi_world(root: Path, pages: int) -> World:
    """Runs with ten PBIs per file."""
    items = _some(pages)

    def pbi(n: int, word: str) -> dict[str, object]:
        return {"id": f"PBI-{n:03d}", "title": f"Story {n}", "description": f"Text {word} of {n}"}

    def write(run: int, items: list[dict[str, object]]) -> None:
        folder = root / f"run-2025-01-{run + 1:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "final-output.json").write_text(json.dumps({"pbis": items}))

    for run in range(items // 10):
        write(run, [pbi(n, "first") for n in range(run * 10, run * 10 + 10)])

    def edit(word: str) -> str:
        write(0, [pbi(n, word if n == 3 else "first") for n in range(10)])
        return "PBI-003"

    def remove() -> str:
        write(1, [pbi(n, "first") for n in range(10, 19)])
        return "PBI-019"

    def add() -> str:
        write(29, [pbi(999, "new")])
        return "PBI-999"

    def spoil() -> tuple[str, str]:
        write(1, [pbi(n, "first") for n in range(10, 20) if n != 17])
        (root / "run-2025-01-02/pbi-017.json").write_text(json.dumps(pbi(17, "half"))[:-5])
        return "PBI-017", "run-2025-01-02/pbi-017.json"

    options = file_options(name="world", type="pbi_json", root=root, paths=("./run-*/*.json",))
    return World(
        source=lambda: open_source(options),
        edit=edit,
        remove=remove,
        add=add,
        spoil=spoil,
        destroy=lambda: shutil.rmtree(root),
        items=items,
    )


def _markdown(n: int, word: str) -> str:
    return (
        f"---\ntitle: Item {n}\ntags: [a, b{n % 3}]\ndate: 2024-02-03\n---\n\n# Head\n\nText {word} of {n}.\n"
    )


def _text(n: int, word: str) -> str:
    return f"Item {n}\n\nText {word} of {n}.\n"


def _json(n: int, word: str) -> str:
    return json.dumps({"title": f"Item {n}", "body": {"text": f"Text {word} of {n}", "ratio": n / 3}})


def _served(made: Callable[[int], AbstractContextManager[Any]]) -> Made:
    """The world of a service, as its own tests populate it; its server lives as long as the stack."""

    def enter(_root: Path, pages: int, stack: ExitStack) -> World:
        theirs = stack.enter_context(made(_some(pages)))
        return World(**{f.name: getattr(theirs, f.name) for f in fields(World)})

    return enter


WORLDS: dict[str, Made] = {
    "markdown": lambda root, pages, _: _file_world(root, pages, "markdown", ".md", _markdown),
    "text": lambda root, pages, _: _file_world(root, pages, "text", ".txt", _text),
    "json": lambda root, pages, _: _file_world(root, pages, "json", ".json", _json),
    "pbi_json": lambda root, pages, _: _pbi_world(root, pages),
    "confluence, cloud": _served(
        lambda items: confluence_world("cloud", items=items, most_rows=AT_ONCE, page_size=AT_ONCE)
    ),
    "confluence, server below a path": _served(
        lambda items: confluence_world("server-context", items=items, most_rows=AT_ONCE, page_size=AT_ONCE)
    ),
    "azure_devops, services": _served(lambda items: azure_world(items=items)),
    "azure_devops, server": _served(lambda items: azure_world("DefaultCollection", items=items)),
    "rest, cursor": _served(lambda items: tickets_world("cursor", items=items, most=AT_ONCE)),
    "rest, page number": _served(lambda items: tickets_world("number", items=items, most=AT_ONCE)),
    "rest, offset": _served(lambda items: tickets_world("offset", items=items, most=AT_ONCE)),
    "rest, header Link": _served(lambda items: tickets_world("link", items=items, most=AT_ONCE)),
    "rest, address in the body": _served(lambda items: tickets_world("url", items=items, most=AT_ONCE)),
    "rest, jira": _served(lambda items: jira_world(cloud=True, items=items, most=AT_ONCE)),
    "rest, jira_datacenter": _served(lambda items: jira_world(cloud=False, items=items, most=AT_ONCE)),
    "rest, github": _served(lambda items: github_world(items=items, most=AT_ONCE)),
}
"""The type, and which mode of it."""


@pytest.fixture(scope="module", autouse=True)
def settled() -> Iterator[None]:
    """Files of these worlds were written a moment ago, and count as settled all the same; pages are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "ROUGH_SECONDS", 0.0)
        patch.setattr(files, "PAGE_ENTRIES", AT_ONCE)
        patch.setattr(azure_devops, "PAGE_ITEMS", AT_ONCE)
        yield


@pytest.fixture(params=sorted(WORLDS))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """One that a test may change; two pages, so that there is something behind the first."""
    with ExitStack() as stack:
        yield WORLDS[request.param](tmp_path / "world", 2, stack)


@pytest.fixture(scope="module", params=sorted(WORLDS))
def still(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One for all tests that only read; three pages, so that a walk can be broken off twice."""
    with ExitStack() as stack:
        yield WORLDS[request.param](tmp_path_factory.mktemp("still") / "world", 3, stack)


@pytest.fixture(scope="module")
def walked(still: World) -> list[Page]:
    """The pages of its first walk."""
    return list(_walk(still.source()))


def _walk(source: Source) -> Iterator[Page]:
    return source.pages(None)


def _documents(source: Source) -> dict[str, Document]:
    return _of(_walk(source))


def _of(pages: Iterable[Page]) -> dict[str, Document]:
    found = [document for page in pages for document in page.documents]
    assert len({d.external_id for d in found}) == len(found), "an id came twice in one walk"
    return {document.external_id: document for document in found}


@pytest.mark.req("001-015", "001-076")
def test_every_connector_has_a_world() -> None:
    assert {name.partition(",")[0] for name in WORLDS} == set(SOURCES)


@pytest.mark.req("001-009")
def test_documents_are_valid(still: World, walked: list[Page]) -> None:
    documents = _of(walked)

    assert len(documents) == still.items
    for document in documents.values():
        assert document.title.strip()
        assert document.text.strip()
        assert isinstance(document.kind, Kind)
        assert isinstance(document.source_type, SourceType)
        assert json.loads(json.dumps(document.metadata, allow_nan=False)) == document.metadata
        assert document.metadata["source_path"]
        assert all(isinstance(tag, str) and tag for tag in document.tags)
        for moment in (document.created_at, document.updated_at):
            assert moment is not None
            assert moment.utcoffset() is not None


def test_two_walks_find_the_same(still: World, walked: list[Page]) -> None:
    first, second = _of(walked), _documents(still.source())

    assert first == second
    assert list(first) == list(second), "the order changed"
    assert {i: d.content_hash for i, d in first.items()} == {i: d.content_hash for i, d in second.items()}


def test_pages_are_bounded_and_each_has_a_cursor(still: World, walked: list[Page]) -> None:
    source, pages = still.source(), walked

    assert len(pages) >= 3
    assert all(len(page.documents) <= AT_ONCE for page in pages)
    assert all(json.loads(json.dumps(page.cursor)) == page.cursor for page in pages)
    assert all(page.cursor for page in pages[:-1])
    # A source that walks all starts over; any other goes on from where it stopped.
    assert bool(pages[-1].cursor) is not source.walks_all


def test_what_follows_a_finished_walk(still: World, walked: list[Page]) -> None:
    source = still.source()

    again = {d.external_id: d for page in source.pages(walked[-1].cursor) for d in page.documents}

    if source.walks_all:
        assert len(again) == still.items
    else:
        # Windows overlap, so some items may come again, but they are the same and not nearly all.
        assert again.items() <= _of(walked).items()
        assert len(again) < still.items / 2


def test_after_a_finished_walk_only_the_cursor_leads_to_an_edit(world: World) -> None:
    source = world.source()
    end = list(_walk(source))[-1].cursor
    edited = world.edit("thereafter")

    again = {d.external_id: d for page in world.source().pages(end) for d in page.documents}

    assert "thereafter" in again[edited].text


def test_the_end_of_a_quiet_sync_is_its_beginning(still: World, walked: list[Page]) -> None:
    source, end = still.source(), walked[-1].cursor
    if source.walks_all:
        assert end == {}
        return
    later = [page.cursor for page in source.pages(end)] or [end]

    assert [page.cursor for page in source.pages(later[-1])][-1:] in ([], [later[-1]])


def test_read_brings_items_as_they_are_now(world: World) -> None:
    source = world.source()
    wanted = sorted(_documents(source))[5:28]
    edited = world.edit("by name")
    removed = world.remove()

    pages = list(world.source().read(list(dict.fromkeys([*wanted, edited, removed]))))

    documents = {d.external_id: d for page in pages for d in page.documents}
    assert set(documents) == {*wanted, edited} - {removed}
    assert "by name" in documents[edited].text
    assert removed in {i for page in pages for i in page.deleted}
    now = _documents(world.source())
    assert documents == {i: now[i] for i in documents}


def test_the_walk_shows_the_fingerprints_that_documents_carry(world: World) -> None:
    source = world.source()
    documents = _documents(source)
    listing = source.ids()
    if source.walks_all:
        assert not listing.versions
        return

    assert listing.versions == {i: d.fingerprint for i, d in documents.items()}
    edited = world.edit("other")
    after = world.source().ids().versions
    assert {i for i in after if after[i] != listing.versions[i]} == {edited}


def test_what_shows_as_it_is_known_is_left_out_of_a_walk(world: World) -> None:
    source = world.source()
    if not source.walks_all:
        assert source.skip_unchanged({}) is None
        return
    documents, listing = _documents(source), source.ids()
    known = {i: d.fingerprint for i, d in documents.items()}
    again = world.source()
    if again.skip_unchanged(known) is None:
        assert _documents(again).keys() == documents.keys(), "it cannot tell, and brings all"
        return
    assert _documents(again) == {}
    assert again.ids() == listing

    edited, removed = world.edit("other"), world.remove()
    again = world.source()
    assert again.skip_unchanged(known) == len(documents) - 2
    assert _documents(again).keys() == {edited}
    assert again.ids().ids == listing.ids - {removed}
    assert again.stamp() == world.source().stamp()


def test_a_walk_broken_off_after_any_page_loses_nothing(still: World, walked: list[Page]) -> None:
    for kept in range(1, 3):
        pages = list(itertools.islice(_walk(still.source()), kept))
        cursor = json.loads(json.dumps(pages[-1].cursor))
        rest = list(still.source().pages(cursor))
        seen = [d.external_id for page in (*pages, *rest) for d in page.documents]
        assert set(seen) == set(_of(walked))
        assert len(rest) < len(walked), "the cursor was not used"


def test_an_item_that_came_while_a_walk_stood_still_is_found(world: World) -> None:
    first = next(iter(_walk(world.source())))
    added = world.add()

    rest = [d.external_id for page in world.source().pages(first.cursor) for d in page.documents]

    assert added in rest


def test_ids_hold_everything_that_pages_bring(still: World, walked: list[Page]) -> None:
    source = still.source()

    listing = source.ids()

    assert listing.complete
    assert listing.ids == set(_of(walked))
    assert source.ids() == listing
    assert still.source().ids() == listing


def test_a_removed_item_is_gone_from_ids(world: World) -> None:
    source = world.source()
    before = source.ids()
    removed = world.remove()

    after = source.ids()

    assert before.ids - after.ids == {removed}
    assert after.ids <= before.ids
    assert after.complete
    assert removed not in _documents(source)


def test_an_edit_changes_one_hash_and_no_id(world: World) -> None:
    source = world.source()
    before = _documents(source)
    edited = world.edit("second")

    after = _documents(source)

    assert set(after) == set(before)
    assert {i for i in before if before[i].content_hash != after[i].content_hash} == {edited}
    assert "second" in after[edited].text


def test_stamp_stands_still_and_moves_with_every_change(world: World) -> None:
    source = world.source()
    if not source.walks_all:
        assert source.stamp() is None, "a service has no stamp that costs only a listing"
        return
    stamps = [source.stamp()]
    assert source.stamp() == stamps[0]
    assert world.source().stamp() == stamps[0]

    world.edit("another, longer word")
    stamps.append(source.stamp())
    world.remove()
    stamps.append(source.stamp())
    world.add()
    stamps.append(source.stamp())

    assert None not in stamps
    assert len(set(stamps)) == 4


def test_check_is_content(still: World) -> None:
    findings = still.source().check()

    assert findings
    for finding in findings:
        assert finding.ok, finding
        assert finding.subject
        assert finding.detail


def test_a_source_out_of_reach_raises_our_errors_and_deletes_nothing(world: World) -> None:
    source = world.source()
    world.destroy()

    attempts: list[Callable[[], object]] = [lambda: list(source.pages(None)), source.ids, source.check]
    if source.walks_all:
        attempts.append(source.stamp)
    for attempt in attempts:
        with pytest.raises(LarderError) as caught:
            attempt()
        assert caught.value.transient
        assert caught.value.fix


def _synced(world: World, store: SourceStore) -> SourceStore:
    """The store after a sync, and those that an error of a batch made necessary."""
    store.sync_until_done(world.source, Clock())
    return store


def test_one_item_that_always_fails_harms_only_itself(world: World) -> None:
    whole = set(_documents(world.source()))
    early = _synced(world, SourceStore())
    item, name = world.spoil()
    others = whole - {item}

    late = _synced(world, SourceStore())

    assert set(late.documents) == others
    assert {p.external_id for p in late.failed} == {name}
    assert all(p.reason for p in late.failed)
    assert late.deleted == []
    edited = world.edit("though another fails")
    for store in (early, late):
        assert "though another fails" in _synced(world, store).documents[edited].text
        assert store.deleted == []
    listing = world.source().ids()
    assert others <= listing.ids
    assert item in listing.ids or not listing.complete, "it would be taken for gone"
    some = sorted({*sorted(others)[:30], item})
    read = SourceStore()
    read.take(world.source().read(some))
    assert set(read.documents) == set(some) - {item}


def test_the_extractor_is_named_and_versioned(still: World) -> None:
    name, _, version = still.source().extractor.rpartition("-")

    assert name
    assert version.isdecimal()


def test_a_walk_leaves_no_file_open(world: World) -> None:
    source = world.source()
    _documents(source)  # a service's connection stays open, and is used again
    source.ids()
    before = len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(2):
        _documents(source)
        source.ids()

    # The fake's own sockets are counted as well, and it may be about to close one.
    slack = 0 if source.walks_all else 2
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + slack
