"""Every variable of docs/configuration.md, as such and as a file, and a folder of any name: `larder up` takes them all."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography.fernet import Fernet
from joserfc import jwt
from joserfc.jwk import RSAKey
from pydantic import SecretStr
from pydantic.alias_generators import to_snake

from connectors.sections import secret_value
from tests.conftest import Addresses, Answer, Site
from tests.fakes.openai_server import FakeOpenAI
from workers.local import embedded, supervisor
from workers.settings import load
from workers.settings.environment import CONFIG, OVERRIDES

NAMES = {CONFIG, *(one.name for one in OVERRIDES)}
PLAIN = {
    "LARDER_JWKS_URL": "http://127.0.0.1:9/keys",
    "LARDER_JWKS_FILE": "no-keys.json",
    "LARDER_TENANT": "acme",
    "LARDER_PROJECT": "app",
    "RAG_ENABLED": "false",
    "RAG_DEFAULT_TOP_K": "7",
    "RAG_MAX_TOP_K": "21",
    "LOG_LEVEL": "warning",
    "EMBEDDING_MODEL": "text-embedding-3-large",
    "RAG_EMBEDDING_MODEL": "BAAI/bge-m3",
    "RAG_EMBEDDING_DIMENSIONS": "1024",
    "RAG_RETRIEVAL_K": "4",
    "RAG_SIMILARITY_THRESHOLD": "0.61",
    "RAG_MAX_EXAMPLES": "2",
    "RAG_MIN_STORIES": "3",
    "OPENAI_API_KEY": "key-of-openai-0123456789",
    "GEMINI_API_KEY": "key-of-gemini-0123456789",
    "HF_TOKEN": "key-of-huggingface-012345",
    "RAG_PROVIDER": "faiss",
    "VECTOR_DB_PATH": "vectors",
    "VECTOR_COLLECTION": "shelf",
    "PINECONE_API_KEY": "key-of-pinecone-01234567890",
    "PINECONE_ENV": "eu-west1-gcp",
    "PINECONE_INDEX": "chef",
    "LARDER_JWT_SECRET": "the-secret-of-tokens-of-this-installation",
}
"""Besides the addresses of servers, keys for metadata and folders, which each run makes."""
TWO_NAMES = {"RAG_MIN_STORIES_FOR_RETRIEVAL": "RAG_MIN_STORIES", "LARDER_EMBEDDING_API_KEY": "OPENAI_API_KEY"}
"""Variables of keys that have another one, too: they take turns."""
SECRETS = {"LARDER_ENCRYPTION_KEYS", *(n for n in NAMES if n.endswith(("_API_KEY", "_TOKEN", "_SECRET")))}

CONFIG_OF_PLAIN = """
rag:
  storage: {cloud: {type: pinecone}}
  embedding: {provider: openai, dimensions: 3072, previous: {provider: gemini}}
  stories: {embedding: {provider: huggingface}}
"""
CONFIG_OF_FILES = """
rag:
  storage: {{cloud: {{type: pinecone}}}}
  enabled: false
  embedding: {{provider: openai, baseUrl: '{url}/v1', dimensions: 1536}}
  stories: {{embedding: {{provider: hashing, model: ''}}}}
  auth: {{algorithm: RS256, secret: '${{ANOTHER_SECRET}}'}}
  flower: {{oauth: {{secret: '${{ANOTHER_SECRET}}'}}}}
  queue: {{tickSeconds: 1}}
  monitoring: {{metrics: {{token: '${{METRICS_TOKEN}}'}}}}
  sources:
    - {{name: docs, type: markdown, paths: ['docs/*.md'], autoIndex: false}}
    - {{name: wiki, type: confluence, baseUrl: 'http://127.0.0.1:9', username: me, apiToken: '${{WIKI_TOKEN}}', autoIndex: false}}
"""
HOSTILE = "we'ird \"ü% #$HOME [x]*?\\ ;&|<>{}~=,:é\n$(x) `y`"


def key_of(name: str) -> str:
    return next((one.key for one in OVERRIDES if one.name == name), "file")


def shown(told: Mapping[str, Any], key: str) -> Any:
    """A value of `config show --json`."""
    found: Any = told["rag"]
    for part in key.split("."):
        found = found[part]
    return found


def up(site: Site, env: dict[str, str]) -> tuple[Answer, dict[str, Any]]:
    """What it prints, and its state, once everything has come up."""
    started = site.larder("up", "--detach", "--json", env=env)
    assert started.code == 0, started.err
    return started, started.data


def assert_all_live(site: Site, data: Path) -> None:
    """None of the processes has ended since it was started first."""
    state = json.loads((data / "state.json").read_text())
    ended = {p["name"]: p["failures"] for p in state["processes"] if p["failures"]}
    assert ended == {}, [(data / "logs" / f"{name}.log").read_text()[-1000:] for name in ended]
    assert len(supervisor.running(data)) >= 8


def assert_nothing_told(data: Path, printed: str, *secrets: str) -> None:
    """No secret stands in what was printed, nor in a log."""
    logs = {path.name: path.read_text() for path in (data / "logs").glob("*.log")}
    for secret in secrets:
        assert secret not in printed
        assert [name for name, text in logs.items() if secret in text] == []


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where an installation may be; what it started is stopped at the end."""
    yield tmp_path
    for data in (*tmp_path.glob("*/.larder"), tmp_path / "elsewhere"):
        if data.exists():
            supervisor.shut_down(data)
            shutil.rmtree(data)


def test_each_variable_has_its_effect_and_all_processes_live(
    folder: Path, addresses: Addresses, servers: embedded.Servers, server_folder: Path
) -> None:
    site = Site(folder)
    password = embedded.Credentials.of_folder(server_folder).postgres
    admin = f"postgresql://postgres:{password}@{addresses.admin.partition('@')[2]}"
    valkey = servers.broker_url.removesuffix("/0")
    env = PLAIN | {
        "LARDER_CONFIG": str(site.write("etc/settings.yaml", CONFIG_OF_PLAIN)),
        "LARDER_DATA": "elsewhere",
        "LARDER_DATABASE_URL": addresses.app,
        "LARDER_CONTROL_DATABASE_URL": addresses.control,
        "LARDER_ADMIN_DATABASE_URL": admin,
        "LARDER_BROKER_URL": f"{valkey}/5",
        "LARDER_VALKEY_URL": f"{valkey}/6",
        "LARDER_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
    }
    assert env.keys() | TWO_NAMES.keys() == NAMES, "each variable of the table is here"
    data = folder / "elsewhere"

    started, state = up(site, env)

    told = site.larder("config", "show", "--json", env=env).data
    for name, text in env.items():
        if name.endswith("_URL") and name != "LARDER_JWKS_URL":
            assert shown(told, key_of(name)).rpartition("@")[2] == text.rpartition("@")[2], name
        elif name in SECRETS:
            assert shown(told, key_of(name)) == "***", name
        elif name == "VECTOR_DB_PATH":
            assert shown(told, key_of(name)) == str(folder / text)
        elif name not in {CONFIG, "LARDER_DATA"}:
            assert str(shown(told, key_of(name))).lower() == text.lower(), name
    assert state["configuration"]["file"] == env["LARDER_CONFIG"]
    assert state["configuration"]["storage.data"] == str(data)
    whole = json.loads((data / "state.json").read_text())
    assert [whole[f"{kind}database_url"] for kind in ("", "control_", "admin_")] == [
        addresses.app, addresses.control, admin
    ]  # fmt: skip
    assert whole["jwt_secret"] == env["LARDER_JWT_SECRET"]
    token = site.larder("token", env=env).out.strip()
    headers = {"Authorization": f"Bearer {token}"}
    asked = requests.post(
        f"{state['api_url']}/api/v1/search", json={"text": "tide"}, headers=headers, timeout=30
    )
    assert asked.status_code == 200, asked.text
    assert asked.json()["degradation_level"] == 5, "it is switched off"
    assert '"level": "info"' not in (data / "logs" / "worker-control.log").read_text()
    assert_all_live(site, data)
    passwords = [url.partition("@")[0].rpartition(":")[2] for url in (addresses.app, admin, valkey)]
    assert_nothing_told(data, started.out + started.err, *passwords, *(env[n] for n in SECRETS & env.keys()))
    shut = site.larder("down", env=env)
    assert shut.code == 0, shut.err


def test_each_file_of_a_variable_does_the_same_in_a_folder_of_any_name(folder: Path) -> None:
    site = Site(folder / HOSTILE)
    site.root.mkdir()
    site.prepare()
    site.write("docs/a.md", "# Moorings\n\nA vessel needs two bollards.\n")
    signing = RSAKey.generate_key(2048, {"kid": "r"})
    site.write("keys.json", json.dumps({"keys": [signing.as_dict(private=False)]}))
    with FakeOpenAI(key="the-key-of-this-service-0123456789") as service:
        config = site.write("settings.yaml", CONFIG_OF_FILES.format(url=service.address))
        values = PLAIN | {
            "LARDER_CONFIG": str(config),
            "LARDER_DATA": str(site.data),
            "LARDER_JWKS_FILE": "keys.json",
            "LARDER_EMBEDDING_API_KEY": service.key,
            "LARDER_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
            "RAG_ENABLED": "true",
            "RAG_EMBEDDING_MODEL": "hashing-384",
            "RAG_EMBEDDING_DIMENSIONS": "384",
            "EMBEDDING_MODEL": "text-embedding-3-small",
            "RAG_MIN_STORIES_FOR_RETRIEVAL": "5",
            "LOG_LEVEL": "error",
            "METRICS_TOKEN": "token-of-metrics-0123456789",
            "WIKI_TOKEN": "token-of-wiki-0123456789",
            "ANOTHER_SECRET": "another-secret-of-which-flower-knows-the-half",
        }
        del values["RAG_MIN_STORIES"]
        env: dict[str, str] = {}
        for name, text in values.items():
            site.write(f"secrets/{name}", text + "\n")
            env |= {name: "", f"{name}_FILE": f"secrets/{name}"}
        del env["LARDER_TENANT"]  # one that is empty counts as not set, and so does one that is not there

        started, state = up(site, env)

        told = site.larder("config", "show", "--json", env=env).data
        for name in NAMES & values.keys() - {
            CONFIG,
            "LARDER_DATA",
            "VECTOR_DB_PATH",  # a folder that the configuration shows whole
            "GEMINI_API_KEY",
            "OPENAI_API_KEY",
            "HF_TOKEN",
        }:
            expected = "***" if name in SECRETS else values[name].lower()
            assert str(shown(told, key_of(name))).lower() == expected, name
        indexed = site.larder("index", "docs", "--json", env=env)
        assert indexed.code == 0, indexed.err
        assert indexed.data["runs"][0]["indexed"] == 1
        now = int(time.time())
        claims = {
            "iss": "larder",
            "aud": "larder",
            "sub": "ann",
            "iat": now,
            "exp": now + 600,
            "tenant": "acme",
        }
        claims |= {"projects": ["*"], "permissions": ["read"], "security_level": "internal"}
        headers = {"Authorization": f"Bearer {jwt.encode({'alg': 'RS256', 'kid': 'r'}, claims, signing)}"}
        asked = requests.post(
            f"{state['api_url']}/api/v1/search", json={"text": "bollards"}, headers=headers, timeout=30
        )
        assert "Moorings" in asked.text
        assert "Moorings" in site.larder("search", "bollards", env=env).out
        whole = json.loads((site.data / "state.json").read_text())
        assert_all_live(site, site.data)
        secrets = [
            values[n] for n in (*(SECRETS & values.keys()), "METRICS_TOKEN", "WIKI_TOKEN", "ANOTHER_SECRET")
        ]
        secrets += [
            whole["postgres_password"],
            whole["flower_password"],
            whole["broker_url"].split("@")[0][9:],
        ]
        assert_nothing_told(site.data, started.out + started.err, *secrets)
        assert site.larder("down", env=env).code == 0


@pytest.mark.parametrize("form", ["", "_FILE"])
@pytest.mark.parametrize(
    ("name", "key", "provider"), [one for one in OVERRIDES if one.provider or one.name in TWO_NAMES]
)
def test_of_variables_that_share_a_key_each_has_its_effect(
    tmp_path: Path, form: str, name: str, key: str, provider: str
) -> None:
    section = {"provider": provider or "openai"}
    tree: dict[str, Any] = {"embedding": section if key == "embedding.apiKey" else {"provider": "hashing"}}
    if key == "embedding.previous.apiKey":
        tree["embedding"]["previous"] = section
    if key == "stories.embedding.apiKey":
        tree["stories"] = {"embedding": section}
    (tmp_path / "larder.yaml").write_text(json.dumps({"rag": tree}))
    (tmp_path / "value").write_text("17")
    found: Any = load(tmp_path / "larder.yaml", {name + form: str(tmp_path / "value") if form else "17"}).rag
    for part in key.split("."):
        found = getattr(found, to_snake(part))
    assert (secret_value(found) if isinstance(found, SecretStr) else str(found)) == "17"
