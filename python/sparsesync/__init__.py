"""Sparse gradient synchronization: traces, profile, compare and plan, kernels, transports and sessions.

`sparsesync.torch` is the PyTorch package, `sparsesync.report` draws reports. What a name means, with shapes and units,
stands where it is defined; what goes wrong is an Error.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
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
        Trace,
        TraceWriter,
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
        write_model,
    )
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
    from sparsesync.tools import compare, plan, profile

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

_TOOLS = ("compare", "plan", "profile")


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
        module = "tools" if name in _TOOLS else "errors" if name.endswith("Error") else "_native"
        return getattr(importlib.import_module(f"sparsesync.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
