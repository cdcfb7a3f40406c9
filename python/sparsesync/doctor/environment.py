"""The environment variables of sparsesync, and those in the environment that are not among them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

PREFIX = "SPARSESYNC_"

# All variables that sparsesync, its scripts and its tests read; docs/operations/environment.md describes them.
KNOWN = frozenset(
    PREFIX + name
    for name in (
        # Library and workers
        "LOG", "RANK", "SIZE", "ADDRESS", "UCX_LIBRARY",
        "BACKEND_SCHEME", "BACKEND_WIRE", "BACKEND_DEADLINE", "BACKEND_TRANSPORT",
        # Benchmarks, tests and scripts
        "BENCH_DEVICE", "BENCH_SMALL", "FULL", "SEED", "DATA", "TEST_DEVICE", "PROGRAM", "SOURCE_DIR", "BUILD_DIR", "WITH_TOYS",
        "MPI_SURVIVOR", "MPI_THREADS", "TEST_BOARD", "FUZZ_TARGET", "FUZZ_SEEDS", "PYTHON",
        "GPU_ROOT", "GPU_RESULTS", "GPU_ITEM_LIMIT", "GPU_PROBLEM", "GPU_SANITIZER", "GPU_NCCL",
    )
)  # fmt: skip


def unknown(environment: Mapping[str, str]) -> list[str]:
    """Returns the variables whose names begin with SPARSESYNC_ and that sparsesync does not read, sorted."""
    return sorted(name for name in environment if name.upper().startswith(PREFIX) and name not in KNOWN)


def remedy(name: str) -> str:
    """Returns the instruction for an unknown variable."""
    close = difflib.get_close_matches(name.upper().removeprefix(PREFIX), sorted(each.removeprefix(PREFIX) for each in KNOWN), 1)
    return f"Rename the environment variable {name} to {PREFIX}{close[0]}, or unset it." if close else f"Unset the variable {name}."
