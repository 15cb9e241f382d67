"""What a person reads at the end of `larder index`."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from pipeline.documents import Json
from workers.cli.index import _COLUMNS, summary


def screen(*errors: Json, sources: tuple[str, ...] = ("docs", "more"), **counts: int) -> str:
    """The summary of one run in a terminal of eighty columns."""
    run = {
        **dict.fromkeys((c for counted in _COLUMNS.values() for c in counted), 0),
        "texts_cut": 0,
        "noted": 0,
        **counts,
    }
    stats = {"documents_processed": 1, "vectors_indexed": 3, "time_elapsed": 0.5, "errors": errors}
    result: Json = {"stats": stats, "runs": [{"source": name, **run} for name in sources]}
    out = StringIO()
    for part in summary(result):
        Console(file=out, width=80).print(part, markup=False)
    return out.getvalue()


def test_texts_that_the_model_had_to_cut_are_a_warning_with_their_number() -> None:
    assert "cut 4 texts are longer than the model reads" in screen(texts_embedded=3, texts_cut=2)
    assert "longer" not in screen(texts_embedded=3)


def test_what_failed_is_named_an_item_or_the_source_as_a_whole() -> None:
    whole = {"source": "docs", "item": "", "reason": "no such folder", "outcome": "failed"}
    shown = screen(whole, {**whole, "item": "a.md", "reason": "not [b]UTF-8[/]"})
    assert "failed docs: no such folder" in shown
    assert "failed docs: a.md: not [b]UTF-8[/]" in shown


def test_what_was_read_in_part_is_counted_and_named() -> None:
    one = {"source": "docs", "item": "a.md", "reason": "header not valid YAML at line 5", "outcome": "noted"}
    shown = screen(one, sources=("docs",), noted=1)
    assert "noted 1 document was read in part" in shown
    assert "noted docs: a.md: header not valid YAML at line 5" in shown
    assert "read in part" not in screen()
