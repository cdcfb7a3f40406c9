"""Where a module's gradients are: on the CPU, or on one GPU with torch's streams and torch's allocator.

All that a GPU needs beyond a CPU is here: which stream writes a gradient, where the session's memory comes from, and how
an array is handed over. Nothing here waits for a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _to_dlpack

from sparsesync import _native

if TYPE_CHECKING:
    from sparsesync.torch.gradients import Synchronized


class CpuDevice:
    """The host: work is done when a call returns."""

    name = "cpu"
    one_backward = False  # in a process at a time

    def session(self, memory_bytes: int | None) -> dict[str, Any]:
        """Arguments of the Session that works here."""
        return {"memory_bytes": memory_bytes}

    def stream(self) -> int:
        """The stream that torch's calls go to in this thread, as a number."""
        return 0

    def stamp(self) -> Any:
        """The time at which what this thread has given its stream so far is done."""
        return time.perf_counter()

    def seconds(self, began: Any, ended: Any) -> float:
        """Between two of these."""
        return float(ended - began)

    def view(self, tensor: torch.Tensor) -> Any:
        """A tensor as the library takes it: the same memory."""
        return tensor

    @property
    def native(self) -> _native.Device | None:
        """What the session works with; nothing on the CPU."""
        return None

    def identity(self) -> str:
        """Which one it is among all of this machine: not by its number, which each process may give otherwise."""
        return self.name


class CudaDevice(CpuDevice):
    """A GPU. The session has a stream of torch's for itself, and its workspaces are from torch's caching allocator.

    A session waits, by events, for the streams in which torch writes what it is given, and its results are written in the
    stream that torch works in then: what torch does next finds them there, and frees memory as ever. What the session's own
    stream reads is kept until that has come to its end: torch need not be told of it (Tensor.record_stream).
    """

    one_backward = True  # torch has a thread for each GPU, which runs the backward passes of all threads

    def __init__(self, number: int, memory_bytes: int | None) -> None:
        self.number = number
        self.name = f"cuda:{number}"
        # High priority: else the small kernels of a session wait for whole waves of the backward pass.
        self.communication = torch.cuda.Stream(number, priority=-1)  # type: ignore[no-untyped-call]
        self._native = _native.Device(
            number, self.communication.cuda_stream, TorchAllocator(number), memory_bytes
        )

    def session(self, memory_bytes: int | None) -> dict[str, Any]:
        return {"device": self._native}

    def stream(self) -> int:
        return int(torch.cuda.current_stream(self.number).cuda_stream)

    def stamp(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, began: Any, ended: Any) -> float:
        # Of a step whose gradients were waited for: it is over.
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3

    def view(self, tensor: torch.Tensor) -> Any:
        # Not Tensor.__dlpack__, which may let streams wait for each other.
        return _to_dlpack(tensor)

    @property
    def native(self) -> _native.Device:
        return self._native

    def identity(self) -> str:
        return str(torch.cuda.get_device_properties(self.number).uuid)


class TorchAllocator:
    """torch's caching allocator, as sparsesync.Device takes one."""

    def __init__(self, number: int) -> None:
        self._number = number

    def allocate(self, size: int, stream: int) -> int:
        return int(torch.cuda.caching_allocator_alloc(size, self._number, stream))

    def free(self, address: int) -> None:
        torch.cuda.caching_allocator_delete(address)  # type: ignore[no-untyped-call]


def device_of(parameters: Sequence[Synchronized]) -> torch.device:
    """Where they are. Raises UnsupportedError where that is two places."""
    first = parameters[0]
    for each in parameters:
        if each.parameter.device != first.parameter.device:
            raise _native.UnsupportedError(
                f"parameter '{first.name}' is on {first.parameter.device} and parameter '{each.name}' on "
                f"{each.parameter.device}: move the module to one device, such as module.to('{first.parameter.device}')"
            )
    return first.parameter.device


def use(where: torch.device, what: str, memory_bytes: int | None) -> CpuDevice:
    """The device of a session of its own. Raises UnsupportedError where gradients cannot be synchronized there, DeviceError for
    a GPU that this build, or this machine, has not.

    what: is there; stands before the reason in the text.
    memory_bytes: a budget for the workspace.
    """
    if where.type == "cpu":
        return CpuDevice()
    if where.type != "cuda":
        raise _native.UnsupportedError(
            f"{what} is on {where}: gradients are synchronized on the CPU, and on GPUs by CUDA: move the module to one of these, "
            "from the meta device by module.to_empty(device=...)"
        )
    facts = _native.device_facts()
    if not facts["compiled_in"]:
        raise _native.DeviceError(
            f"{what} is on {where}: {facts['problem']}: pip install . -C cmake.define.SPARSESYNC_CUDA=ON"
        )
    return CudaDevice(where.index or 0, memory_bytes)
