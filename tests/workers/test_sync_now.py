"""Syncing by a command: which files a folder's sources read, and what is said of work that no worker hears of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import StoreUnavailable
from pipeline.ledger import due_work, runs
from tests.fakes.tcp_proxy import TcpProxy
from tests.workers.indexed import Build, write_pages
from workers.app.ingestion import maintenance, pump, steps, sync, sync_now
from workers.app.ingestion.sync import open_source
from workers.app.ingestion.sync_now import sources_of_folder
from workers.runtime import Addresses, Runtime
from workers.settings import load


def read(folder: Path) -> dict[str, list[str]]:
    """Type of source -> the files it finds below `folder`, whose data folder is `.larder`."""
    (folder / "larder.yaml").write_text("rag: {}\n", encoding="utf-8")
    runtime = Runtime(load(folder / "larder.yaml", {}), Addresses())
    return {
        one.settings.type: sorted(open_source(runtime, one.settings).ids().ids)
        for one in sources_of_folder(runtime, folder)
    }


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"text": "kestrel"}', encoding="utf-8")


def test_the_passwords_in_the_data_folder_are_never_read(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "b.json", ".larder/state.json", ".larder/credentials.json")
    assert read(tmp_path) == {"json": ["b.json"], "markdown": ["a.md"]}


def test_what_only_the_data_folder_holds_makes_no_source(tmp_path: Path) -> None:
    write(tmp_path, "a.md", ".larder/state.json")
    assert read(tmp_path) == {"markdown": ["a.md"]}


def test_files_of_other_people_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "a.md", ".venv/lib/licence.md", "web/node_modules/x/readme.md", ".venv/x.json")
    assert read(tmp_path) == {"markdown": ["a.md"]}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at once, and gives up at the second look."""
    monkeypatch.setattr(sync_now, "BROKER_SECONDS", 0.0)
    monkeypatch.setattr(sync_now, "AWAY_SECONDS", 0.0)


def test_a_command_waits_for_what_an_earlier_run_still_has_to_do(build: Build) -> None:
    """Its own walk finds it unchanged, or does not list it again."""
    runtime, looks = build(), []
    (one, *_) = sync_now.configured_sources_named(runtime.settings, [])
    with runtime.database.tenant(one.tenant_id) as connection:
        earlier = runs.open_run(connection, one.tenant_id, one.id, trigger="schedule")
        assert earlier is not None
        runs.finish_walk(connection, earlier)
    opened = sync_now.start(runtime, [one], force=False)

    def close(_: object) -> None:
        looks.append(1)
        with runtime.database.tenant(one.tenant_id) as connection:
            runs.fail(connection, opened[0].run.id if len(looks) == 1 else earlier, "x")

    sync_now.wait(runtime, opened, close)
    assert len(looks) == 3


@pytest.mark.usefixtures("hasty")
def test_its_own_run_is_kept_and_one_that_it_could_not_open_is_to_be_asked_for_again(build: Build) -> None:
    runtime = build()
    with TcpProxy.to(runtime.addresses.broker) as proxy:
        runtime.addresses = replace(runtime.addresses, broker=proxy.url(runtime.addresses.broker))
        proxy.cut()
        every = sync_now.configured_sources_named(runtime.settings, [])
        opened = sync_now.start(runtime, every, force=False)
        with pytest.raises(StoreUnavailable) as own:
            sync_now.wait(runtime, opened, lambda _: None)
        assert "it is kept" in str(own.value.fix)
        attached = sync_now.start(runtime, every, force=False)
        assert [one.run.id for one in attached] == [one.run.id for one in opened], "the run under way"
        with pytest.raises(StoreUnavailable) as other:
            sync_now.wait(runtime, attached, lambda _: None)
        assert "an earlier sync of docs is under way" in str(other.value.fix)
        assert "ask again" in str(other.value.fix)


def test_a_command_shows_the_run_under_way_and_then_runs_its_own(build: Build) -> None:
    """That walk may have passed a file before it was changed."""
    runtime, shown = build(), []
    (one,) = sync_now.configured_sources_named(runtime.settings, [])
    earlier = sync_now.start(runtime, [one], force=False)[0].run.id
    (attached,) = sync_now.start(runtime, [one], force=False)
    assert (attached.is_own, attached.run.id) == (False, earlier)

    def close(_: object) -> None:
        assert attached.current is not None
        shown.append(attached.current.id)
        with runtime.database.tenant(one.tenant_id) as connection:
            if len(shown) == 1:
                runs.finish_walk(connection, earlier)
            else:
                runs.close(connection, [earlier])
                runs.finish_walk(connection, attached.run.id)
                runs.close(connection, [attached.run.id])

    sync_now.wait(runtime, [attached], close)
    assert attached.run.id != earlier
    assert shown[:2] == [earlier, earlier]
    assert shown[-1] == attached.run.id
    (row,) = sync_now.report([attached], 1.0)["runs"]
    assert (row["run"], row["earlier_run"]) == (attached.run.id, earlier)


def test_a_source_read_by_its_schedule_as_well_is_one_row_whose_sums_add_up(build: Build) -> None:
    """The schedule's run has sent its documents; the command's own walk finds one of them done, two under way."""
    runtime = build()
    write_pages(runtime.settings.folder, 3)
    (one,) = sync_now.configured_sources_named(runtime.settings, [])
    scheduled = sync.start_run(runtime, one.tenant_id, one.id, trigger="schedule")
    assert scheduled is not None
    assert sync.sync(runtime, one.tenant_id, one.id, scheduled)
    indexer = steps.indexer(runtime, one.tenant_id)

    def pumped() -> list[due_work.Batch]:
        with runtime.database.control() as connection:
            found = due_work.pump_once(connection, steps.limits(runtime.rag))
        assert found is not None
        return list(found.batches)

    (batch,) = pumped()
    indexer.chunk(batch.tenant_id, batch.items[:1])
    (embedding,) = pumped()
    indexer.embed(embedding.tenant_id, embedding.items)
    (upsert,) = pumped() or [embedding]
    indexer.upsert(upsert.tenant_id, upsert.items)
    (watched,) = sync_now.start(runtime, [one], force=False)
    assert watched.is_own
    assert sync.sync(runtime, one.tenant_id, one.id, watched.run.id)
    assert pumped() == [], "what the schedule's run sent is not sent again"
    indexer.chunk(batch.tenant_id, batch.items[1:])
    (embedding,) = pumped()
    indexer.embed(embedding.tenant_id, embedding.items)
    indexer.upsert(embedding.tenant_id, embedding.items)
    maintenance.refresh_statistics(runtime)
    pump.pump_once(runtime)
    with runtime.database.tenant(one.tenant_id) as connection:
        watched.earlier = runs.get(connection, scheduled)
        watched.run = runs.get(connection, watched.run.id) or watched.run
    assert watched.run.finished_at
    (row,) = sync_now.report([watched], 1.0)["runs"]
    assert (row["listed"], row["indexed"], row["unchanged"], row["failed"]) == (3, 3, 0, 0)
    assert row["listed"] == row["unchanged"] + row["queued"] + row["skipped"] + row["failed"]


@pytest.mark.parametrize("walk", [True, False])
def test_what_a_source_shows_and_yields_not_is_told_by_reason(build: Build, walk: bool) -> None:
    runtime = build()
    (one,) = sync_now.start(runtime, sync_now.configured_sources_named(runtime.settings, []), force=False)
    left_out = {"not open to everybody": 2, "restrictions unreadable": 300}
    one.run = replace(one.run, walk=walk, listed=302, skipped=302, left_out=left_out)
    (told,) = sync_now.report([one], 1.0)["stats"]["errors"]
    said = "302 excluded: restrictions unreadable: 300; not open to everybody: 2"
    assert told["reason"] == ("nothing of it is stored: " if walk else "") + said
    assert (told["item"], told["outcome"]) == ("", "skipped")
