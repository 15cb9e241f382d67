"""Bytes that are text, and files that are none."""

from __future__ import annotations

import codecs
import os
import socket
from pathlib import Path

import pytest

from connectors import open_source
from connectors.documents.encodings import CONTROLS, Unreadable, decode
from connectors.files.walk import FileText, read_file
from pipeline.documents import Problem
from tests.connectors.folders import listing, options, walk, write


class TestContent:
    @pytest.mark.parametrize(
        ("data", "text", "encoding"),
        [
            ("Grüße 東京".encode(), "Grüße 東京", "utf-8"),
            (codecs.BOM_UTF8 + "Grüße".encode(), "Grüße", "utf-8"),
            ("Grüße".encode("utf-16"), "Grüße", "utf-16"),
            (codecs.BOM_UTF16_BE + "Grüße".encode("utf-16-be"), "Grüße", "utf-16"),
            ("Grüße".encode("utf-32"), "Grüße", "utf-32"),
            ("Déjà vu – naïve".encode("cp1252"), "Déjà vu – naïve", "windows-1252"),
            ("Déjà vu".encode("latin-1"), "Déjà vu", "windows-1252"),
            (b"a\r\nb\rc\n", "a\nb\nc\n", "utf-8"),
            (b"", "", "utf-8"),
        ],
    )
    def test_text_is_decoded(self, data: bytes, text: str, encoding: str) -> None:
        assert decode(data) == (text, encoding)

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (b"abc\0def", "NUL character at byte 3"),
            (b"\x01\x02\x03\x04text", "control characters"),
            ("Grüße".encode("utf-16-le"), "NUL character"),
            (codecs.BOM_UTF16_LE + b"a", "not valid utf-16"),
            (codecs.BOM_UTF8 + b"ab\xff", "byte 5"),
            ("a\0b".encode("utf-16"), "NUL character"),
            (b"abc \x81 def", "not valid UTF-8 at byte 4"),
            ("é".encode("latin-1") + b" and a bell \x07 in a long enough text", "not valid UTF-8 at byte 0"),
        ],
    )
    def test_what_is_no_text_is_refused_with_its_place(self, data: bytes, said: str) -> None:
        with pytest.raises(Unreadable, match=said):
            decode(data)

    def test_tabs_and_escapes_are_no_control_characters(self) -> None:
        assert not set(CONTROLS) & set(b"\t\n\r\x1b")

    def test_bad_files_are_named_and_take_no_other_with_them(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md", "z.md")
        write(tmp_path, "empty.md", text="")
        write(tmp_path, "blank.md", text=" \n\t\n\u200b\ufeff\n")
        write(tmp_path, "large.md", text="x" * 10_001)
        write(tmp_path, "limit.md", text="x" * 10_000)
        (tmp_path / "binary.md").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
        (tmp_path / "old.md").write_bytes("# Façade\n\nDéjà vu".encode("latin-1"))

        documents, failed, skipped = walk(options(tmp_path))

        assert list(documents) == ["a.md", "limit.md", "old.md", "z.md"]
        assert documents["old.md"].metadata["encoding"] == "windows-1252"
        assert documents["old.md"].title == "Façade"
        assert "encoding" not in documents["a.md"].metadata
        assert set(failed) == {"binary.md"}
        assert set(skipped) == {"empty.md", "blank.md", "large.md"}
        assert "10001" in skipped["large.md"]
        assert "10000" in skipped["large.md"]
        assert all(name in reason for name, reason in (failed | skipped).items())

    def test_what_may_come_back_is_kept_and_what_became_empty_is_not(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md")
        write(tmp_path, "empty.md", text="")
        write(tmp_path, "newline.md", text="\n")
        write(tmp_path, "short.md", text="x")
        write(tmp_path, "large.md", text="x" * 10_001)
        (tmp_path / "binary.md").write_bytes(b"\0\0\0")

        ids = open_source(options(tmp_path)).ids()

        assert ids.ids == {"a.md", "short.md", "large.md", "binary.md"}
        assert ids.complete

    def test_messages_hold_no_text_of_the_file(self, tmp_path: Path) -> None:
        write(tmp_path, "front.md", text="---\ntitle: [topsecret\n---\n\ntopsecret")
        (tmp_path / "binary.md").write_bytes(b"topsecret\0")

        documents, failed, _ = walk(options(tmp_path))

        notes = [document.metadata["reading_note"] for document in documents.values()]
        assert len(failed) == len(notes) == 1
        assert not any("topsecret" in reason for reason in (*failed.values(), *notes))


class TestSpecialFiles:
    def test_pipes_sockets_and_devices_are_named_and_not_opened(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md")
        os.mkfifo(tmp_path / "pipe.md")
        (tmp_path / "null.md").symlink_to("/dev/null")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "s.md"))
            documents, failed, _ = walk(options(tmp_path))
            ids = open_source(options(tmp_path)).ids()

        assert list(documents) == ["a.md"]
        assert set(failed) == {"pipe.md", "null.md", "s.md"}
        assert "named pipe" in failed["pipe.md"]
        assert "socket" in failed["s.md"]
        assert ids.ids == {"a.md", "pipe.md", "null.md", "s.md"}
        assert ids.complete

    def test_a_link_to_a_pipe_is_not_opened(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link.md").symlink_to("pipe")

        assert "named pipe" in walk(options(tmp_path))[1]["link.md"]

    def test_a_folder_with_a_files_name_is_a_folder(self, tmp_path: Path) -> None:
        write(tmp_path, "folder.md/a.md")

        documents, failed, _ = walk(options(tmp_path))

        assert list(documents) == ["folder.md/a.md"]
        assert not failed

    def test_a_pipe_put_in_a_files_place_is_not_waited_for(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md")
        found = listing(tmp_path)
        (tmp_path / "a.md").unlink()
        os.mkfifo(tmp_path / "a.md")

        entry = read_file(found.files[0], found.root, options(tmp_path))

        assert isinstance(entry, Problem)
        assert "not a regular file" in entry.reason

    def test_a_link_put_in_a_files_place_is_not_followed(self, tmp_path: Path) -> None:
        write(tmp_path, "root/a.md", "secret.md")
        found = listing(tmp_path / "root")
        (tmp_path / "root/a.md").unlink()
        (tmp_path / "root/a.md").symlink_to(tmp_path / "secret.md")

        entry = read_file(found.files[0], found.root, options(tmp_path / "root"))

        assert isinstance(entry, Problem)
        assert "became a link while it was read" in entry.reason

    def test_a_folder_that_became_a_link_outside_is_not_followed(self, tmp_path: Path) -> None:
        write(tmp_path, "root/docs/a.md", "outside/a.md")
        found = listing(tmp_path / "root")
        (tmp_path / "root/docs").rename(tmp_path / "root/old")
        (tmp_path / "root/docs").symlink_to(tmp_path / "outside")

        entry = read_file(found.files[0], found.root, options(tmp_path / "root"))

        assert isinstance(entry, Problem)
        assert "outside" in entry.reason

    def test_a_file_replaced_by_another_is_read(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md")
        found = listing(tmp_path)
        write(tmp_path, "b.tmp", text="# New\n")
        (tmp_path / "b.tmp").replace(tmp_path / "a.md")

        read = read_file(found.files[0], found.root, options(tmp_path))

        assert isinstance(read, FileText)
        assert read.text == "# New\n"

    def test_a_file_that_vanished_is_simply_not_there(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md", "b/c.md")
        found = listing(tmp_path)
        (tmp_path / "a.md").unlink()
        (tmp_path / "b/c.md").unlink()
        (tmp_path / "b").rmdir()
        (tmp_path / "b").write_text("a file now")

        assert [read_file(file, found.root, options(tmp_path)) for file in found.files] == [None, None]
