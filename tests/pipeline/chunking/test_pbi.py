"""The strategy for product backlog items: components together, criteria whole."""

from __future__ import annotations

import pytest

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import open_chunker
from pipeline.documents import Chunk, Document, Kind, SourceType

CRITERIA = [f"- Given state {n}, when it is saved, then the audit shows entry {n}" for n in range(8)]


def chunks_of(text: str, *, most: int = 1000, least: int = 100, overlap: int = 50) -> list[Chunk]:
    document = Document(
        external_id="PBI-7", title="Save drafts", text=text, source_type=SourceType.PBI, kind=Kind.WORK
    )
    options = ChunkingOptions(strategy="pbi_aware", min_size=least, max_size=most, overlap=overlap)
    return open_chunker(options).chunk(document)


def item(description: str = "As an author I keep drafts.", *fields: str) -> str:
    criteria = "\n".join(CRITERIA)
    parts = [
        "# Save drafts",
        f"## Description\n\n{description}",
        f"## Acceptance criteria\n\n{criteria}",
        *fields,
    ]
    return "\n\n".join(parts)


@pytest.mark.req("001-067")
def test_an_item_that_fits_is_one_chunk() -> None:
    text = item("Text.", "## Notes\n\nNone.")
    chunks = chunks_of(text)
    assert [chunk.content for chunk in chunks] == [text]
    assert chunks[0].context == "Save drafts"


def test_an_item_of_exactly_the_limit_is_whole_and_one_less_room_is_not() -> None:
    text = item()
    assert len(chunks_of(text, most=len(text))) == 1
    assert len(chunks_of(text, most=len(text) - 1)) == 2


@pytest.mark.req("001-067")
def test_title_description_and_criteria_stay_together_if_the_rest_does_not_fit() -> None:
    notes, history = "## Technical_notes\n\n" + "note " * 100, "## History\n\n" + "event " * 100
    text = item("Text.", notes.strip(), history.strip())
    chunks = chunks_of(text)
    assert [chunk.content for chunk in chunks] == [item("Text."), notes.strip(), history.strip()]
    assert [chunk.context for chunk in chunks] == [
        "Save drafts > Description, Acceptance criteria",
        "Save drafts > Technical notes",
        "Save drafts > History",
    ]


@pytest.mark.req("001-067")
def test_a_longer_item_is_split_by_fields_with_title_and_field_name() -> None:
    description = "The author writes. The draft is kept. " * 20
    chunks = chunks_of(item(description))
    assert [chunk.context for chunk in chunks] == [
        "Save drafts > Description",
        "Save drafts > Acceptance criteria",
    ]
    assert chunks[0].content.startswith("# Save drafts\n\n## Description\n\nThe author")
    assert chunks[1].content == "## Acceptance criteria\n\n" + "\n".join(CRITERIA)


@pytest.mark.req("001-067")
@pytest.mark.parametrize("most", [90, 150, 250, 400])
def test_criteria_are_never_cut_and_never_repeated(most: int) -> None:
    chunks = chunks_of(item("A description. " * 40), most=most, least=20)
    criteria = [chunk for chunk in chunks if chunk.context.endswith("Acceptance criteria")]
    lines = [line for chunk in criteria for line in chunk.content.split("\n") if line.startswith("-")]
    assert lines == CRITERIA
    assert len(criteria) > 1


def test_a_criterion_keeps_its_own_list_and_code() -> None:
    criteria = [f"- Given {n}\n  - then {'x' * 60}\n\n  ```\n  code {n}\n  ```" for n in range(9)]
    chunks = chunks_of("# Save drafts\n\n## Acceptance criteria\n\n" + "\n".join(criteria), most=300)
    assert len(chunks) > 3
    assert all(any(criterion in chunk.content for chunk in chunks) for criterion in criteria)


def test_a_criterion_that_is_too_long_is_cut_between_words() -> None:
    long = "- " + " ".join(f"word{n}" for n in range(200))
    chunks = chunks_of(f"# Save drafts\n\n## Acceptance criteria\n\n{long}\n- short one", most=300)
    words = {f"word{n}" for n in range(200)}
    seen = {word for chunk in chunks for word in chunk.content.split() if word.startswith("word")}
    assert seen == words
    assert chunks[-1].content.endswith("- short one")


def test_smaller_headings_stay_inside_their_field() -> None:
    text = item("Text. " * 100, "## Notes\n\nintro\n\n### Detail\n\nmore " + "words " * 60)
    chunks = chunks_of(text)
    assert chunks[-1].context == "Save drafts > Notes"
    assert chunks[-1].content.startswith("## Notes\n\nintro\n\n### Detail")


def test_a_title_alone_is_no_chunk() -> None:
    text = "# Save drafts\n\n## Notes\n\n" + "note " * 100 + "\n\n## History\n\n" + "event " * 100
    chunks = chunks_of(text)
    assert [chunk.context for chunk in chunks] == ["Save drafts > Notes", "Save drafts > History"]
    assert chunks[0].content.startswith("# Save drafts\n\n## Notes")


def test_text_without_fields_is_chunked_too() -> None:
    chunks = chunks_of("Plain words. " * 200)
    assert len(chunks) > 2
    assert {chunk.context for chunk in chunks} == {"Save drafts"}
