"""The first file, the values in force and the reference: all made from the sections."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from connectors.sections import ConfigSection
from tests.configuration_page import PAGE, reference
from workers.settings import SOURCE_TYPES, Configuration, Settings, load
from workers.settings.diagnosis import inner_section
from workers.settings.environment import OVERRIDES
from workers.settings.rendering import effective, initial_file, meanings, show

Loaded = Callable[..., Settings]


def sections(section: type[ConfigSection]) -> Iterator[type[ConfigSection]]:
    """The section and all below it; every type of source for `sources`."""
    yield section
    for name, field in section.model_fields.items():
        inner = inner_section(field)
        found = set(SOURCE_TYPES.values()) if name == "sources" else {inner} - {None}
        for each in found:
            assert each is not None
            yield from sections(each)


REST = {*sections(SOURCE_TYPES["rest"])} - {SOURCE_TYPES["rest"]}
"""Sections of a source of any service, of which the example has those it needs."""
EVERY = sorted(set(sections(Configuration)), key=lambda s: s.__name__)


@pytest.mark.parametrize("section", EVERY)
def test_every_key_is_described_in_a_sentence(section: type[ConfigSection]) -> None:
    for name in section.model_fields:
        assert re.fullmatch(r"(?s).{5,}\.", meanings(section).get(name, "")), name


@pytest.mark.parametrize("section", EVERY)
def test_every_section_is_frozen_and_closed(section: type[ConfigSection]) -> None:
    assert section.model_config["frozen"] is True
    assert section.model_config["extra"] == ("allow" if "Metadata" in section.__name__ else "forbid")
    assert section.model_config["hide_input_in_errors"] is True


class TestInitialFile:
    """`larder config init`."""

    def test_it_loads_to_the_defaults_with_an_example_of_each_source(self, loaded: Loaded) -> None:
        settings = loaded(initial_file())
        assert settings.notes == ()
        assert settings.rag.model_copy(update={"sources": ()}) == Configuration()
        assert [(s.name, s.type) for s in settings.rag.sources] == [
            ("project_docs", "markdown"),
            ("pipeline_outputs", "pbi_json"),
            ("confluence_kb", "confluence"),
            ("azure_devops", "azure_devops"),
            ("tickets", "rest"),
        ]
        assert [s.enabled for s in settings.rag.sources] == [True, True, False, False, False]

    def test_it_has_every_key(self) -> None:
        text = initial_file()
        for section in {*EVERY} - REST:
            if section.__name__ not in (
                "Extractor",
                "AlertChannel",
                "AlertCondition",
                "PbiMetadata",
                "LevelRule",
                "LocalStoreSettings",
                "CloudStoreSettings",
            ):
                for field in section.model_fields.values():
                    assert re.search(rf"^ +(# |- )?{field.alias}:", text, re.MULTILINE), field.alias

    def test_every_key_follows_its_description(self) -> None:
        text, second, rest = initial_file().partition("    - name: pipeline_outputs")
        assert second
        lines = [*text.splitlines(), *rest.splitlines()[3:]]
        keys = [i for i, line in enumerate(lines) if re.match(r" +(- )?[A-Za-z_]+:", line)]
        assert len(keys) > 90
        assert not [lines[i] for i in keys if not lines[i - 1].lstrip().startswith("# ")]

    def test_keys_without_a_value_can_be_switched_on_as_they_are(self, here: Path) -> None:
        text = re.sub(r"^( +)# ([a-z][A-Za-z]+: [^ ].*)$", _if_yaml, initial_file(), flags=re.MULTILINE)
        environ = {
            "LARDER_DATABASE_URL": "postgresql://h/a",
            "LARDER_CONTROL_DATABASE_URL": "postgresql://h/b",
            "LARDER_ADMIN_DATABASE_URL": "postgresql://h/c",
            "LARDER_BROKER_URL": "redis://h/0",
            "LARDER_VALKEY_URL": "redis://h/1",
            "LARDER_EMBEDDING_API_KEY": "k",
            "LARDER_METRICS_TOKEN": "m",
            "LARDER_TRACING_TOKEN": "t",
            "FLOWER_OAUTH_SECRET": "s",
            "LARDER_JWT_SECRET": "s" * 32,
            "LARDER_ENCRYPTION_KEYS": "k" * 43 + "=",
            "GEMINI_API_KEY": "k",
            "PINECONE_API_KEY": "k",
        }
        (here / "larder.yaml").write_text(text.replace("updateSchedule", "# updateSchedule"))
        settings = load(None, environ)
        assert settings.database_url == "postgresql://h/a"
        assert settings.rag.embedding.base_url == "https://embeddings.example.com/v1"
        assert settings.rag.sources[0].schedule == "0 */6 * * *"

    def test_no_line_is_too_long_to_read(self) -> None:
        assert max(len(line) for line in initial_file().splitlines()) <= 120


def _if_yaml(match: re.Match[str]) -> str:
    keys = {f.alias for section in EVERY for f in section.model_fields.values()}
    return f"{match[1]}{match[2]}" if match[2].split(":")[0] in keys else match[0]


class TestShow:
    """`larder config show`."""

    TEXT = """\
        rag:
          tenant: "$${x}"
          chunking: {strategy: semantic, splitOn: ["\\n"]}
          retrieval: {minSimilarity: 0.4}
          sources:
            - name: items
              type: json
              paths: [a.json]
              maxBytes: 2m
              metadata: {sourceType: pbi, team: {name: x}}
            - {name: docs, type: markdown, paths: [b], indexSchedule: '0 1 * * *', chunking: {maxSize: 300, overlap: 10}}
        """

    def test_what_is_shown_loads_to_the_same(self, loaded: Loaded) -> None:
        settings = loaded(self.TEXT)
        again = loaded(show(settings))
        assert again.rag == settings.rag
        assert show(again) == show(settings)

    def test_it_is_in_the_shape_of_the_file_and_plain_json(self, loaded: Loaded) -> None:
        rag: dict[str, Any] = json.loads(json.dumps(effective(loaded(self.TEXT))))["rag"]
        assert rag["tenant"] == "${x}"
        assert rag["rolloutPercentage"] == 100
        assert rag["chunking"]["maxSize"] == 500
        assert rag["sources"][0]["metadata"]["sourceType"] == "pbi"
        assert rag["sources"][0]["metadata"]["team"] == {"name": "x"}
        assert rag["sources"][0]["maxBytes"] == 2 * 1024 * 1024
        assert rag["sources"][1]["chunking"]["maxSize"] == 300
        assert yaml.safe_load(show(loaded(self.TEXT)).replace("$${", "${")) == {"rag": rag}


class TestReference:
    """`docs/configuration.md`."""

    def test_the_page_is_the_one_made_from_the_sections(self) -> None:
        page = PAGE.read_text(encoding="utf-8")
        assert page == reference(), "write it again: python -m tests.configuration_page"

    def test_every_key_has_a_row(self) -> None:
        page = reference()
        for section in EVERY:
            if section.__name__ not in ("SourceSettings", "FileSource"):
                for field in section.model_fields.values():
                    assert f"\n| `{field.alias}` | " in page, (section.__name__, field.alias)

    def test_every_variable_has_a_row(self) -> None:
        for variable in OVERRIDES:
            assert re.search(rf"\| `{variable.name}` \| [^|\n]*`{re.escape(variable.key)}`", reference())

    def test_every_table_has_the_same_number_of_cells_in_each_row(self) -> None:
        for table in re.findall(r"(?:^\|.*\|\n)+", reference(), re.MULTILINE):
            widths = {len(re.split(r"(?<!\\)\|", line)) for line in table.splitlines()}
            assert len(widths) == 1, table
