"""Ctrl-C and SIGTERM at any moment of a command: one line, exit code 130, no traceback.

While a command is loaded, reads its options or has ended, there is nothing to put away: the process ends at once. Only
its body gets a KeyboardInterrupt. Python lets one appear between any two steps, so that of a library too: what reads
options makes an error of its own of it, and where C calls Python it is lost but for a traceback.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

INTERRUPTED = 130
"""Exit code of a command that was stopped with Ctrl-C or SIGTERM."""
REPEAT_SECONDS = 0.05


def handle_signals() -> None:
    """Have this process end at once by either signal; one that whoever started it ignores is ignored further."""
    for sign in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(sign) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(sign, end_at_once)
    sys.unraisablehook = _repeat_lost_interrupt


def end_at_once(_signal: int = 0, _frame: object = None) -> NoReturn:
    """End the process here and now."""
    with suppress(OSError):
        os.write(2, b"stopped\n")
    os._exit(INTERRUPTED)


@contextmanager
def interruptible() -> Iterator[None]:
    """Have what `handle_signals` handles raise KeyboardInterrupt meanwhile: there is something to put away."""
    handled = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is end_at_once]
    for sign in handled:
        signal.signal(sign, _interrupt)
    try:
        yield
    finally:
        for sign in handled:
            signal.signal(sign, end_at_once)


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    # A module that it meets half loaded is loaded again by what puts away, and SQLAlchemy warns of that.
    warnings.simplefilter("ignore")
    raise KeyboardInterrupt


def _repeat_lost_interrupt(lost: Any) -> None:
    """Raise it again in a moment, where somebody can catch it."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    import threading  # rarely needed, and each command would load it

    main = threading.main_thread().ident or 0
    timer = threading.Timer(REPEAT_SECONDS, signal.pthread_kill, (main, signal.SIGINT))
    timer.daemon = True
    timer.start()
