"""Every preset, against the recorded shapes of its service in `tests/cases/rest`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml

from connectors.azure_devops.options import AzureDevOpsOptions
from connectors.confluence.options import ConfluenceOptions
from connectors.documents.options import ServiceOptions
from connectors.rest.options import RestOptions
from connectors.rest.presets import preset, preset_names
from tests.connectors.rest.recorded import FOLDER, recorded_source
from tests.source_pages import FOLDER as FOLDER_OF_PAGES
from tests.source_pages import pages
from workers.settings.sources import SOURCE_TYPES

FILES = sorted(FOLDER.glob("*.json"))
PRESETS = {file: str(json.loads(file.read_text("utf-8"))["options"].get("preset")) for file in FILES}


def test_every_preset_has_a_case() -> None:
    assert set(PRESETS.values()) == set(preset_names())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_is_asked_is_what_the_service_answers(file: Path) -> None:
    """No request beyond the recorded ones, and none of these in vain."""
    with recorded_source(file) as (source, fake):
        documents = [d for page in source.pages(None) for d in page.documents]
        listing = source.ids()
        again = [d for page in source.read([documents[0].external_id]) for d in page.documents]
        findings = source.check()

        assert fake.unknown == []
        unused = [answer["to"] for number, answer in enumerate(fake.answers) if number not in fake.used]
        assert unused == []
    assert documents
    assert all(d.text.strip() and d.title.strip() for d in documents)
    has_times = "changed" in preset(PRESETS[file])["source"]
    assert {d.updated_at is not None for d in documents} == {has_times}
    assert listing.ids == {d.external_id for d in documents}
    assert listing.complete
    assert listing.versions == {} or listing.versions == {d.external_id: d.fingerprint for d in documents}
    assert again == documents[:1]
    assert [f for f in findings if not f.ok] == []


@pytest.mark.parametrize("name", preset_names())
def test_no_expression_of_a_preset_is_empty_for_every_record(name: str) -> None:
    documents, empty = 0, Counter[str]()

    def observe(kind: str, text: str) -> None:
        empty.update([text] if kind == "empty" else [])

    for file in (file for file, preset_of in PRESETS.items() if preset_of == name):
        with recorded_source(file, observe) as (source, _):
            documents += sum(len(page.documents) for page in source.pages(None))
    assert {key for key, count in empty.items() if count == documents} == set()


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_says_what_it_reads_and_which_values_it_takes(name: str) -> None:
    content = preset(name)
    assert content["about"]
    texts = {"title", "about", "account", "example", "notes", "page"}
    assert texts | {"values", "source", "extends"} >= content.keys()
    values = content.get("values", {})
    assert content["source"].get("values", {}).keys() <= values.keys()
    RestOptions.model_validate(
        {"name": "x", "preset": name, "values": dict.fromkeys(values, "x"), "baseUrl": "https://x.example"}
    )


def test_each_preset_has_its_page_as_it_is_made() -> None:
    made = pages()
    assert {path.name for path in FOLDER_OF_PAGES.glob("*.md")} == {*made, "rest.md", "files.md"}
    for name, text in made.items():
        assert (FOLDER_OF_PAGES / name).read_text(encoding="utf-8") == text, "python -m tests.source_pages"
    for name in preset_names():
        assert f"`preset: {name}` reads" in made[f"{preset(name).get('page', name)}.md"]


def test_the_example_of_any_service_is_read_as_it_stands() -> None:
    page = (FOLDER_OF_PAGES / "rest.md").read_text(encoding="utf-8")
    (section,) = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    options = SOURCE_TYPES["rest"].model_validate(section)
    assert isinstance(options, RestOptions)
    assert options.hinted_ids({"ticket": {"id": 17}}) == ["17"]
    assert [part.heading for part in options.document.text] == [None, "Resolution"]


@pytest.mark.parametrize(
    ("options", "file"), [(ConfluenceOptions, "confluence.md"), (AzureDevOpsOptions, "azure-devops.md")]
)
def test_pages_of_connectors_have_the_steps_that_the_command_shows(
    options: type[ServiceOptions], file: str
) -> None:
    text = " ".join((FOLDER_OF_PAGES.parent / file).read_text(encoding="utf-8").split())
    assert [step for step in options.hook_steps if step not in text] == []
