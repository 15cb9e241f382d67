"""JMESPath expressions and templates of the configuration: checked when it is loaded, and evaluated on answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import AfterValidator, BeforeValidator

from connectors.documents.values import scalar_text
from connectors.sections import Expected, Text, refusal
from pipeline.errors.http_rules import duration

MOST_EXPRESSIONS = 1000
TEMPLATES = ("path", "params", "url")
"""Keys of templates."""
_PLACEHOLDER = re.compile(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)\}")


@lru_cache(maxsize=MOST_EXPRESSIONS)
def _compiled(text: str) -> Any:
    import jmespath  # most configurations have no such source

    return jmespath.compile(text)


def value_at(expression: str | None, record: Any) -> Any:
    """Value of an expression for a record; None if there is none, or a function of it does not fit the record."""
    from jmespath.exceptions import JMESPathError

    if not expression:
        return None
    try:
        return _compiled(expression).search(record)
    except JMESPathError:  # such as `join` over a field that this record lacks
        return None


def _checked(text: str) -> str:
    from jmespath.exceptions import JMESPathError

    try:
        faults = list(_function_faults(_compiled(text).parsed))
    except JMESPathError as error:
        position = getattr(error, "lex_position", None)
        place = (
            f"it cannot be read at character {position + 1}" if isinstance(position, int) else "it is empty"
        )
        raise refusal("a JMESPath expression such as data.items[].name", place) from None
    if faults:
        raise refusal("a JMESPath expression such as data.items[].name", faults[0])
    return text


def _function_faults(node: Any) -> Iterator[str]:
    """Faults of the calls in a parsed expression, which JMESPath itself reports only when it meets a record."""
    from jmespath.functions import Functions

    if node["type"] == "function_expression":
        name, count = node["value"], len(node["children"])
        function = Functions.FUNCTION_TABLE.get(name)
        if function is None:
            functions = ", ".join(sorted(Functions.FUNCTION_TABLE))
            yield f"there is no function {name}; there are {functions}"
        else:
            parameters = function["signature"]
            is_open = bool(parameters) and bool(parameters[-1].get("variadic"))
            if count < len(parameters) or (count > len(parameters) and not is_open):
                yield f"the function {name} takes {len(parameters)} arguments"
    for child in node["children"]:
        if isinstance(child, dict):
            yield from _function_faults(child)


def _seconds(value: Any) -> float:
    seconds = (
        duration(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    )
    if seconds is None or seconds < 0:
        raise ValueError
    return seconds


Expression = Annotated[Text, AfterValidator(_checked), Expected("a JMESPath expression")]
Template = Annotated[Text, Expected("text, in which {name} is a value")]
Span = Annotated[float, BeforeValidator(_seconds), Expected("a time such as 90s, 5m or 1h30m")]


# -- templates -------------------------------------------------------------------------------------------


def names_in(template: Any) -> set[str]:
    """Names of all placeholders in a template, or in the texts of a mapping or list."""
    if isinstance(template, str):
        return {name for _, name in _PLACEHOLDER.findall(template)}
    inner = template.values() if isinstance(template, Mapping) else template
    return (
        set().union(*map(names_in, inner)) if isinstance(inner, list | tuple | type({}.values())) else set()
    )


def filled(template: str, values: Mapping[str, Any], *, in_path: bool = False) -> str:
    """The template with its placeholders replaced; in a path they are quoted, slashes too unless it is `{+name}`."""

    def value(match: re.Match[str]) -> str:
        text = scalar_text(values.get(match[2]))
        return quote(text, safe="/" if match[1] else "") if in_path else text

    return _PLACEHOLDER.sub(value, template)


def filled_in(template: Any, values: Mapping[str, Any]) -> Any:
    """A copy of JSON with the placeholders of its texts replaced.

    A text that is one placeholder becomes its value, whatever its type; a key whose placeholder has no value is left
    out.
    """
    if isinstance(template, str):
        whole = _PLACEHOLDER.fullmatch(template)
        return values.get(whole[2]) if whole else filled(template, values)
    if isinstance(template, Mapping):
        pairs = {key: filled_in(value, values) for key, value in template.items()}
        return {key: value for key, value in pairs.items() if value is not None}
    return [filled_in(item, values) for item in template] if isinstance(template, list | tuple) else template


def with_values(tree: Any, values: Mapping[str, Any]) -> Any:
    """A copy of a part of the configuration with these values in place of {name} in its expressions.

    Templates, which are filled for each request, stay.
    """
    if isinstance(tree, Mapping):
        return {key: item if key in TEMPLATES else with_values(item, values) for key, item in tree.items()}
    if isinstance(tree, str):
        return _PLACEHOLDER.sub(lambda match: str(values.get(match[2], match[0])), tree)
    return [with_values(item, values) for item in tree] if isinstance(tree, list | tuple) else tree
