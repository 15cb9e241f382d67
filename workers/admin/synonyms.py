"""The file with words that mean the same in this installation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import ConfigurationError
from pipeline.search.question import Synonyms

MOST_BYTES = 1_000_000


def read(path: Path) -> Synonyms:
    """The groups in `path`: a list of lists of words, or words with a list of what else they are called.

    Raises:
        ConfigurationError: there is no such file, it is too long, or it has another form.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigurationError(
                f"retrieval.synonyms: {path} is larger than {MOST_BYTES:,} bytes", fix="make it shorter"
            )
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigurationError(
            f"retrieval.synonyms: {path} cannot be read: {why}", fix="correct the path or the file"
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigurationError(
            f"retrieval.synonyms: {path}{line} is no YAML", fix="write one list of words per group"
        ) from None
    return Synonyms.of(_groups(given, path))


def _groups(given: Any, path: Path) -> list[list[str]]:
    rows = (
        given.items() if isinstance(given, dict) else enumerate(given if isinstance(given, list) else [None])
    )
    found = []
    for key, words in rows if given else ():
        head = [key] if isinstance(given, dict) else []
        group = [*head, *(words if isinstance(words, list) else [words])]
        if not all(isinstance(word, str | int) for word in group):
            raise ConfigurationError(
                f"retrieval.synonyms: {path}: {key!r} is no list of words"
                if head
                else f"retrieval.synonyms: {path}: entry {int(key) + 1} is no list of words",
                fix="write for example - [k8s, kubernetes]",
            )
        found.append([str(word) for word in group])
    return found
