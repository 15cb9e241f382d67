"""A user story as written by either agent, an export or our own table."""

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

MAX_ID_LENGTH, MAX_TITLE_LENGTH = 20, 500
_ALIASES = {
    "user_story_id": ("storyid",),
    "user_story_text": ("userstory", "story"),
    "tags": ("tagslabels", "labels"),
    "tshirt_size": ("tshirt", "size"),
    "confidence_score": ("confidence",),
    "source_doc_id": ("docid",),
    "user_rating": ("rating",),
}
"""Field -> its aliases in the form of `_bare`; aliases come first, since agents use them for changed values."""


def _bare(name: object) -> str:
    """A key without case, blanks and punctuation, so that `Tags/Labels` and `tagsLabels` are equal."""
    return re.sub("[^a-z0-9]", "", str(name).lower())


def as_list(value: Any, separator: str) -> list[str]:
    """The texts of a list, or of a single text that is split at `separator`; another value is a list of one."""
    items = value.split(separator) if isinstance(value, str) else value or ()
    items = items if isinstance(items, list | tuple | set) else [items]
    return [text for item in items if (text := _line(item).strip())]


def _line(item: object) -> str:
    """`{"given": "a user", "then": "a mail"}` is `given a user, then a mail`."""
    return (
        ", ".join(f"{key} {value}" for key, value in item.items()) if isinstance(item, Mapping) else str(item)
    )


def _share(value: Any) -> Any:
    """A share from 0 to 1: `95`, `95 %` and `0.95` are equal; other values are returned for pydantic to refuse."""
    text = str(value).replace("%", "").strip()
    try:
        number = float(text)
    except ValueError:
        return value
    return number / 100 if number > 1 or text != str(value).strip() else number


class Story(BaseModel):
    """A story with the field names and lengths of the table."""

    model_config = ConfigDict(
        frozen=True,
        coerce_numbers_to_str=True,
        hide_input_in_errors=True,
        loc_by_alias=False,
        alias_generator=AliasGenerator(
            validation_alias=lambda name: AliasChoices(*_ALIASES.get(name, ()), _bare(name))
        ),
    )

    user_story_id: Annotated[str, Field(max_length=MAX_ID_LENGTH)] = "N/A"
    user_story_text: str
    title: Annotated[str, Field(max_length=MAX_TITLE_LENGTH)]
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
        cls, record: object, source_agent: str = "unknown", requirement_texts: Mapping[str, str] | None = None
    ) -> Self:
        """Parse a story from a mapping with any of the aliases; `source_agent` overrides, unless it is `unknown`.

        `requirement_texts` (requirement id -> text) fill in stories that only name their requirement. Without a
        story field the description is the story, as trackers export it; without a title the story's text is.

        Raises:
            RequestRejected: not a story; the message names each wrong field, never its value.
        """
        if not isinstance(record, Mapping):
            raise RequestRejected("a story must be an object with its fields")
        bare = _named({_bare(key): value for key, value in storable(record).items()})
        if source_agent != "unknown":
            bare["sourceagent"] = source_agent
        try:
            story = cls.model_validate(bare)
        except ValidationError as error:
            raise RequestRejected("; ".join(map(_problem, error.errors()[:3]))) from None
        requirement_text = (requirement_texts or {}).get(story.requirement_id or "")
        return (
            story.model_copy(update={"requirement_text": storable(requirement_text)})
            if requirement_text and not story.requirement_text
            else story
        )

    def redacted(self, redact: Callable[[str], str]) -> Self:
        """The story with its texts changed by `redact`; names and numbers stay."""
        changed: dict[str, Any] = {}
        for name in ("title", "user_story_text", "description", "requirement_text"):
            changed[name] = (text := getattr(self, name)) and redact(text)
        for name in ("acceptance_criteria", "tags"):
            changed[name] = (texts := getattr(self, name)) and [redact(text) for text in texts]
        changed["title"] = changed["title"][:MAX_TITLE_LENGTH]
        return self.model_copy(update=changed)


_TEXT = (*_ALIASES["user_story_text"], _bare("user_story_text"))
_IDS, _TITLES = ("id", "issuekey", "key"), ("storytitle", "summary")
"""Names in other tools, used where the usual name is missing; an id only if it is short enough."""


def _named(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not empty, under their usual names."""
    filled = {name: value for name, value in fields.items() if _is_filled(value)}
    if not any(name in fields for name in _TEXT) and "description" in filled:
        filled[_TEXT[0]] = filled.pop("description")
    titles = (filled[name] for name in (*_TITLES, *_TEXT) if name in filled)
    filled.setdefault("title", str(next(titles, ""))[:MAX_TITLE_LENGTH])
    ids = (filled[name] for name in _IDS if len(str(filled.get(name, "-" * 99))) <= MAX_ID_LENGTH)
    if short := next(ids, None):
        filled.setdefault("userstoryid", short)
    return filled


def _is_filled(value: object) -> bool:
    """False for blank text and None."""
    return bool(value.strip()) if isinstance(value, str) else value is not None


def _problem(error: Mapping[str, Any]) -> str:
    """The field and what is wrong with it, without its value."""
    field = error["loc"][0]
    if error["type"] == "missing":
        return f"{field}: missing; it may also be called user_story or story"
    return f"{field}: {error['msg']}"


def read_stories(
    records: Iterable[object],
    source_agent: str = "unknown",
    requirement_texts: Mapping[str, str] | None = None,
) -> tuple[list[Story], list[tuple[int, str]]]:
    """The stories, and position (from 1) and reason of each entry that is not one."""
    stories, refused = [], []
    for number, one in enumerate(records, start=1):
        try:
            stories.append(Story.read(one, source_agent, requirement_texts))
        except RequestRejected as error:
            refused.append((number, error.message))
    return stories, refused
