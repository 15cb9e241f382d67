"""A user story, whoever wrote it down: either agent, an export, or our own table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Self

from pydantic import (
    AliasChoices,
    AliasGenerator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from pipeline.errors import RequestRejected
from pipeline.ledger import storable

LONGEST_ID, LONGEST_TITLE = 20, 500
_OTHER_NAMES = {
    "user_story_id": ("storyid",),
    "user_story_text": ("userstory", "story"),
    "tags": ("tagslabels", "labels"),
    "tshirt_size": ("tshirt", "size"),
    "confidence_score": ("confidence",),
    "source_doc_id": ("docid",),
    "user_rating": ("rating",),
}
"""Field -> what it is called besides, as `_bare` leaves it; these go first: what an agent changed has its names."""


def _bare(name: object) -> str:
    """`Tags/Labels`, `T-Shirt Size` and `acceptanceCriteria` without what tells spellings apart."""
    return re.sub("[^a-z0-9]", "", str(name).lower())


def as_list(value: Any, separator: str) -> list[str]:
    """A list of texts, or a single text that holds one; anything else is a list of itself."""
    items = value.split(separator) if isinstance(value, str) else value or ()
    items = items if isinstance(items, list | tuple | set) else [items]
    return [text for item in items if (text := _line(item).strip())]


def _line(item: object) -> str:
    """`{"given": "a user", "then": "a mail"}` is `given a user, then a mail`."""
    return (
        ", ".join(f"{key} {value}" for key, value in item.items()) if isinstance(item, Mapping) else str(item)
    )


def _share(value: Any) -> Any:
    """`95`, `95 %` and `0.95` are one number; anything else is left to be refused."""
    text = str(value).replace("%", "").strip()
    try:
        number = float(text)
    except ValueError:
        return value
    return number / 100 if number > 1 or text != str(value).strip() else number


class Story(BaseModel):
    """A story with the names of the table; how long a text may be is the table's, too."""

    model_config = ConfigDict(
        frozen=True,
        coerce_numbers_to_str=True,
        hide_input_in_errors=True,
        loc_by_alias=False,
        alias_generator=AliasGenerator(
            validation_alias=lambda name: AliasChoices(*_OTHER_NAMES.get(name, ()), _bare(name))
        ),
    )

    user_story_id: Annotated[str, Field(max_length=LONGEST_ID)] = "N/A"
    user_story_text: str
    title: Annotated[str, Field(max_length=LONGEST_TITLE)]
    acceptance_criteria: Annotated[list[str] | None, BeforeValidator(partial(as_list, separator="\n"))] = None
    description: str | None = None
    requirement_id: Annotated[str | None, Field(max_length=20)] = None
    requirement_text: str | None = None
    tags: Annotated[list[str] | None, BeforeValidator(partial(as_list, separator=","))] = None
    priority: Annotated[str | None, Field(max_length=20)] = None
    tshirt_size: Annotated[str | None, Field(max_length=5)] = None
    confidence_score: Annotated[float | None, Field(ge=0, le=1), BeforeValidator(_share)] = None
    source_agent: Annotated[str, Field(max_length=50)] = "unknown"
    source_doc_id: Annotated[str | None, Field(max_length=64)] = None
    user_rating: Annotated[int | None, Field(ge=1, le=5)] = None
    was_edited: bool = False

    @classmethod
    def read(
        cls, given: object, source_agent: str = "unknown", requirement_texts: Mapping[str, str] | None = None
    ) -> Self:
        """The story in a mapping of any of these spellings; the agent named here wins, unless it is `unknown`.

        `requirement_texts` (requirement's id -> its text) are for stories that only name theirs. Where nothing is
        called a story its description is one, as trackers export it; without a title the story's own words are one.

        Raises:
            RequestRejected: it is none; the message names each field that is wrong, and never its value.
        """
        if not isinstance(given, Mapping):
            raise RequestRejected("it is no object with the fields of a story")
        bare = _named({_bare(key): value for key, value in storable(given).items()})
        if source_agent != "unknown":
            bare["sourceagent"] = source_agent
        try:
            story = cls.model_validate(bare)
        except ValidationError as error:
            raise RequestRejected("; ".join(map(_problem, error.errors()[:3]))) from None
        known = (requirement_texts or {}).get(story.requirement_id or "")
        return (
            story.model_copy(update={"requirement_text": storable(known)})
            if known and not story.requirement_text
            else story
        )

    def redacted(self, redact: Callable[[str], str]) -> Self:
        """The story with its texts changed by `redact`; names and numbers stay."""
        changed: dict[str, Any] = {}
        for name in ("title", "user_story_text", "description", "requirement_text"):
            changed[name] = (text := getattr(self, name)) and redact(text)
        for name in ("acceptance_criteria", "tags"):
            changed[name] = (texts := getattr(self, name)) and [redact(text) for text in texts]
        changed["title"] = changed["title"][:LONGEST_TITLE]
        return self.model_copy(update=changed)


_TEXT = (*_OTHER_NAMES["user_story_text"], _bare("user_story_text"))
_IDS, _TITLES = ("id", "issuekey", "key"), ("storytitle", "summary")
"""What other tools call them; it counts where the usual name is missing, and an id where it is short enough."""


def _named(given: dict[str, Any]) -> dict[str, Any]:
    """The parts that are not empty, by usual names where they have others."""
    found = {name: value for name, value in given.items() if _holds(value)}
    if not any(name in given for name in _TEXT) and "description" in found:
        found[_TEXT[0]] = found.pop("description")
    titles = (found[name] for name in (*_TITLES, *_TEXT) if name in found)
    found.setdefault("title", str(next(titles, ""))[:LONGEST_TITLE])
    ids = (found[name] for name in _IDS if len(str(found.get(name, "-" * 99))) <= LONGEST_ID)
    if short := next(ids, None):
        found.setdefault("userstoryid", short)
    return found


def _holds(value: object) -> bool:
    """False for what an empty cell or a missing part is read as."""
    return bool(value.strip()) if isinstance(value, str) else value is not None


def _problem(error: Mapping[str, Any]) -> str:
    """The field, and what is wrong with it; of what is there it tells nothing."""
    field = error["loc"][0]
    if error["type"] == "missing":
        return f"{field}: nothing is there; it may be called user_story or story as well"
    return f"{field}: {error['msg']}"


def read_stories(
    given: Iterable[object],
    source_agent: str = "unknown",
    requirement_texts: Mapping[str, str] | None = None,
) -> tuple[list[Story], list[tuple[int, str]]]:
    """The stories, and of those that are none the number, counted from 1, with the reason."""
    stories, refused = [], []
    for number, one in enumerate(given, start=1):
        try:
            stories.append(Story.read(one, source_agent, requirement_texts))
        except RequestRejected as error:
            refused.append((number, error.message))
    return stories, refused
