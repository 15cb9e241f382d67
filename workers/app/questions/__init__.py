"""Answers for commands on this machine, as plain JSON: worked out by the API of `larder up`, else by the command.

Each function takes the runtime, `tell`, which hears of what is to be shown before the answer, and named arguments.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from workers.runtime import Runtime

Tell = Callable[[str, Any], None]
"""Takes the kind of an event, such as `notice`, and what it says."""
_MODULES = {
    "searches": "search explain why-visible stories-search",
    "lists": "status runs sources-list dead-list dead-show dead-messages audit-list audit-verify keys-status "
    "reindex-status feedback stories-stats token",
    "indexing": "index",
}
QUESTIONS = {
    name: f"{module}:{name.replace('-', '_')}" for module, all_ in _MODULES.items() for name in all_.split()
}
"""Name of a question -> module and function; loaded when it is asked, since some need much that others do not."""


def answer(runtime: Runtime, tell: Tell, question: str, arguments: Mapping[str, Any]) -> Any:
    """The answer to a question; raises what its function does."""
    return pkgutil.resolve_name(f"{__name__}.{QUESTIONS[question]}")(runtime, tell, **arguments)
