"""Conversion of foreign values to safe, readable ones, and limits on reading a document."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import yaml
from frontmatter.default_handlers import SafeLoader

from pipeline.documents import Document
from pipeline.documents.plain_text import composed
from pipeline.errors import DocumentRejected, LarderError

MAX_TAGS = 100
MAX_TAG = 100
MAX_DEPTH = 12
MAX_VALUES = 5000
"""Most values within one metadata value: by references, a few lines of YAML can expand to billions."""


def parse_json(text: str, name: str) -> Any:
    """Parse `text`; `name` is the file, for messages.

    Raises:
        DocumentRejected: it is no JSON; the message names file, line and column.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        message = f"{name} is not valid JSON: {error.msg.removesuffix(' at')} at {place}"
        raise DocumentRejected(message, fix="write the file again, or remove it") from None
    except RecursionError:
        message = f"{name} is nested too deeply to be read as JSON"
        raise DocumentRejected(message, fix="flatten it, or exclude it") from None
    except ValueError:
        raise DocumentRejected(
            f"{name} holds a number with too many digits", fix="write it as text"
        ) from None


def is_blank(text: str) -> bool:
    """True if the text has no visible character: white space, byte order marks and zero-width spaces only."""
    return not text.strip("\ufeff\u200b \t\r\n") or not text.strip()


def clean_text(text: str) -> str:
    """`text` in composed form, without NUL characters and half surrogate pairs, which PostgreSQL refuses."""
    text = composed(text.replace("\0", ""))
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def json_able(value: Any) -> Any:
    """`value` as plain JSON: dates as ISO text, sets as lists, no NaN; values too deep or too many are dropped."""
    return _plain(value, MAX_DEPTH, itertools.count())


def scalar_text(value: Any) -> str:
    """A single value as text, `true` and `false` in lower case; empty for None and for collections."""
    if value is None or isinstance(value, Mapping | list | tuple | set):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime | date):
        return value.isoformat()
    return clean_text(str(value)).strip()


def tags_of(value: Any) -> tuple[str, ...]:
    """Tags from a list or from text with commas or semicolons, each once; numbers and truth values become text."""
    items = re.split("[,;]", value) if isinstance(value, str) else value
    if not isinstance(items, list | tuple | set):
        items = [items]
    tags = (scalar_text(item).lstrip("#").strip()[:MAX_TAG] for item in items)
    return tuple(dict.fromkeys(tag for tag in tags if tag))[:MAX_TAGS]


def number_of(value: Any) -> float | None:
    """A number, or a text that is one; None for others, also true and false. May be infinite or NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None
    except OverflowError:
        return math.inf


def number_within(number: float | None, most: float) -> float | None:
    """`number` if it is between 0 and `most`, a whole one as int; None if not."""
    if number is None or not 0 <= number <= most:
        return None
    return int(number) if number == int(number) else number


def _plain(value: Any, depth: int, counter: Iterator[int]) -> Any:
    if isinstance(value, Mapping):
        pairs = _within(value.items(), depth, counter)
        return {clean_text(str(k)): _plain(v, depth - 1, counter) for k, v in pairs}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [_plain(item, depth - 1, counter) for item in _within(items, depth, counter)]
    if isinstance(value, bool | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime | date):
        return value.isoformat()
    return clean_text(str(value))


def _within(items: Iterable[Any], depth: int, counter: Iterator[int]) -> Iterator[Any]:
    """The items within the limits: MAX_DEPTH, and MAX_VALUES in all, counted by `counter`."""
    return (item for item in items if depth and next(counter) < MAX_VALUES)


MILLISECONDS_FROM = 10_000_000_000
"""Smallest epoch number read as milliseconds; as seconds it would be in the year 2286."""

LAST_MONTH = 12
MAX_LINE = 500
_MONTHS = (
    "jan", "fe[bv]|fév", "mar|mär", "ap[rv]|avr", "ma[yi]", "jun|juin", "jul|juil", "aug|ao[uû]", "sep", "o[ck]t",
    "nov", "de[cz]|déc",
)  # fmt: skip
_NAME = r"(?P<month>[^\W\d_]{3,10})\.?"
_SPELLINGS = tuple(
    re.compile(spelling)
    for spelling in (
        r"\b(?P<year>\d{4})[-/.](?P<month>\d\d?)[-/.](?P<day>\d\d?)\b",
        r"\b(?P<day>\d{1,2})(?:st|nd|rd|th|er|\.)?[\s-]+" + _NAME + r",?[\s-]+(?P<year>\d{4})\b",
        r"\b" + _NAME + r"\s+(?P<day>\d{1,2})(?:st|nd|rd|th)?,?\s+(?P<year>\d{4})\b",
        r"\b(?P<year>\d{4})\s+" + _NAME + r"\s+(?P<day>\d{1,2})\b",
        r"\b(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})\b",
        r"\b(?P<day>\d{1,2})(?P<unsure>[-/])(?P<month>\d{1,2})[-/](?P<year>\d{4})\b",
    )
)


def parse_time(value: Any) -> datetime | None:
    """A date, a time, ISO text or an epoch number as an aware UTC time; None if it is no time."""
    try:
        if isinstance(value, datetime):
            return _aware(value)
        if isinstance(value, date):
            return datetime(value.year, value.month, value.day, tzinfo=UTC)
        if isinstance(value, str):
            return _aware(datetime.fromisoformat(value.strip()))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return from_epoch(value / 1000 if value >= MILLISECONDS_FROM else value)
    except (ValueError, OverflowError):
        return None
    return None


def from_epoch(seconds: float) -> datetime | None:
    """UTC time of an epoch number in seconds; None if it is outside the calendar."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _month(name: str) -> int:
    """Month of a number or of an English, German or French name; 0 if it is no month."""
    if name.isdecimal():
        return int(name)
    return next((n for n, start in enumerate(_MONTHS, 1) if re.match(start, name)), 0)


def _aware(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def parse_day(text: str) -> str:
    """ISO day in a text, in any usual spelling; empty if there is none, or day and month may be swapped."""
    if moment := parse_time(text):
        return moment.date().isoformat()
    for match in filter(None, (spelling.search(text.casefold()[:MAX_LINE]) for spelling in _SPELLINGS)):
        month, day = _month(match["month"]), int(match["day"])
        if "unsure" in match.groupdict():
            if day <= LAST_MONTH and month <= LAST_MONTH and day != month:
                continue
            day, month = (month, day) if month > LAST_MONTH else (day, month)
        try:
            return date(int(match["year"]), month, day).isoformat()
        except ValueError:
            continue
    return ""


MAX_SECTIONS = 5
"""Levels of objects that become headings; deeper ones become indented lines."""
MAX_BULLETS = 12
INDENT = "  "


def json_text(value: Any) -> str:
    """JSON as text: keys as headings and `key: value` lines, lists as bullets; empty if there are no values."""
    return "\n".join(_section(value, 1)).strip()


def _section(value: Any, level: int) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield from _lines(value, 0)
        return
    nested = []
    for key, item in value.items():
        if level <= MAX_SECTIONS and isinstance(item, Mapping | list) and item:
            nested.append((key, item))
        else:
            yield from _pair(key, item, 0)
    for key, item in nested:
        lines = list(_section(item, level + 1))
        if lines:
            yield f"\n{'#' * (level + 1)} {_name(key)}\n"
            yield from lines


def _lines(value: Any, depth: int) -> Iterator[str]:
    """A value as indented lines; beyond MAX_BULLETS levels as JSON on one line."""
    if depth > MAX_BULLETS:
        yield INDENT * depth + clean_text(json.dumps(value, ensure_ascii=False))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _pair(key, item, depth)
    elif isinstance(value, list):
        for item in value:
            lines = list(_lines(item, 0 if isinstance(item, str) else depth + 1))
            if lines:
                yield f"{INDENT * depth}- {lines[0].strip()}"
                yield from lines[1:]
    elif text := scalar_text(value):
        yield INDENT * depth + text


def _pair(key: Any, item: Any, depth: int) -> Iterator[str]:
    if isinstance(item, Mapping | list):
        lines = list(_lines(item, depth + 1))
        if lines:
            yield f"{INDENT * depth}{_name(key)}:"
            yield from lines
    elif text := scalar_text(item):
        yield f"{INDENT * depth}{_name(key)}: {text}"


def _name(key: Any) -> str:
    return " ".join(clean_text(str(key)).split())


MOST_SECONDS = 10.0
"""Most seconds of processor time for one document; waiting and a busy machine do not count."""
MOST_BYTES = 512 * 1024**2
"""Most bytes by which the process may grow while reading one document."""
LOOK_SECONDS = 0.05
MOST_LEVELS = 100
"""Most levels of nested YAML values."""
MOST_DIGITS = 100
"""Most characters of a YAML number; a longer one stays text. Python refuses to print over 4,300 digits."""
EXCLUDE = "split it, or exclude it"


class _TooMuch(BaseException):
    """Time or memory is used up; a BaseException, so that no library's error handler catches it."""


@contextmanager
def bounded(name: str) -> Iterator[None]:
    """Turn any failure to read one document into its rejection; `name` is the document, for messages.

    Time and memory are limited in the main thread only, where signals arrive; nested use counts as one.

    Raises:
        DocumentRejected: a limit is passed, or the reading failed; the text of the error is not repeated.
        LarderError: raised within, passed on.
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
            f"{name} cannot be read: {describe_error(error)}", fix="report it, and exclude it meanwhile"
        ) from None


def build_document(make: Callable[[], Document | None], name: str) -> Document | None:
    """The document that `make` returns, built within the limits, with its content hash computed.

    Raises:
        DocumentRejected: as `bounded` does.
    """
    with bounded(name):
        document = make()
        _ = document and document.content_hash
        return document


def describe_error(error: BaseException) -> str:
    """Class of an error and the innermost line of this project: `KeyError in values.py, line 3`."""
    frames = traceback.extract_tb(error.__traceback__)
    project_frames = [
        frame for frame in frames if "site-packages" not in frame.filename and frame.filename[0] == "/"
    ]
    place = (
        f" in {Path(project_frames[-1].filename).name}, line {project_frames[-1].lineno}"
        if project_frames
        else ""
    )
    return type(error).__name__ + place


_process = cache(psutil.Process)  # creating one takes as long as reading a small file


@contextmanager
def _alarm() -> Iterator[None]:
    """Raise `_TooMuch` inside of the block once it has used up its time or memory."""
    busy = signal.getsignal(signal.SIGVTALRM) not in (signal.SIG_DFL, signal.SIG_IGN, None)
    if busy or threading.current_thread() is not threading.main_thread():
        yield
        return
    process = _process(os.getpid())
    begun, before = time.thread_time(), process.memory_info().rss

    def look(*_: Any) -> None:
        if time.thread_time() - begun > MOST_SECONDS:
            problem = f"takes more than {MOST_SECONDS:g} seconds to read"
        elif process.memory_info().rss - before > MOST_BYTES:
            problem = f"takes more than {MOST_BYTES // 1024**2} MB of memory to read"
        else:
            return
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        raise _TooMuch(problem)

    signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, LOOK_SECONDS, LOOK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)


class BoundedLoader(SafeLoader):  # type: ignore[misc, valid-type]
    """YAML loader with limits on merge keys and nesting.

    Dates, numbers and truth values that are impossible or too long stay text instead of failing the file.
    """

    merged = 0

    def __init__(self, stream: str) -> None:
        """Refuse deep nesting: libyaml builds values by recursion in C, and an overflow ends the process."""
        depth = 0
        for event in yaml.parse(stream, Loader=SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_LEVELS:
                problem = f"values are nested more than {MOST_LEVELS} levels deep"
                raise yaml.composer.ComposerError(None, None, problem, event.start_mark)  # type: ignore[arg-type] # either kind of mark
        super().__init__(stream)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge the keys of `<<`, at most MAX_VALUES in all: each level may double them."""
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
