"""Sparse gradient synchronization: sessions, transports, kernels and schedules, and tools that study traces.

`sparsesync.torch` is the PyTorch package, `sparsesync.report` draws reports. The library is `sparsesync._native`; traces,
profile, compare and plan are `sparsesync._analysis`, which is loaded when one of them is first used: ImportError says how to get it
where a build has none. Other failures raise an Error.
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
    "write_model",
]

_MODULES = {
    **dict.fromkeys(("compare", "plan", "profile"), "analysis"),
    **dict.fromkeys(("Trace", "TraceWriter", "write_model"), "_analysis"),
}


class SupportsDLPack(Protocol):
    """An array that others can look at without a copy: NumPy's, torch's, and all that speak DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Its memory."""

    def __dlpack_device__(self) -> tuple[Any, Any]:
        """Where that is."""


if not TYPE_CHECKING:  # who checks types knows all names, and so that others are wrong

    def __getattr__(name: str) -> object:
        # When it is first asked for: reports need nothing compiled.
        if name not in __all__:
            raise AttributeError(f"module 'sparsesync' has no attribute '{name}'")
        module = "errors" if name.endswith("Error") else _MODULES.get(name, "_native")
        if name in _MODULES:
            _laboratory.expect_laboratory(f"sparsesync.{name}")
        return getattr(importlib.import_module(f"sparsesync.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
