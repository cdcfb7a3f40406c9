"""Words to people about a training, which never end it: a handler or a filter of the program's may raise."""

from __future__ import annotations

import contextlib
import logging
import traceback
import warnings

_log = logging.getLogger("sparsesync")


def log(level: int, text: str, *arguments: object) -> None:
    """Writes a line to the log `sparsesync`. Within a backward pass an exception would end the step on this worker alone."""
    try:
        _log.log(level, text, *arguments)
    except Exception:
        if logging.raiseExceptions:  # as logging itself reports a handler that fails
            with contextlib.suppress(Exception):
                traceback.print_exc()


def warn(text: str) -> None:
    """Warns once. Where the program makes warnings errors the log has it."""
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except Exception:
        log(logging.WARNING, "%s", text)
