"""The environment over the file, secrets from files, and nothing secret in any message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.sections import secret_value
from workers.app.search import options_of
from workers.runtime import Addresses, Runtime
from workers.settings import Settings, SettingsError, load
from workers.settings.rendering import effective, show

Loaded = Callable[..., Settings]
Lines = Callable[..., list[str]]

URL = "postgresql://app:hush@db.example:5432/larder"
BROKER = "redis://:hush@mq.example:6379/0"


def test_urls_of_the_environment_win_over_the_file(loaded: Loaded) -> None:
    settings = loaded(
        "rag:\n  storage:\n    database: {url: 'postgresql://file/x', poolSize: 9}\n",
        {
            "LARDER_DATABASE_URL": URL,
            "LARDER_CONTROL_DATABASE_URL": URL + "1",
            "LARDER_ADMIN_DATABASE_URL": URL + "2",
            "LARDER_BROKER_URL": BROKER,
        },
    )
    assert settings.database_url == URL
    assert secret_value(settings.rag.storage.database.control_url) == URL + "1"
    assert secret_value(settings.rag.storage.database.admin_url) == URL + "2"
    assert settings.broker_url == BROKER
    assert settings.rag.storage.database.pool_size == 9


def test_without_urls_the_servers_are_embedded(here: Path) -> None:
    settings = load(None, {})
    assert settings.database_url is None
    assert settings.broker_url is None


@pytest.mark.req("004-011", "001-041", "001-059")
def test_documented_names_override_the_file(loaded: Loaded) -> None:
    settings = loaded(
        "rag:\n  enabled: true\n  tenant: file\n  retrieval: {topK: 3}\n",
        {
            "RAG_ENABLED": "false",
            "RAG_DEFAULT_TOP_K": "7",
            "RAG_MAX_TOP_K": "20",
            "LOG_LEVEL": "DEBUG",
            "EMBEDDING_MODEL": "other",
            "LARDER_TENANT": "acme",
            "LARDER_PROJECT": "42",
        },
    )
    assert settings.rag.enabled is False
    assert (settings.rag.retrieval.top_k, settings.rag.retrieval.max_top_k) == (7, 20)
    assert settings.rag.monitoring.logging.level == "debug"
    assert settings.rag.embedding.model == "other"
    assert (settings.tenant, settings.project) == ("acme", "42")


@pytest.mark.req("004-011")
def test_searches_are_capped_as_the_variable_says(here: Path) -> None:
    options = options_of(Runtime(load(None, {"RAG_MAX_TOP_K": "20"}), Addresses()))
    assert (options.top_k, options.max_top_k) == (5, 20)


def test_an_empty_variable_is_not_set(loaded: Loaded) -> None:
    settings = loaded(
        "rag:\n  tenant: file\n", {"LARDER_TENANT": "", "LARDER_DATABASE_URL": "", "LARDER_CONFIG": ""}
    )
    assert settings.tenant == "file"
    assert settings.database_url is None


def test_a_variable_replaces_a_key_in_snake_case(loaded: Loaded) -> None:
    assert loaded("rag:\n  retrieval:\n    top_k: 3\n", {"RAG_DEFAULT_TOP_K": "9"}).rag.retrieval.top_k == 9


def test_a_wrong_variable_is_named_instead_of_a_line(lines: Lines) -> None:
    assert lines("rag:\n  retrieval:\n    topK: 3\n", {"RAG_DEFAULT_TOP_K": "many"}) == [
        "RAG_DEFAULT_TOP_K: retrieval.topK: found 'many', expected a whole number from 1 to 1000"
    ]


def test_a_variable_does_not_hide_that_its_section_is_wrong(lines: Lines) -> None:
    assert lines("rag:\n  retrieval: 5\n", {"RAG_DEFAULT_TOP_K": "3"}) == [
        "larder.yaml:2: retrieval: found 5, expected a mapping"
    ]


def test_a_secret_comes_from_a_file(here: Path) -> None:
    (here / "url").write_text(URL + "\n")
    (here / "key").write_text("k1")
    settings = load(None, {"LARDER_DATABASE_URL_FILE": "url", "LARDER_EMBEDDING_API_KEY_FILE": "key"})
    assert settings.database_url == URL
    assert settings.rag.embedding.api_key is not None
    assert settings.rag.embedding.api_key.get_secret_value() == "k1"


def test_a_variable_of_the_file_comes_from_a_secret_file_too(loaded: Loaded, here: Path) -> None:
    (here / "key").write_text("k2\r\n")
    rag = loaded("rag:\n  embedding:\n    apiKey: ${MY_KEY}\n", {"MY_KEY_FILE": "key"}).rag
    assert rag.embedding.api_key is not None
    assert rag.embedding.api_key.get_secret_value() == "k2"


def test_the_variable_itself_wins_over_its_file(here: Path) -> None:
    assert load(None, {"LARDER_BROKER_URL": BROKER, "LARDER_BROKER_URL_FILE": "missing"}).broker_url == BROKER


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b"\xff\xfe", "not UTF-8 text")],
)
def test_a_secret_file_that_cannot_be_used_is_named(here: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (here / "secret").write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        load(None, {"LARDER_BROKER_URL_FILE": "secret", "RAG_ENABLED": "no idea"})
    assert [p.at.file for p in caught.value.problems] == ["LARDER_BROKER_URL", "RAG_ENABLED"]
    assert reason in str(caught.value)
    assert "LARDER_BROKER_URL_FILE" in str(caught.value)


class TestSecrets:
    """No message and no printed form holds a password or a key."""

    WRONG = (
        "rag:\n  storage:\n    database:\n      url: 'mysql://u:hush@h/x'\n      adminUrl: [hush]\n"
        "      poolSize: ${PW}\n    broker: {url: 'hush'}\n"
        "  embedding:\n    apiKey: {hush: hush}\n    baseUrl: https://u:hush@example.com\n    model: '${'\n"
        "  tenant: ${PW}\n  timezone: ${PW}\n  flower: {port: 'pre-${PW}'}\n"
    )

    def test_no_secret_in_errors(self, loaded: Loaded) -> None:
        with pytest.raises(SettingsError) as caught:
            loaded(self.WRONG, {"PW": "hush", "LARDER_CONTROL_DATABASE_URL": "hush"})
        seen = [*map(str, caught.value.problems), str(caught.value), repr(caught.value)]
        seen += [repr(p) for p in caught.value.problems]
        assert not [text for text in seen if "hush" in text]
        assert len(caught.value.problems) == 10
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None

    def test_the_value_of_a_variable_is_named_by_its_variable(self, lines: Lines) -> None:
        (line,) = lines("rag:\n  flower:\n    port: ${PW}\n", {"PW": "hush"})
        assert (
            line
            == "larder.yaml:3: flower.port: found the value of ${PW}, expected a whole number from 0 to 65535"
        )

    def test_a_default_from_the_file_may_be_shown(self, lines: Lines) -> None:
        (line,) = lines("rag:\n  flower:\n    port: ${PORT:-high}\n")
        assert "found 'high'" in line

    def test_no_secret_in_printed_settings(self, loaded: Loaded) -> None:
        environ = {
            "LARDER_DATABASE_URL": URL + "?sslpassword=hush&sslmode=require",
            "LARDER_BROKER_URL": BROKER,
            "LARDER_EMBEDDING_API_KEY": "hush",
        }
        settings = loaded("rag:\n  storage: {database: {adminUrl: 'postgresql://o:hush@h/x'}}\n", environ)
        for text in (repr(settings), str(settings.rag), show(settings), str(effective(settings))):
            assert "hush" not in text
            assert "***" in text
        storage = effective(settings)["rag"]["storage"]
        assert (
            storage["database"]["url"]
            == "postgresql://app:***@db.example:5432/larder?sslpassword=***&sslmode=***"
        )
        assert storage["broker"]["url"] == "redis://:***@mq.example:6379/0"
        assert effective(settings)["rag"]["embedding"]["apiKey"] == "***"
