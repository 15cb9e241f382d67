"""Which file is read, what paths are relative to, and what is warned about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from connectors import FileOptions
from connectors.web.limiter import LocalRequestLimiter
from workers.settings import Configuration, Settings, SettingsError, from_mapping, load

Loaded = Callable[..., Settings]


def tenant_file(path: Path, tenant: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"rag:\n  tenant: {tenant}\n")
    return path


def test_the_given_file_wins_over_the_variable_over_the_folder_over_defaults(here: Path) -> None:
    assert (load(None, {}).tenant, load(None, {}).path) == ("default", None)
    tenant_file(here / "larder.yaml", "folder")
    other = tenant_file(here / "other" / "b.yaml", "variable")
    given = tenant_file(here / "given" / "c.yaml", "given")
    assert load(None, {}).tenant == "folder"
    assert load(None, {"LARDER_CONFIG": str(other)}).tenant == "variable"
    assert load(given, {"LARDER_CONFIG": str(other)}).tenant == "given"


@pytest.mark.parametrize("environ", [{}, {"LARDER_CONFIG": "nowhere.yaml"}])
def test_a_named_file_that_is_missing_is_an_error(here: Path, environ: dict[str, str]) -> None:
    tenant_file(here / "larder.yaml", "folder")
    with pytest.raises(
        SettingsError, match=r"nowhere\.yaml: found a file that cannot be read \(No such file"
    ):
        load(None if environ else Path("nowhere.yaml"), environ)


def test_paths_are_relative_to_the_file(here: Path) -> None:
    (here / "conf").mkdir()
    (here / "conf" / "larder.yaml").write_text(
        "rag:\n  storage: {data: state}\n"
        "  sources:\n    - {name: a, type: text, paths: x}\n    - {name: b, type: text, paths: x, root: ../docs}\n"
    )
    settings = load(Path("conf/larder.yaml"), {})
    first, second = (s for s in settings.rag.sources if isinstance(s, FileOptions))
    assert settings.path == here / "conf" / "larder.yaml"
    assert settings.folder == here / "conf"
    assert settings.data == here / "conf" / "state"
    assert [
        one.with_context(settings.context_of(one, LocalRequestLimiter)).root.resolve()
        for one in (first, second)
    ] == [
        here / "conf",
        here / "docs",
    ]
    assert settings.resolve(Path("/abs")) == Path("/abs")


def test_the_data_folder_of_the_environment_is_relative_to_the_current_folder(here: Path) -> None:
    file = tenant_file(here / "conf" / "larder.yaml", "a")
    assert load(file, {}).data == here / "conf" / ".larder"
    assert load(file, {"LARDER_DATA": "mine"}).data == here / "mine"
    assert load(None, {}).data == here / ".larder"


@pytest.mark.parametrize(
    "text", ["rag:\n", "rag: {}\n", "\ufeffrag:\n  retrieval:\n  sources:\n", "rag: ~\n"]
)
def test_empty_sections_mean_defaults(loaded: Loaded, text: str) -> None:
    assert loaded(text).rag == Configuration()


def test_both_spellings_of_keys_are_read(loaded: Loaded) -> None:
    rag = loaded(
        "rag:\n  rollout_percentage: 5\n  feature_flags: {rag_enrichment: false}\n  queue: {leaseSeconds: 60}\n"
    ).rag
    assert (rag.rollout_percentage, rag.feature_flags.rag_enrichment, rag.queue.lease_seconds) == (
        5,
        False,
        60,
    )


@pytest.mark.req("001-042", "001-066", "001-067", "001-068")
def test_keys_of_other_tools_are_accepted_unread_and_noted(loaded: Loaded) -> None:
    settings = loaded(
        """\
        rag:
          storage:
            local: {type: chroma, path: "${VECTOR_DB_PATH:-./vector-db}", persist: true}
            cloud: {type: pinecone, apiKey: "${PINECONE_API_KEY}", createIfNotExists: true}
          embedding:
            cache: {enabled: true, path: ./cache/embeddings, maxSize: 1000}
          sources:
            - name: outputs
              type: json
              paths: a.json
              loader: {type: json, schema: {id: string, acceptance_criteria: "string[]"}}
              chunking:
                strategy: pbi_aware
                preserveFields: [title, description, acceptance_criteria]
                chunkByField: false
              metadata:
                extractors: [{field: id, to: pbi_id}, {field: created_at, to: timestamp}]
        """
    )
    assert [note.split(": ")[:3] for note in settings.notes] == [
        ["larder.yaml:6", "embedding.cache.enabled", "not used"],
        ["larder.yaml:6", "embedding.cache.path", "not used"],
        ["larder.yaml:11", "sources[0].loader", "not used"],
        ["larder.yaml:14", "sources[0].chunking.preserveFields", "not used"],
        ["larder.yaml:15", "sources[0].chunking.chunkByField", "not used"],
        ["larder.yaml:17", "sources[0].metadata.extractors", "not used"],
        ["larder.yaml:4", "storage.cloud", "not used"],
    ]
    assert settings.rag.embedding.cache.max_size == 1000


OLD_KEYS = """\
rag:
  embedding: {cache: {enabled: false}, probeSeconds: 9}
  queue: {maxInFlight: 5, upsertRows: 1, maxCrashes: 1}
  enrichment: {generator: extract, maxAttempts: 9}
  retrieval: {buildAt: 1, weights: {covered: 0, centroid: 0, outdated: 1}, rerank: {batchSize: 1}}
  auth: {leeway: 0}
  flower: {maxTasks: 100}
"""


def test_keys_of_earlier_releases_are_noted_and_change_nothing(loaded: Callable[..., Settings]) -> None:
    settings = loaded(OLD_KEYS)
    assert settings.rag == loaded("rag: {}\n").rag
    named = [note.split(": ")[1] for note in settings.notes]
    assert named == [
        *("embedding.cache.enabled", "embedding.probeSeconds"),
        *("queue.maxInFlight", "queue.upsertRows", "queue.maxCrashes"),
        *("enrichment.generator", "enrichment.maxAttempts", "retrieval.buildAt"),
        *("retrieval.weights.covered", "retrieval.weights.centroid", "retrieval.weights.outdated"),
        *("retrieval.rerank.batchSize", "auth.leeway", "flower.maxTasks"),
    ]


def test_a_program_may_give_them_too() -> None:
    settings = from_mapping(
        {
            "queue": {"maxInFlight": 5},
            "sources": [{"name": "x", "type": "text", "paths": ["a"], "loader": "y"}],
        },
        {},
    )
    assert [note.split(": ")[0] for note in settings.notes] == ["queue.maxInFlight", "sources[0].loader"]


def test_settings_cannot_be_changed(here: Path) -> None:
    settings = load(None, {})
    with pytest.raises(AttributeError):
        settings.path = Path()  # type: ignore[misc]
    for section, key in (
        (settings.rag, "enabled"),
        (settings.rag.retrieval, "top_k"),
        (settings.rag.queue, "tick_seconds"),
    ):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(section, key, 1)


def test_loading_imports_no_server_library(here: Path) -> None:
    import subprocess
    import sys

    code = "import sys, workers.settings; print([m for m in ('celery', 'openvino', 'sqlalchemy', 'psycopg') if m in sys.modules])"
    root = Path(__file__).resolve().parents[3]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
