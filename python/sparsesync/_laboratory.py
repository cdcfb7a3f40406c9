"""Explains how to install the trace laboratory if the build lacks it."""

from __future__ import annotations

import importlib.util

_MODULE = "sparsesync._analysis"


def has_laboratory() -> bool:
    """Returns whether this build has ``sparsesync._analysis``."""
    return importlib.util.find_spec(_MODULE) is not None


def expect_laboratory(wanted: str) -> None:
    """Raises ImportError with installation instructions if this build lacks ``sparsesync._analysis``.

    Args:
        wanted: The feature that needs the laboratory; the message starts with it.
    """
    if not has_laboratory():
        raise ImportError(
            f"{wanted}: this build of sparsesync has no laboratory (SPARSESYNC_ANALYSIS=OFF): install one that has it with "
            "`pip install . -C cmake.define.SPARSESYNC_ANALYSIS=ON`",
            name=_MODULE,
        )
