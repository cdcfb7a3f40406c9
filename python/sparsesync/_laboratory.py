"""Says how to get the laboratory where a build has none."""

from __future__ import annotations

import importlib.util

_MODULE = "sparsesync._analysis"


def expect_laboratory(wanted: str) -> None:
    """Raises ImportError, which says how to get it, where this build lacks `sparsesync._analysis`.

    wanted: what it is needed for; stands first in the text.
    """
    if importlib.util.find_spec(_MODULE) is None:
        raise ImportError(
            f"{wanted}: this build of sparsesync has no laboratory, as it was made with SPARSESYNC_ANALYSIS=OFF: install one that has "
            "it, `pip install . -C cmake.define.SPARSESYNC_ANALYSIS=ON`",
            name=_MODULE,
        )
