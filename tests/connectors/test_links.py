"""Relative links between Markdown files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connectors.notes import document


class TestLinks:
    @pytest.fixture
    def linked(self, tmp_path: Path) -> Path:
        for name in ("README.md", "docs/other.md", "docs/deep/a b.md", "docs/pic.png"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("# X\n")
        (tmp_path.parent / f"{tmp_path.name}-outside.md").write_text("# Outside\n")
        return tmp_path

    TEXT = (
        '# Me\n\nSee [other](other.md#part "Title"), [top](../README.md?x=1), [root](/docs/other.md),\n'
        "![pic](pic.png), [space](deep/a%20b.md), [angle](<deep/a b.md>), [`code`](other.md)\n"
        "[ref]: ../README.md\n\n"
        "[web](https://e.example/other.md) [mail](mailto:a@b.example) [anchor](#part) [proto](//e.example/x.md)\n"
        "[lost](nowhere.md) [folder](deep) [nul](a%00.md) `[code](other.md)`\n\n```\n[fence](other.md)\n```\n"
    )

    def test_without_a_base_url_the_text_stays_and_the_links_are_listed(self, linked: Path) -> None:
        outside = f"[out](../../{linked.name}-outside.md)"

        found = document(linked, self.TEXT + outside, name="docs/me.md")

        assert found.text == (self.TEXT + outside).strip("\n")
        assert found.metadata["links"] == ["README.md", "docs/deep/a b.md", "docs/other.md", "docs/pic.png"]

    def test_with_a_base_url_they_lead_to_the_linked_documents(self, linked: Path) -> None:
        found = document(linked, self.TEXT, name="docs/me.md", base_url="https://g.example/w")

        assert '[other](https://g.example/w/docs/other.md#part "Title")' in found.text
        assert "[top](https://g.example/w/README.md?x=1)" in found.text
        assert "[root](https://g.example/w/docs/other.md)" in found.text
        assert "![pic](https://g.example/w/docs/pic.png)" in found.text
        assert "[space](https://g.example/w/docs/deep/a%20b.md)" in found.text
        assert "[angle](https://g.example/w/docs/deep/a%20b.md)" in found.text
        assert "[`code`](https://g.example/w/docs/other.md)" in found.text
        assert "[ref]: https://g.example/w/README.md" in found.text
        for left in ("`[code](other.md)`", "[fence](other.md)", "[lost](nowhere.md)", "[anchor](#part)"):
            assert left in found.text
        assert found.url == "https://g.example/w/docs/me.md"

    def test_a_hundred_links_are_enough(self, tmp_path: Path) -> None:
        for n in range(120):
            (tmp_path / f"{n}.md").write_text("# X\n")
        text = "\n".join(f"[x]({n}.md)" for n in range(120))

        assert len(document(tmp_path, text).metadata["links"]) == 100

    def test_a_text_without_links_has_no_such_key(self, tmp_path: Path) -> None:
        assert "links" not in document(tmp_path, "# No [links] here").metadata
