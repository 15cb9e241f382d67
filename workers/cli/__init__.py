"""The command line: a shell over the functions of the other rooms."""

from __future__ import annotations

import sys
from io import TextIOWrapper

INTERRUPTED = 130
"""Exit code of a command that was stopped with Ctrl-C."""


def main() -> None:
    """Run the command named on the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that has no such letter is no reason to end in the middle of an answer.
            stream.reconfigure(errors="backslashreplace")
    try:
        # A second goes by in here, too, in which somebody may change their mind.
        from workers.cli.commands import app

        app()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except SystemExit as ended:
        # Typer, while it reads the options, makes a code of it and says nothing.
        if isinstance(getattr(ended.__context__, "__cause__", None), KeyboardInterrupt):
            print("stopped", file=sys.stderr)
        raise
