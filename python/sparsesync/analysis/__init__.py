"""The commands ``profile``, ``compare`` and ``plan`` as functions that return their JSON documents."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from sparsesync import _laboratory

_laboratory.expect_laboratory("sparsesync.analysis")

from sparsesync import _analysis, _native  # noqa: E402 (a build may lack _analysis)

Path = str | os.PathLike[str]


def profile(trace: Path, *, partitions: Sequence[int] = ()) -> dict[str, Any]:
    """Measures how sparse the gradients of a trace are, how much the workers' rows overlap, and how skewed the rows
    are.

    Args:
        trace: Path of a trace, as ``record_trace()`` or ``TraceWriter`` writes it.
        partitions: Numbers of equal row ranges to compute skewness for; 8, 16, 64 and 128 if empty.

    Returns:
        The JSON document of ``sparsesync profile``. docs/tools/profile.md defines each measure.

    Raises:
        InputError: ``trace`` is not a trace.

    Example:
        >>> import numpy as np
        >>> import sparsesync
        >>> writer = sparsesync.TraceWriter("trace", [sparsesync.TensorSpec("table", 1000, 8)], workers=2, steps=1)
        >>> for worker in range(2):
        ...     writer.write(worker, 0, [np.array([worker, 5, 7])])  # rows that the worker touches
        >>> writer.commit()
        >>> tensor = sparsesync.profile("trace")["tensors"][0]
        >>> round(tensor["overlap"]["mean"], 3), round(tensor["densification"]["2"], 3)
        (0.667, 1.333)
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
    """Predicts the step time of each scheme for other numbers of workers.

    Describe the network by a link (``rate_bps`` and ``latency_s``) or by a calibration file (``network``).

    Args:
        trace: Path of a trace.
        workers: Numbers of workers to predict, each from 2 to 65,536.
        rate_bps: Rate of each worker's link, in bit/s in each direction.
        latency_s: Latency of the link, in seconds.
        network: Path of the file that ``sparsesync calibrate`` writes.
        memory_bytes: Workspace limit of each worker, in bytes; no limit if not given.

    Returns:
        The JSON document of ``sparsesync plan``.

    Raises:
        InputError: ``trace`` is not a trace, or the network is missing or unusable.

    Example:
        >>> import numpy as np
        >>> import sparsesync
        >>> writer = sparsesync.TraceWriter("trace", [sparsesync.TensorSpec("table", 1000, 8)], workers=2, steps=1)
        >>> for worker in range(2):
        ...     writer.write(worker, 0, [np.array([worker, 5, 7])])  # rows that the worker touches
        >>> writer.commit()
        >>> document = sparsesync.plan("trace", workers=[2, 64], rate_bps=10e9, latency_s=50e-6)
        >>> [each["n"] for each in document["workers"]]
        [2, 64]
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
    """Synchronizes the gradients of a trace with each scheme and measures bytes, seconds and correctness.

    The workers are threads of this process. They send every message for real.

    Args:
        trace: Path of a trace.
        schemes: Names from ``sparsesync.schemes()``, or ``"auto"``; every scheme if empty.
        rate_bps: Rate of each worker's link, in bit/s in each direction; unlimited if not given.
        latency_s: Latency of each link, in seconds.
        clock: ``"real"`` measures wall-clock time. ``"virtual"`` records the computing time of each worker and replays
            it on the simulated link.
        repeat: Number of runs of each step; the result has the median of their seconds.
        wire: Type of the values in messages, ``"f32"``, ``"f16"`` or ``"bf16"``; the type of the trace if not given.
        announce: Exchange row indices before the values, in the schemes that support it.

    Returns:
        The JSON document of ``sparsesync compare``.

    Raises:
        InputError: ``trace`` is not a trace, or an option is unknown.

    Example:
        >>> import numpy as np
        >>> import sparsesync
        >>> writer = sparsesync.TraceWriter("trace", [sparsesync.TensorSpec("table", 1000, 8)], workers=2, steps=1)
        >>> for worker in range(2):
        ...     writer.write(worker, 0, [np.array([worker, 5, 7])])  # rows that the worker touches
        >>> writer.commit()
        >>> document = sparsesync.compare("trace", schemes=["balanced", "all_gather"], repeat=1)
        >>> [(scheme["name"], scheme["correct"]) for scheme in document["schemes"]]
        [('balanced', True), ('all_gather', True)]
    """
    if clock not in ("real", "virtual"):
        raise _native.InputError(f"there is no clock '{clock}': real or virtual")
    result: dict[str, Any] = json.loads(
        _analysis.compare_json(
            os.fspath(trace), list(schemes), rate_bps, latency_s, clock == "virtual", repeat, wire, announce
        )
    )
    return result
