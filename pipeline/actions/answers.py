"""Errors as values: a workflow gets `{"error": ..., "success": False}` and no exception."""

from __future__ import annotations

import functools
import inspect
import logging
import traceback
from collections.abc import Callable
from typing import Any

from pipeline.documents import Json
from pipeline.errors import LarderError

logger = logging.getLogger(__name__)


def failure(error: Exception, shown: Callable[[str], str]) -> Json:
    """What a workflow gets for an error; `shown` makes of a message what may be seen.

    Of a foreign error that is only its class. It is logged with the place it comes from, without its words: these
    may hold a text.
    """
    if isinstance(error, LarderError):
        return {"error": shown(str(error)), "success": False}
    where = "".join(traceback.format_tb(error.__traceback__)[-4:])
    logger.error("an action failed with %s\n%s", type(error).__name__, where)
    return {
        "error": f"the action failed unexpectedly ({type(error).__name__}); the log says where",
        "success": False,
    }


def answered(action: Callable[..., Json]) -> Callable[..., Json]:
    """`action` with errors as values, wrong arguments included."""
    signature = inspect.signature(action)

    @functools.wraps(action)
    def call(self: Any, *args: Any, **kwargs: Any) -> Json:
        try:
            signature.bind(self, *args, **kwargs)
        except TypeError as error:
            return {"error": f"wrong arguments: {error}", "success": False}
        try:
            return action(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 (a workflow must go on, whatever it is)
            return failure(error, self.shown)

    return call
