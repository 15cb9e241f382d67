"""larder audit: who searched and changed what, and whether the chain fits."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conftest import Addresses
from tests.ledger import Ledger
from tests.pipeline.stores.corpus import Corpus
from tests.workers.cli.asking import Run, found, id_of

pytestmark = pytest.mark.req("001-116")
ME = f"cli:{getpass.getuser()}"
SECRET = {"LARDER_JWT_SECRET": "a-secret-of-the-tests-of-32-bytes-and-more"}


def entries(run: Run, *args: str) -> list[tuple[str, str, str]]:
    told = found(run("audit", "list", "--json", *args))["entries"]
    return [(one["actor"], one["action"], one["subject"]) for one in told]


def test_what_an_operator_does_is_listed_newest_first(run: Run, corpus: Corpus) -> None:
    question = "kestrel " * 30
    for _ in range(2):
        assert run("search", question).exit_code == 0
    assert run("feedback", "the kestrels", id_of(corpus, "Ovens"), "noise").exit_code == 0
    assert run("doctor").exit_code in (0, 1)
    assert entries(run)[-2:] == [(ME, "rag_search", question[:100])] * 2
    assert entries(run, "--action", "rag_search", "-n", "1") == [(ME, "rag_search", question[:100])]
    assert {action for _, action, _ in entries(run, "--action", "feedback")} == {"feedback.noise"}
    assert entries(run, "--action", "feed") == []
    shown = run("audit", "list")
    assert shown.exit_code == 0
    assert "resultsCount" in shown.stdout
    assert run("audit", "list", "--tenant", "other").stdout == "no entries\n"


def test_a_token_is_noted_with_its_rights_and_without_itself(run: Run, corpus: Corpus) -> None:
    made = found(run("token", "--user", "ann", "--permission", "write", "--json", **SECRET))["token"]
    (entry,) = found(run("audit", "list", "--json"))["entries"]
    assert (entry["action"], entry["subject"]) == ("token", "ann")
    assert entry["detail"]["permissions"] == ["write"]
    assert not any(part in str(entry) for part in made.split("."))
    foreign = run("token", "--tenant", "other", "--json", **SECRET)
    assert "token" in found(foreign)
    assert "there is no tenant other yet" in foreign.stderr
    own = run("token", "--tenant", "acme", **SECRET)
    assert (own.exit_code, own.stderr) == (0, "")
    assert len(entries(run, "--tenant", "other")) == 1, "in the chain of those whom it lets in"


def test_no_token_is_made_that_cannot_be_noted(run: Run, refusing: Callable[[], None]) -> None:
    refusing()
    refused = run("token", **SECRET)
    assert refused.exit_code == 1
    assert "read-only" in refused.stderr
    assert refused.stdout == ""


@pytest.fixture
def refusing(addresses: Addresses, superuser: Callable[[str], psycopg.Connection[Any]]) -> Callable[[], None]:
    """From here on the database takes nothing, as after a failover to a copy."""

    def refuse() -> None:
        with superuser("postgres") as connection:
            connection.execute(f"alter database {addresses.name} set default_transaction_read_only = on")

    return refuse


def test_a_search_that_cannot_be_noted_is_answered_and_the_log_tells(
    run: Run, corpus: Corpus, refusing: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    refusing()
    answer = run("search", "the secret kestrel", "--json")
    assert len(found(answer)["results"]) == 3
    (said,) = [record.getMessage() for record in caplog.records if record.name == "pipeline.ledger.audit"]
    assert said.startswith("1 entry was not written to the audit: ")
    assert "secret" not in said


def test_searches_are_not_noted_where_that_is_switched_off(run: Run, corpus: Corpus) -> None:
    config = Path("larder.yaml")
    config.write_text(config.read_text() + "  security: {audit: false}\n")
    run("search", "kestrel")
    run("feedback", "the kestrels", id_of(corpus, "Ovens"), "noise")
    assert [action for _, action, _ in entries(run)] == ["feedback.noise"]


def test_verify_names_what_is_wrong_and_ends_with_1(run: Run, corpus: Corpus, ledger: Ledger) -> None:
    typo = run("audit", "verify", "--tenant", "acne")
    assert (typo.exit_code, typo.stdout) == (1, "")
    assert "there is no tenant acne" in typo.stderr
    empty = run("audit", "verify")
    assert (empty.exit_code, empty.stdout) == (0, "0 entries, head -\nall fit\n")
    for word in ("kestrel", "otter", "kiln"):
        run("search", word)
    good = found(run("audit", "verify", "--json"))
    assert (good["success"], good["entries"], good["first"], good["problems"]) == (True, 3, 1, [])
    assert ledger.audit.one(seq=3)["hash"] == good["head"]
    run("search", "barn")
    assert run("audit", "verify", "--head", good["head"]).exit_code == 0
    unknown = run("audit", "verify", "--head", "0" * 64)
    assert unknown.exit_code == 1
    assert "no entry has the noted hash" in unknown.stdout
    ledger.audit.set(2, subject="otters")
    bad = run("audit", "verify")
    assert bad.exit_code == 1
    assert "entry 2 was changed" in bad.stdout
    told = run("audit", "verify", "--json")
    assert told.exit_code == 1
    assert '"seq": 2' in told.stdout
    doctor = run("doctor")
    assert "entry 2 was changed" in doctor.stdout
