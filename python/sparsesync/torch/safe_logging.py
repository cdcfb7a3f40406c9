"""Log lines and warnings that never end a training run, even if a handler or a filter of the program raises."""

from __future__ import annotations

import contextlib
import logging
import traceback
import warnings

_log = logging.getLogger("sparsesync")


def log(level: int, text: str, *arguments: object) -> None:
    """Writes a line to the logger ``sparsesync``.

    An exception within a backward pass would end the step on this worker only, so none is raised.
    """
    try:
        _log.log(level, text, *arguments)
    except Exception:
        if logging.raiseExceptions:  # the rule by which logging reports failing handlers
            with contextlib.suppress(Exception):
                traceback.print_exc()


def warn(text: str) -> None:
    """Issues a RuntimeWarning; if the program turns warnings into errors, logs it instead."""
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except Exception:
        log(logging.WARNING, "%s", text)
