"""Probes of one part of an installation each: ``python -m sparsesync.doctor.probes NAME SECONDS FILE`` writes facts as JSON.

A part that is missing or too old is a fact: ``problem``, and ``missing`` if it is not installed. A probe may also crash or hang.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from sparsesync.doctor import processes

Facts = dict[str, Any]


def build(_: float) -> Facts:
    """Returns the provenance of the compiled module."""
    from sparsesync import _native

    return _native.provenance()


def numpy(_: float) -> Facts:
    """Returns the version of NumPy."""
    try:
        import numpy
    except ModuleNotFoundError as error:
        return _missing(error)
    return {"version": numpy.__version__}


def torch(_: float) -> Facts:
    """Returns the version of torch, and whether it has Gloo. Imports this library's package for it, too."""
    try:
        import torch
        import torch.distributed
    except ModuleNotFoundError as error:
        return _missing(error)
    facts: Facts = {"version": torch.__version__, "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available()}
    try:
        import sparsesync.torch  # noqa: F401
    except Exception as error:
        facts["problem"] = f"sparsesync.torch cannot be imported: {type(error).__name__}: {error}"
    return facts


def ucx(_: float) -> Facts:
    """Returns the version of UCX."""
    from sparsesync import _native

    try:
        return {"version": _native.ucx_version()}
    except _native.Error as error:
        return {"problem": str(error)}


def mpi(seconds: float) -> Facts:
    """Initializes MPI in this process alone, and returns the version of the library."""
    from sparsesync import _native

    try:
        world = _native.MpiWorld(seconds)
    except _native.Error as error:
        return {"problem": str(error)}
    facts = {"version": mpi_library()}
    world.close()
    return facts


def gpu(seconds: float) -> Facts:
    """Returns the NVIDIA driver and the GPUs, and the CUDA and NCCL support of the build."""
    from sparsesync import _native

    driver = _driver(seconds)
    if driver:
        with contextlib.suppress(ModuleNotFoundError):
            import torch  # noqa: F401  its NCCL is found then
    return {"driver": driver, **_native.device_facts()}


# Each takes its time limit in seconds.
PROBES: dict[str, Callable[[float], Facts]] = {probe.__name__: probe for probe in (build, numpy, torch, ucx, mpi, gpu)}


def mpi_library() -> str:
    """Returns the version of the MPI library that this process has loaded, or an empty string."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        loaded = sorted({line.split()[-1] for line in maps if "/libmpi.so" in line})
    if not loaded:
        return ""
    text, length = ctypes.create_string_buffer(1 << 13), ctypes.c_int()
    ctypes.CDLL(loaded[0]).MPI_Get_library_version(text, ctypes.byref(length))
    return text.value.decode(errors="replace").partition(",")[0]


def _driver(seconds: float) -> list[str]:
    """Returns name and driver version of each GPU, as nvidia-smi prints them; empty without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    done = subprocess.run(
        [program, "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    return done.stdout.splitlines() if done.returncode == 0 else []


def _missing(error: ModuleNotFoundError) -> Facts:
    return {"missing": True, "problem": str(error)}


def main(arguments: list[str]) -> None:
    name, seconds, path = arguments
    processes.limit_this_process(float(seconds) + 1)  # after the limit of the process that started this one
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    processes.Report(path).add(**PROBES[name](float(seconds)))


if __name__ == "__main__":
    main(sys.argv[1:])
