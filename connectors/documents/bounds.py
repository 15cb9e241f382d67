"""The bounds within which each document is read: time, memory, depth, digits and values, for all connectors."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml
from frontmatter.default_handlers import SafeLoader

from connectors.documents.values import MAX_VALUES
from pipeline.documents import Document
from pipeline.errors import DocumentRejected, LarderError

MOST_SECONDS = 10.0
"""Of processor time: what waits costs nothing, and a machine that is busy fails no document."""
MOST_BYTES = 512 * 1024**2
"""By which the process may grow."""
LOOK_SECONDS = 0.05
MOST_LEVELS = 100
"""Of values in values."""
MOST_DIGITS = 100
"""Of a whole number; a longer one stays text. Python refuses to show one of more than 4,300 digits."""
EXCLUDE = "split it, or exclude it"


class _TooMuch(BaseException):
    """Time or memory is used up; no handler of errors on the way takes it for one of its own."""


@contextmanager
def bounded(name: str) -> Iterator[None]:
    """Whatever goes wrong in reading one document is that document's problem; `name` is the document for messages.

    Time and memory are looked after in the main thread only, where signals arrive; bounds within bounds are one.

    Raises:
        DocumentRejected: the bounds are passed, or the reading failed; the text of the error is not repeated.
        LarderError: what was raised as such.
    """
    try:
        with _alarm():
            yield
    except _TooMuch as error:
        raise DocumentRejected(f"{name} {error}", fix=EXCLUDE) from None
    except LarderError:
        raise
    except RecursionError:
        raise DocumentRejected(f"{name} is nested too deeply", fix=f"flatten it, {EXCLUDE}") from None
    except Exception as error:  # noqa: BLE001 - a foreign error must not show what it quotes
        raise DocumentRejected(
            f"{name} cannot be read: {fault_of(error)}", fix="report it, and exclude it meanwhile"
        ) from None


def made(make: Callable[[], Document | None], name: str) -> Document | None:
    """The document that `make` makes within the bounds, with the hash that the ledger will ask for.

    Raises:
        DocumentRejected: as `bounded` does.
    """
    with bounded(name):
        document = make()
        _ = document and document.content_hash
        return document


def fault_of(error: BaseException) -> str:
    """An error's class and the place of ours that raised it or called who did: `KeyError in values.py, line 3`."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "site-packages" not in frame.filename and frame.filename[0] == "/"]
    place = f" in {Path(ours[-1].filename).name}, line {ours[-1].lineno}" if ours else ""
    return type(error).__name__ + place


@contextmanager
def _alarm() -> Iterator[None]:
    """Raise `_TooMuch` inside of the block once it has used up its time or memory."""
    busy = signal.getsignal(signal.SIGVTALRM) not in (signal.SIG_DFL, signal.SIG_IGN, None)
    if busy or threading.current_thread() is not threading.main_thread():
        yield
        return
    process = psutil.Process()
    begun, before = time.thread_time(), process.memory_info().rss

    def look(*_: Any) -> None:
        if time.thread_time() - begun > MOST_SECONDS:
            why = f"takes more than {MOST_SECONDS:g} seconds to read"
        elif process.memory_info().rss - before > MOST_BYTES:
            why = f"takes more than {MOST_BYTES // 1024**2} MB of memory to read"
        else:
            return
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        raise _TooMuch(why)

    signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, LOOK_SECONDS, LOOK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)


class BoundedLoader(SafeLoader):  # type: ignore[misc, valid-type]
    """YAML whose merge keys end, and without the values that would fail a whole file.

    Dates, numbers and truth values that are impossible or too long stay text.
    """

    merged = 0

    def __init__(self, stream: str) -> None:
        """Refuse what is nested too deeply: libyaml makes values by recursion in C, which ends the process."""
        depth = 0
        for event in yaml.parse(stream, Loader=SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_LEVELS:
                problem = f"values are nested more than {MOST_LEVELS} levels deep"
                raise yaml.composer.ComposerError(None, None, problem, event.start_mark)  # type: ignore[arg-type] # either kind of mark
        super().__init__(stream)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Take in what a mapping merges: each level may double it, and a few lines mean billions of values."""
        before = len(node.value)
        super().flatten_mapping(node)
        self.merged += max(0, len(node.value) - before)
        if self.merged > MAX_VALUES:
            problem = f"merge keys bring in more than {MAX_VALUES} values"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _lenient(construct: Callable[[Any, yaml.ScalarNode], Any]) -> Callable[[Any, yaml.ScalarNode], Any]:
    def value(loader: Any, node: yaml.ScalarNode) -> Any:
        if len(node.value) > MOST_DIGITS:
            return node.value
        try:
            return construct(loader, node)
        except (ValueError, LookupError, OverflowError, AttributeError):  # what SafeLoader raises here
            return node.value

    return value


for _kind in ("timestamp", "int", "float", "bool"):
    BoundedLoader.add_constructor(
        f"tag:yaml.org,2002:{_kind}", _lenient(getattr(SafeLoader, f"construct_yaml_{_kind}"))
    )
