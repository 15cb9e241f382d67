"""Chroma's own server as a process, which a test kills, starts again and empties."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from workers.local.embedded.folder import free_port


@dataclass
class ChromaProcess:
    """A server at a port of its own, with its data in a folder."""

    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, unless it runs."""
        if self.process is not None and self.process.poll() is None:
            return
        self.port = self.port or free_port()
        place = ["--path", str(self.folder / "data"), "--host", "127.0.0.1", "--port", str(self.port)]
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            command = [str(Path(sys.executable).with_name("chroma")), "run", *place]
            self.process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def empty(self) -> None:
        """Start anew with nothing."""
        self.kill()
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        self.start()
