"""What the commands profile, compare and plan tell of a trace, as their JSON has it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from sparsesync import _laboratory

_laboratory.expect_laboratory("sparsesync.analysis")

from sparsesync import _analysis, _native  # noqa: E402 (which a build may lack)

Path = str | os.PathLike[str]


def profile(trace: Path, *, partitions: Sequence[int] = ()) -> dict[str, Any]:
    """How sparse the gradients of a trace are, how much workers overlap, how skewed they lie.

    partitions: numbers of even ranges that skewness is told for; 8, 16, 64 and 128 if not given. docs/measures.md says
    what each measure is. Raises InputError for what is no trace.
    """
    result: dict[str, Any] = json.loads(_analysis.profile_json(os.fspath(trace), list(partitions)))
    return result


def plan(
    trace: Path,
    *,
    workers: Sequence[int],
    rate_bps: float | None = None,
    latency_s: float = 0,
    network: Path | None = None,
    memory_bytes: int | None = None,
) -> dict[str, Any]:
    """What each scheme is expected to take among other numbers of workers, from 2 to 65,536.

    The network is either a link: rate_bps, bits a second in each direction, and latency_s, seconds; or network, the
    file that `sparsesync calibrate` writes. memory_bytes: workspace of each worker at most. Raises InputError for
    what is no trace, or no network.
    """
    file = None if network is None else os.fspath(network)
    result: dict[str, Any] = json.loads(
        _analysis.plan_json(os.fspath(trace), list(workers), rate_bps, latency_s, file, memory_bytes)
    )
    return result


def compare(
    trace: Path,
    *,
    schemes: Sequence[str] = (),
    rate_bps: float | None = None,
    latency_s: float = 0,
    clock: str = "real",
    repeat: int = 5,
    wire: str | None = None,
    announce: bool = False,
) -> dict[str, Any]:
    """Moves a trace's gradients by each scheme between threads of this process; tells bytes, seconds and correctness.

    schemes: names of schemes(), or "auto"; all, if none are named. rate_bps (bits a second), latency_s (seconds): of
    each worker's link, in each direction; unshaped if not given. clock: "real", or "virtual", where each worker's
    computing is recorded and replayed on the link. repeat: how often each step is made; seconds are the median. wire:
    the type that values cross as, "f32", "f16" or "bf16"; their own if not given. announce: rows are told ahead of
    their values, by the schemes that use it. Raises InputError for what is no trace.
    """
    if clock not in ("real", "virtual"):
        raise _native.InputError(f"there is no clock '{clock}': real or virtual")
    result: dict[str, Any] = json.loads(
        _analysis.compare_json(
            os.fspath(trace), list(schemes), rate_bps, latency_s, clock == "virtual", repeat, wire, announce
        )
    )
    return result
