"""The device of a module's gradients: the CPU, or one GPU with torch's streams and torch's allocator.

All GPU specifics are here: which stream writes a gradient, who allocates the session's memory, and how an array is
passed. No function here waits for a GPU.
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
    """The host. Work is complete when a call returns."""

    name = "cpu"
    one_backward = False  # torch runs the backward passes of all threads in one thread

    def session(self, memory_bytes: int | None) -> dict[str, Any]:
        """Returns the arguments for a Session on this device."""
        return {"memory_bytes": memory_bytes}

    def stream(self) -> int:
        """Returns the stream that torch uses in this thread, as a number."""
        return 0

    def stamp(self) -> Any:
        """Records the time at which the work queued so far by this thread completes."""
        return time.perf_counter()

    def seconds(self, began: Any, ended: Any) -> float:
        """Returns the seconds between two stamps."""
        return float(ended - began)

    def view(self, tensor: torch.Tensor) -> Any:
        """Returns a tensor in the form that the library takes, with the same memory."""
        return tensor

    @property
    def native(self) -> _native.Device | None:
        """The device object of the session; None on the CPU."""
        return None

    def identity(self) -> str:
        """Returns an identifier that is the same in all processes of a machine.

        The device number is not: processes may number devices differently.
        """
        return self.name


class CudaDevice(CpuDevice):
    """A GPU. The session has one of torch's streams, and its workspaces are from torch's caching allocator.

    The session waits, by events, for the streams in which torch writes gradients. Results are written in torch's
    current stream, so torch's next operation sees them, and torch frees memory as usual. Tensors that the session's
    stream reads are kept alive until it has read them, so Tensor.record_stream is not needed.
    """

    one_backward = True  # torch has one backward thread for each GPU

    def __init__(self, number: int, memory_bytes: int | None) -> None:
        self.number = number
        self.name = f"cuda:{number}"
        # High priority: otherwise the session's small kernels wait behind large kernels of the backward pass.
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
        # Does not block: the step's gradients have already arrived.
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3

    def view(self, tensor: torch.Tensor) -> Any:
        # Tensor.__dlpack__ is avoided, because it may make streams wait for each other.
        return _to_dlpack(tensor)

    @property
    def native(self) -> _native.Device:
        return self._native

    def identity(self) -> str:
        return str(torch.cuda.get_device_properties(self.number).uuid)


class TorchAllocator:
    """torch's caching allocator, in the form that sparsesync.Device takes."""

    def __init__(self, number: int) -> None:
        self._number = number

    def allocate(self, size: int, stream: int) -> int:
        return int(torch.cuda.caching_allocator_alloc(size, self._number, stream))

    def free(self, address: int) -> None:
        torch.cuda.caching_allocator_delete(address)  # type: ignore[no-untyped-call]


def device_of(parameters: Sequence[Synchronized]) -> torch.device:
    """Returns the device of all parameters. Raises UnsupportedError if they are on several devices."""
    first = parameters[0]
    for each in parameters:
        if each.parameter.device != first.parameter.device:
            raise _native.UnsupportedError(
                f"parameter '{first.name}' is on {first.parameter.device} and parameter '{each.name}' on "
                f"{each.parameter.device}: move the module to one device, such as module.to('{first.parameter.device}')"
            )
    return first.parameter.device


def use(where: torch.device, what: str, memory_bytes: int | None) -> CpuDevice:
    """Returns the device for a new session.

    what: the subject of error messages. memory_bytes: a budget for the workspace.

    Raises UnsupportedError if gradients cannot be synchronized on this kind of device, and DeviceError if the build or
    the machine lacks the GPU.
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
