"""Sources made of a folder: which files they read."""

from __future__ import annotations

from pathlib import Path

from workers.admin.sync_now import sources_of_folder
from workers.runtime import Addresses, Runtime
from workers.settings import load
from workers.sources import open_source


def read(folder: Path) -> dict[str, list[str]]:
    """Type of source -> the files it finds below `folder`, whose data folder is `.larder`."""
    (folder / "larder.yaml").write_text("rag: {}\n", encoding="utf-8")
    parts = Runtime(load(folder / "larder.yaml", {}), Addresses(database="", control="", admin="", broker=""))
    return {
        one.settings.type: sorted(open_source(parts, one.settings).ids().ids)
        for one in sources_of_folder(parts, folder)
    }


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"text": "kestrel"}', encoding="utf-8")


def test_the_passwords_in_the_data_folder_are_never_read(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "b.json", ".larder/state.json", ".larder/credentials.json")
    assert read(tmp_path) == {"json": ["b.json"], "markdown": ["a.md"]}


def test_what_only_the_data_folder_holds_makes_no_source(tmp_path: Path) -> None:
    write(tmp_path, "a.md", ".larder/state.json")
    assert read(tmp_path) == {"markdown": ["a.md"]}


def test_files_of_other_people_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "a.md", ".venv/lib/licence.md", "web/node_modules/x/readme.md", ".venv/x.json")
    assert read(tmp_path) == {"markdown": ["a.md"]}
