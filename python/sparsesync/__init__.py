"""Sparse gradient synchronization: sessions, transports, kernels, schedules, and tools that study traces.

``sparsesync.torch`` is the PyTorch package, and ``sparsesync.report`` draws HTML reports. The functions and classes
here work on NumPy arrays and on any array that supports DLPack.

Names are imported on first use. ``profile``, ``compare``, ``plan``, ``Trace``, ``TraceWriter`` and ``write_model``
belong to the optional trace laboratory. A build without it raises ImportError with the command that installs it. All
other failures raise a subclass of ``Error``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

from sparsesync import _laboratory

if TYPE_CHECKING:
    from sparsesync._analysis import Trace, TraceWriter, write_model
    from sparsesync._native import (
        Device,
        Layer,
        LocalNetwork,
        MpiWorld,
        ScheduledStep,
        SchedulePlanner,
        Session,
        Sparsifier,
        TensorSpec,
        Ticket,
        Transport,
        coalesce,
        compact,
        decode_indices,
        device_facts,
        encode_indices,
        largest_chunks,
        nccl_over,
        provenance,
        schedules,
        schemes,
        ucx_over,
        ucx_version,
    )
    from sparsesync.analysis import compare, plan, profile
    from sparsesync.errors import (
        AbortedError,
        AgreementError,
        BudgetError,
        ClosedError,
        ContractError,
        CorruptDataError,
        DeadlineError,
        DeviceError,
        DeviceMemoryError,
        Error,
        InputError,
        IoError,
        OrderError,
        PeerError,
        PeerLostError,
        ProtocolError,
        RefusedError,
        UnsupportedError,
    )

__all__ = [
    "AbortedError",
    "AgreementError",
    "BudgetError",
    "ClosedError",
    "ContractError",
    "CorruptDataError",
    "DeadlineError",
    "Device",
    "DeviceError",
    "DeviceMemoryError",
    "Error",
    "InputError",
    "IoError",
    "Layer",
    "LocalNetwork",
    "MpiWorld",
    "OrderError",
    "PeerError",
    "PeerLostError",
    "ProtocolError",
    "RefusedError",
    "SchedulePlanner",
    "ScheduledStep",
    "Session",
    "Sparsifier",
    "SupportsDLPack",
    "TensorSpec",
    "Ticket",
    "Trace",
    "TraceWriter",
    "Transport",
    "UnsupportedError",
    "coalesce",
    "compact",
    "compare",
    "decode_indices",
    "device_facts",
    "encode_indices",
    "largest_chunks",
    "nccl_over",
    "plan",
    "profile",
    "provenance",
    "schedules",
    "schemes",
    "ucx_over",
    "ucx_version",
    "write_model",
]

_MODULES = {
    **dict.fromkeys(("compare", "plan", "profile"), "analysis"),
    **dict.fromkeys(("Trace", "TraceWriter", "write_model"), "_analysis"),
}


class SupportsDLPack(Protocol):
    """An array that can be read without a copy, such as a NumPy array or a PyTorch tensor.

    This is a protocol for type annotations. Pass any object that supports DLPack; there is nothing to inherit from.

    Example:
        >>> import numpy as np
        >>> import sparsesync
        >>> def byte_count(array: sparsesync.SupportsDLPack) -> int:
        ...     return np.from_dlpack(array).nbytes
        >>> byte_count(np.zeros((4, 2), dtype=np.float32))
        32
    """

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a DLPack capsule that shares the array's memory."""

    def __dlpack_device__(self) -> tuple[Any, Any]:
        """Returns the device type and the device number of the array's memory."""


if not TYPE_CHECKING:  # a type checker sees the imports above, and reports unknown names

    def __getattr__(name: str) -> object:
        # Imported on first use, because sparsesync.report runs without the compiled modules.
        if name not in __all__:
            raise AttributeError(f"module 'sparsesync' has no attribute '{name}'")
        module = "errors" if name.endswith("Error") else _MODULES.get(name, "_native")
        if name in _MODULES:
            _laboratory.expect_laboratory(f"sparsesync.{name}")
        return getattr(importlib.import_module(f"sparsesync.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
