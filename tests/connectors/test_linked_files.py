"""Links below a root: what they lead to keeps the rules of the place where it lies."""

from __future__ import annotations

from pathlib import Path

from connectors import open_source
from connectors.documents.options import LevelRule, SourceContext
from tests.connectors.folders import file_options, listing, names, write


def test_a_link_gives_no_way_to_what_is_excluded(tmp_path: Path) -> None:
    write(tmp_path, "secrets/db.md", ".env.md", "docs/open.md", "area/secrets/deep.md")
    (tmp_path / "docs/file.md").symlink_to("../secrets/db.md")
    (tmp_path / "docs/hidden.md").symlink_to("../.env.md")
    (tmp_path / "docs/folder").symlink_to("../secrets")
    (tmp_path / "docs/above").symlink_to("../area")
    (tmp_path / "docs/chain.md").symlink_to("file.md")

    found = listing(tmp_path, "docs/**/*.md", exclude=("secrets/**", "area/secrets/**", ".*"))

    assert names(found) == ["docs/open.md"]
    assert found.failed == ()


def test_a_rule_that_names_a_folder_holds_for_links_into_it(tmp_path: Path) -> None:
    write(tmp_path, "contracts/a.md", "docs/b.md")
    (tmp_path / "docs/link.md").symlink_to("../contracts/a.md")
    rules = (LevelRule(level="restricted", paths=("contracts/**",)),)
    options = file_options(name="docs", type="markdown", root=tmp_path, paths=("docs/**/*.md",))

    source = open_source(options.with_context(SourceContext(levels=rules)))
    levels = {d.external_id: d.security_level for page in source.pages(None) for d in page.documents}

    assert levels == {"docs/b.md": "internal", "docs/link.md": "restricted"}
