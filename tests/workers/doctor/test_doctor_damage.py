"""The doctor: a healthy store gives nothing to complain about, and each kind of damage is found and mended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Copy
from tests.workers.doctor.installation import SQL, Store, beat, opened
from workers.app.doctor import doctor
from workers.local import embedded


def test_a_healthy_store_gives_nothing_to_complain_about(store: Store) -> None:
    findings = store.examine()
    assert {name: f for name, f in findings.items() if f["status"] != "ok" and name != "disk"} == {}
    assert [f["check"] for f in findings.values()] == [c.name for c in doctor.CHECKS]
    assert all(f["fix"] == "" and f["repaired"] is False for n, f in findings.items() if n != "disk")


def test_an_empty_store_is_healthy_too(
    tmp_path: Path, copy_of: Copy, pristine: str, servers: embedded.Servers
) -> None:
    with copy_of(pristine) as nothing, opened(tmp_path, nothing, servers) as parts:
        empty = Store(parts, tmp_path)
        empty.write("one.md")
        beat(parts)
        bad = {name for name, f in empty.examine().items() if f["status"] != "ok"}
        assert bad <= {"disk"}


def test_repair_of_a_healthy_store_changes_nothing(store: Store, omniscient: SQL) -> None:
    def everything() -> dict[str, Any]:
        tables = omniscient.execute("""
            select relname from pg_class where relnamespace = 'public'::regnamespace
            and relkind in ('r', 'p') and not relispartition""").fetchall()
        return {
            t: omniscient.execute(
                f"select md5(string_agg(x::text, '' order by x::text)) from {t} x"
            ).fetchone()
            for (t,) in tables
        }

    before = everything()
    assert not any(f["repaired"] for f in store.examine(repair=True).values())
    assert everything() == before


# What is planted, by the check that must find it; each can be mended at once.
PLANTED = {
    "orphaned chunks": "update document set deleted = true, state = 'done' where external_id like '%tide.md'",
    "staged chunks": """
        insert into chunk_stage (document_id, tenant_id, version, ord, content, context, hash)
        select id, tenant_id, 1, 0, 'x', '', '\\x00' from document""",
    "old texts": """
        insert into document_body (document_id, tenant_id, version, body) select id, tenant_id, 0, 'x' from document""",
}


@pytest.mark.parametrize("check", PLANTED)
def test_planted_damage_is_found_and_mended(check: str, store: Store, omniscient: SQL) -> None:
    omniscient.execute(PLANTED[check])
    store.mend(check)


def test_chunks_whose_document_is_gone_are_removed_and_no_others(store: Store, omniscient: SQL) -> None:
    row = omniscient.execute("select count(*) from chunk").fetchone()
    assert row is not None
    omniscient.execute("delete from document where external_id like '%tide.md'")
    found = store.mend("orphaned chunks")
    left = omniscient.execute(
        "select count(*), count(d.id) from chunk c left join document d on d.id = c.document_id"
    )
    counted = left.fetchone()
    assert counted is not None
    assert counted[0] == counted[1] > 0
    assert found["detail"].startswith(f"{row[0] - counted[0]} chunks")


DAMAGE = {
    "lost": "delete from chunk where ord = 0",
    "all lost": "delete from chunk",
    "doubled": """
        insert into chunk select index_id, tenant_id, project_id, document_id, ord + 100, version, content, context,
        hash, lexemes, length, embedding from chunk where ord = 0""",
    "moved": "update chunk set ord = 100 where ord = 0",
    "stale": "update chunk set version = 0",
    "mixed": "update chunk set version = 0 where ord = 1",
    "without a vector": "update chunk set embedding = null where ord = 1",
    "from a later version": "update chunk set version = 9 where ord = 1",
    "never indexed in the wanted version": "update document set desired_version = 5",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_documents_without_exactly_their_chunks_are_indexed_again(
    kind: str, store: Store, omniscient: SQL
) -> None:
    # Versions of bodies follow, so that only the chunks are wrong.
    omniscient.execute(DAMAGE[kind])
    omniscient.execute(
        "update document_body b set version = d.desired_version from document d where d.id = b.document_id"
    )
    before = contents(omniscient)
    found = store.mend("document chunks")
    assert found["status"] == "error"
    assert "3 documents" in found["detail"]
    store.work()
    after = contents(omniscient)
    assert store.examine()["document chunks"]["status"] == "ok"
    assert {name: len(texts) for name, texts in after.items()} == dict(counts(omniscient))
    assert all(len(set(texts)) == len(texts) > 1 for texts in after.values())
    assert set(after) >= set(before)
    states = omniscient.execute(
        "select distinct state, indexed_version = desired_version from document"
    ).fetchall()
    assert states == [("done", True)]


def contents(omniscient: SQL) -> dict[str, list[str]]:
    """Texts of the chunks by document."""
    rows = omniscient.execute(
        "select d.external_id, array_agg(c.content order by c.ord) from document d join chunk c on c.document_id = d.id group by 1"
    )
    return dict(rows.fetchall())


def counts(omniscient: SQL) -> list[tuple[str, int]]:
    return omniscient.execute("select external_id, chunk_count from document").fetchall()


def test_only_the_damaged_document_is_indexed_again(store: Store, omniscient: SQL) -> None:
    omniscient.execute(
        "delete from chunk where ord = 0 and document_id = (select id from document where external_id like '%crane.md')"
    )
    store.mend("document chunks")
    rows = omniscient.execute("select external_id from document where state = 'pending'").fetchall()
    assert len(rows) == 1
    assert rows[0][0].endswith("crane.md")


def test_without_the_text_a_damaged_document_cannot_be_mended(store: Store, omniscient: SQL) -> None:
    omniscient.execute("delete from chunk where ord = 0")
    omniscient.execute("delete from document_body")
    found = store.examine(repair=True)["document chunks"]
    assert (found["status"], found["repaired"]) == ("error", False)
    assert "larder index --force" in found["fix"]
    assert not doctor.report(doctor.examine(store.parts))["ok"]


def test_documents_of_another_tenant_are_looked_at_too(store: Store, omniscient: SQL) -> None:
    omniscient.execute("insert into tenant (id, name) values (gen_random_uuid(), 'other')")
    omniscient.execute(
        "update chunk set tenant_id = (select id from tenant where name = 'other') where ord = 0"
    )
    findings = store.examine()
    assert findings["orphaned chunks"]["status"] == "error"
    assert findings["document chunks"]["status"] == "error"
    assert "berth.md" in findings["document chunks"]["detail"]


def test_a_document_not_yet_in_the_new_index_is_judged_by_the_old_one(store: Store, omniscient: SQL) -> None:
    omniscient.execute("""
        insert into search_index (provider, model, dimensions, chunker, pipeline_version, status)
        values ('hashing', 'hashing-8', 8, 'structure', 'x', 'building')""")
    assert store.examine()["document chunks"]["status"] == "ok"


def test_without_an_active_index_the_owner_is_told_how_to_have_one(store: Store, omniscient: SQL) -> None:
    omniscient.execute("update search_index set status = 'building'")
    found = store.examine(repair=True)["search index"]
    assert (found["status"], found["repaired"]) == ("error", False)
    omniscient.execute(found["fix"].removeprefix("as the owner: "))
    assert store.examine()["search index"]["status"] == "ok"


def test_no_finding_shows_a_text(store: Store, omniscient: SQL) -> None:
    omniscient.execute("delete from chunk where ord = 0")
    said = str(store.examine(repair=True))
    assert "document chunks" in said
    assert "quay" not in said
