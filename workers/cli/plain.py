"""Commands that ask the API, with arguments that need no parser: to build Typer's takes as long as all else of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args

import typer


def run_plain(args: Sequence[str]) -> int | None:
    """Run the command named first; its exit code, or None if its arguments need the parser."""
    command = getattr(
        import_module("workers.cli.status" if args[0] == "status" else "workers.cli.search"), args[0]
    )
    values = plain_values(command, args[1:])
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
            if value is None:
                return None
            values[name] = [*(values[name] or ()), value] if kind == list[str] else value
        elif positional and not word.startswith("-"):
            values[positional.pop(0)] = word
        else:
            return None
    return None if positional else values


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


def _parameters(command: Callable[..., None]) -> tuple[dict[str, Any], list[str], dict[str, tuple[str, Any]]]:
    """The defaults, the names of arguments, and the name and type of each option."""
    values, positional, options = {}, [], {}
    for parameter in signature(command).parameters.values():
        kind, info = get_args(parameter.annotation)[:2]
        if parameter.default is Parameter.empty:
            positional.append(parameter.name)
            continue
        values[parameter.name] = parameter.default
        kinds = (
            [one for one in get_args(kind) if one is not NoneType] if isinstance(kind, UnionType) else [kind]
        )
        # Typer keeps the first name of an option as its default.
        named = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)]
        for name in named or [f"--{parameter.name.replace('_', '-')}"]:
            options[name] = (parameter.name, kinds[0])
    return values, positional, options
