"""Commands that ask the API, with arguments that need no parser: to build Typer's takes as long as all else of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import Any, get_args

import typer
from typer.models import ArgumentInfo


def run_plain(place: str, args: Sequence[str]) -> int | None:
    """Run the command at `module:function`; its exit code, or None if its arguments need the parser."""
    command = resolve_name(f"workers.cli.{place}")
    values = plain_values(command, args)
    if values is None:
        return None
    try:
        command(**values)
        sys.stdout.flush()
    except typer.Exit as ended:
        return int(ended.exit_code)
    except BrokenPipeError:  # whoever read stdout has left: Python would say so once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def plain_values(command: Callable[..., None], args: Sequence[str]) -> dict[str, Any] | None:
    """The arguments of a command by name; None for what only the parser reads, or refuses."""
    values, positional, options = _parameters(command)
    words = iter(args)
    for word in words:
        if word in options:
            name, kind = options[word]
            value = _option_value(kind, "" if kind is bool else next(words, "-"))
        elif positional:
            name, kind = positional[0]
            value = _option_value(kind, word)
            positional = positional if kind == list[str] else positional[1:]
        else:
            return None
        if value is None:
            return None
        values[name] = _with(values.get(name), value) if kind == list[str] else value
    return values if all(name in values for name, _ in positional) else None


def _with(earlier: list[str] | None, value: str) -> list[str]:
    return [*(earlier or ()), value]


def _option_value(kind: Any, text: str) -> Any:
    convert = _CONVERT.get(kind)
    return None if convert is None or text.startswith("-") else convert(text)


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) > 0 else None


_CONVERT: dict[Any, Callable[[str], Any]] = {
    bool: lambda _: True,
    int: _whole,
    str: str,
    list[str]: str,
    Path: Path,
}
"""Type of an option -> what makes its value of a word."""


def _parameters(
    command: Callable[..., None],
) -> tuple[dict[str, Any], list[tuple[str, Any]], dict[str, tuple[str, Any]]]:
    """The defaults, and name and type of each argument and option."""
    values, positional, options = {}, [], {}
    for parameter in signature(command).parameters.values():
        annotated, info = get_args(parameter.annotation)[:2]
        is_union = isinstance(annotated, UnionType)
        kind = next(one for one in get_args(annotated) if one is not NoneType) if is_union else annotated
        if parameter.default is not Parameter.empty:
            values[parameter.name] = parameter.default
        if isinstance(info, ArgumentInfo):
            positional.append((parameter.name, kind))
            continue
        for name in _option_names(parameter.name, info):
            options[name] = (parameter.name, kind if info.max is None else None)
    return values, positional, options


def _option_names(parameter: str, info: Any) -> list[str]:
    # Typer keeps the first name of an option as its default.
    names = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)]
    return names or [f"--{parameter.replace('_', '-')}"]
