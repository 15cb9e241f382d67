"""Sources: their types, their keys and what follows from them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from connectors import SOURCES, FileOptions
from connectors.files.options import MarkdownOptions, PbiOptions, TextOptions
from pipeline.documents import SourceType
from workers.settings import SOURCE_TYPES, Settings, SettingsError, SourceSettings

Loaded = Callable[..., Settings]

DOCUMENTED = """\
rag:
  sources:
    - name: pipeline_outputs
      type: pbi_json
      paths:
        - ./output/run-*/final-output.json
        - ./output/run-*/step-*.json
      watch: true
      autoIndex: true
      indexSchedule: '0 */6 * * *'  # Every 6 hours
      metadata:
        sourceType: pbi
        category: historical
    - name: project_docs
      type: markdown
      paths:
        - ./docs/**/*.md
        - ./README.md
      exclude:
        - '**/node_modules/**'
        - '**/CHANGELOG.md'
        - '**/.git/**'
      frontmatterFields: [title, tags, category]
      metadata:
        sourceType: documentation
        category: reference
"""


@pytest.fixture
def one(loaded: Loaded) -> Callable[[str], SourceSettings]:
    """The source with these further keys."""

    def read(keys: str, kind: str = "markdown") -> SourceSettings:
        return loaded(f"rag:\n  sources:\n    - {{name: a, type: {kind}, paths: x, {keys}}}\n").rag.sources[0]

    return read


@pytest.mark.req("001-030", "001-049", "001-050", "001-065")
def test_the_documented_file_sources(loaded: Loaded) -> None:
    outputs, docs = loaded(DOCUMENTED).rag.sources
    assert isinstance(outputs, PbiOptions)
    assert outputs.paths == ("./output/run-*/final-output.json", "./output/run-*/step-*.json")
    assert (outputs.watch, outputs.auto_index, outputs.schedule) == (True, True, "0 */6 * * *")
    assert outputs.metadata.source_type is SourceType.PBI
    assert outputs.metadata.fixed() == {"category": "historical"}
    assert isinstance(docs, MarkdownOptions)
    assert docs.exclude == ("**/node_modules/**", "**/CHANGELOG.md", "**/.git/**")
    assert docs.frontmatter_fields == ("title", "tags", "category")
    assert docs.metadata.source_type is SourceType.DOCUMENTATION
    assert (docs.watch, docs.schedule) == (False, None)


def test_each_type_opens_its_section(one: Callable[..., SourceSettings]) -> None:
    files = {"markdown": MarkdownOptions, "text": TextOptions, "pbi_json": PbiOptions, "json": PbiOptions}
    for kind, options in files.items():
        assert isinstance(one("enabled: true", kind), options)
    assert set(SOURCE_TYPES) == set(SOURCES)


def test_defaults_of_a_file_source(one: Callable[..., SourceSettings]) -> None:
    source = one("enabled: true")
    assert isinstance(source, FileOptions)
    assert (source.enabled, source.auto_index, source.watch) == (True, True, False)
    assert source.max_bytes == 10 * 1024 * 1024
    assert (source.tenant, source.project, source.timezone, source.chunking, source.base_url) == (None,) * 5
    assert source.metadata.source_type is None
    assert source.metadata.fixed() == {}


@pytest.mark.parametrize(
    ("written", "bytes_"), [("10m", 10_485_760), ("512K", 524_288), ("1gb", 1_073_741_824), ("4096", 4096)]
)
def test_sizes_are_counted_in_powers_of_1024(
    one: Callable[..., FileOptions], written: str, bytes_: int
) -> None:
    assert one(f"maxBytes: {written}").max_bytes == bytes_


def test_paths_may_be_one_text_or_text_with_commas(loaded: Loaded) -> None:
    text = "rag:\n  sources:\n    - {name: a, type: text, paths: notes/*.txt}\n    - {name: b, type: text, paths: 'x, y,'}\n"
    first, second = (s for s in loaded(text).rag.sources if isinstance(s, FileOptions))
    assert (first.paths, second.paths) == (("notes/*.txt",), ("x", "y"))


@pytest.mark.parametrize(
    "cron",
    [
        "* * * * *",
        "0 */6 * * *",
        "0 2 * * mon-fri",
        "0 0 29 2 *",
        "15,45 8-18 1 jan,jul *",
        "0 3 1 1 *",
        "0 0 l * *",
    ],
)
def test_schedules_that_come(one: Callable[..., SourceSettings], cron: str) -> None:
    assert one(f"indexSchedule: '{cron}'").schedule == cron
    assert one(f"updateSchedule: '{cron}'").schedule == cron


@pytest.mark.parametrize(
    "cron",
    [
        "0 0 31 2 *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "61 * * * *",
        "* 24 * * *",
        "* * * *",
        "* * * * * *",
        "@daily",
        "R * * * *",
        "a b c d e",
        "",
    ],
)
@pytest.mark.parametrize("key", ["indexSchedule", "updateSchedule"])
def test_schedules_that_never_come_or_make_no_sense(
    one: Callable[..., SourceSettings], cron: str, key: str
) -> None:
    with pytest.raises(SettingsError, match=rf"larder.yaml:3: sources\[0\]\.{key}: found '"):
        one(f"{key}: '{cron}'")


def test_two_different_schedules_are_one_too_many(one: Callable[..., SourceSettings]) -> None:
    assert one("indexSchedule: '0 1 * * *', updateSchedule: '0 1 * * *'").schedule == "0 1 * * *"
    with pytest.raises(
        SettingsError, match=r"updateSchedule: found '0 2.*the same as indexSchedule; keep one"
    ):
        one("indexSchedule: '0 1 * * *', updateSchedule: '0 2 * * *'")


@pytest.mark.parametrize(
    ("written", "meant"),
    [("markdown", SourceType.DOCUMENTATION), ("azure", SourceType.AZURE_DEVOPS), ("Text", SourceType.TEXT)],
)
def test_source_types_have_aliases(
    one: Callable[..., SourceSettings], written: str, meant: SourceType
) -> None:
    assert one(f"metadata: {{sourceType: {written}}}").metadata.source_type is meant


@pytest.mark.req("001-065")
def test_metadata_takes_keys_of_your_own_as_they_are(one: Callable[..., SourceSettings]) -> None:
    metadata = one(
        "metadata: {category: c, team_name: x, rank: 3, since: 2024-01-02, deep: {a: [1]}}"
    ).metadata
    assert metadata.fixed() == {
        "category": "c",
        "team_name": "x",
        "rank": 3,
        "since": "2024-01-02",
        "deep": {"a": [1]},
    }


@pytest.mark.req("001-067")
def test_chunking_of_a_source(loaded: Loaded) -> None:
    rag = loaded(
        """\
        rag:
          chunking: {strategy: recursive, maxSize: 700, overlap: 70}
          sources:
            - {name: docs, type: markdown, paths: a}
            - {name: items, type: pbi_json, paths: a}
            - {name: own, type: pbi_json, paths: a, chunking: {strategy: fixed}}
        """
    ).rag
    docs, items, own = (rag.chunking_of(source).options() for source in rag.sources)
    assert (docs.strategy, docs.max_size, docs.overlap) == ("recursive", 700, 70)
    assert (items.strategy, items.max_size, items.overlap) == ("pbi_aware", 700, 70)
    assert (own.strategy, own.max_size, own.overlap) == ("fixed", 1000, 200)


def test_a_source_has_tenant_and_project_of_its_own(one: Callable[..., SourceSettings]) -> None:
    source = one("tenant: acme, project: shop, timezone: Europe/Berlin")
    assert (source.tenant, source.project, source.timezone) == ("acme", "shop", "Europe/Berlin")


def test_keys_of_another_type_are_unknown(one: Callable[..., SourceSettings]) -> None:
    with pytest.raises(SettingsError, match="frontmatterFields: found an unknown key"):
        one("frontmatterFields: [title]", "text")


WITHOUT_SCHEDULES = """\
rag:
  enabled: true
  embedding:
    model: all-MiniLM-L6-v2
    dimensions: 384
    batchSize: 32
    device: cpu
  chunking:
    strategy: structure
    maxSize: 1000
    overlap: 200
  retrieval:
    topK: 5
  sources:
    - name: pipeline_outputs
      type: pbi_json
      paths:
        - ./output/run-*/final-output.json
        - ./output/run-*/step-*.json
      watch: false
      autoIndex: false
      indexSchedule: '0 3 1 1 *'
      metadata:
        sourceType: pbi
        category: historical
    - name: notes
      type: text
      paths:
        - ./notes/**/*.txt
      watch: false
      autoIndex: false
      indexSchedule: '0 3 1 1 *'
      metadata:
        sourceType: text
        category: notes
"""


def test_a_file_whose_sources_wait_for_a_person(loaded: Loaded) -> None:
    settings = loaded(WITHOUT_SCHEDULES)
    assert settings.notes == ()
    assert [(s.name, s.auto_index, s.schedule) for s in settings.rag.sources] == [
        ("pipeline_outputs", False, "0 3 1 1 *"),
        ("notes", False, "0 3 1 1 *"),
    ]
    assert [s.metadata.fixed()["category"] for s in settings.rag.sources] == ["historical", "notes"]
