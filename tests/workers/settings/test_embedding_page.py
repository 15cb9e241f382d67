"""The examples of docs/embedding.md load, and its tables say what the code does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.embedding.known_models import PROVIDER_FACTS
from pipeline.errors import ConfigurationError
from workers.runtime import Addresses, Runtime
from workers.settings import Settings

Loaded = Callable[..., Settings]

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "embedding.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
KEYS = {"GEMINI_API_KEY": "g", "OPENAI_API_KEY": "o", "HF_TOKEN": "h"}


def rows(head: str) -> dict[str, list[str]]:
    """The table below a heading, by its first cell."""
    part = PAGE.partition(head)[2]
    lines = re.findall(
        r"^\| `(\w+)`[^|]*\|(.*)\|$", part[: part.index("\n\n", part.index("|---"))], re.MULTILINE
    )
    return {name: [cell.strip() for cell in rest.split("|")] for name, rest in lines}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: re.sub(r"\W+", "-", e)[15:50])
def test_each_example_is_accepted(loaded: Loaded, example: str) -> None:
    settings = loaded(example, KEYS)
    runtime = Runtime(settings, Addresses())
    provider = settings.rag.embedding.provider
    assert runtime.model
    if PROVIDER_FACTS[provider].remote:
        assert runtime.embedder.dimensions == settings.rag.embedding.dimensions


def test_there_is_an_example_of_each_provider_that_needs_one(loaded: Loaded) -> None:
    shown = {loaded(example, KEYS).rag.embedding.provider for example in EXAMPLES}
    assert shown == set(PROVIDER_FACTS) - {"hashing"}


def test_the_first_table_names_every_provider_with_its_model_and_variable() -> None:
    table = rows("# Embedding")
    assert set(table) == set(PROVIDER_FACTS)
    for name, (_, model, _, key) in table.items():
        facts = PROVIDER_FACTS[name]
        assert model == ("" if name == "hashing" else facts.model)
        assert key.strip("`") == facts.variable


def test_the_limits_are_those_of_the_table() -> None:
    table = rows("## Limits")
    assert set(table) == set(PROVIDER_FACTS) - {"hashing"}
    for name, (most, batch, tokens, _) in table.items():
        facts = PROVIDER_FACTS[name]
        assert (int(most), int(batch)) == (facts.most_texts, facts.batch)
        known = facts.model_facts("")
        assert known is not None
        assert name == "transformers" or str(known.tokens) in tokens


def test_what_an_example_leaves_out_is_missed(loaded: Loaded) -> None:
    """The examples are read for what they say, not for the keys this test has."""
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        loaded(EXAMPLES[0])
