"""Emulates a GPU for torch: CPU tensors are its memory, and streams execute when something waits for them.

Replaces sparsesync.torch.device.CudaDevice in a build with SPARSESYNC_CUDA=EMULATED, which runs the CUDA kernels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from sparsesync import _native
from sparsesync.torch import device, gradients, module_state
from sparsesync.torch.schedule import bucket, scalar_allreduce
from sparsesync.torch.sparsify import sparsifier_runtime
from torch._C import _to_dlpack


class Allocator:
    """Replaces torch's caching allocator. Counts bytes and remembers which addresses it returned. Freed memory stays allocated, because
    a stream may still use it.
    """

    def __init__(self) -> None:
        self.given: dict[int, tuple[ctypes.Array[ctypes.c_char], int]] = {}
        self._had: list[Any] = []
        self.calls: list[tuple[int, int]] = []  # bytes, stream
        self.is_empty = False  # whether allocations fail

    @property
    def in_use(self) -> int:
        return sum(size for _, size in self.given.values())

    def allocate(self, size: int, stream: int) -> int:
        self.calls.append((size, stream))
        if self.is_empty:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.\nMore of it.")
        memory = ctypes.create_string_buffer(size + 256)
        address = (ctypes.addressof(memory) + 255) // 256 * 256
        self.given[address] = memory, size
        return address

    def free(self, address: int) -> None:
        self._had.append(self.given.pop(address))


class EmulatedDevice(device.CpuDevice):
    """Replaces CudaDevice. torch's calls are complete when they return. The library's writes are visible after waiting for `current`."""

    def __init__(self, number: int = 0, memory_bytes: int | None = None) -> None:
        self.name = f"cuda:{number}"
        self.allocator = Allocator()
        self.communication = _native.emulated.new_stream()
        self.current = _native.emulated.new_stream()
        self._native = _native.Device(number, self.communication, self.allocator, memory_bytes)

    def session(self, memory_bytes: int | None) -> dict[str, Any]:
        return {"device": self._native}

    def stream(self) -> int:
        return self.current

    def view(self, tensor: torch.Tensor) -> Any:
        # Like that of CudaDevice, it can be consumed once.
        return _to_dlpack(tensor)

    @property
    def native(self) -> _native.Device:
        return self._native

    def identity(self) -> str:
        return "the emulated one"

    def synchronize(self) -> None:
        """Waits for `current` only, like a program that waits for the stream it works in."""
        _native.emulated.synchronize(self.current)


    def settle(self) -> None:
        """Called before memory is freed that a stream may still write to."""
        self.synchronize()


class LateDevice(EmulatedDevice):
    """torch's writes become visible after waiting for `current`. A reader that does not wait sees other values."""

    def __init__(self, number: int = 0, memory_bytes: int | None = None) -> None:
        super().__init__(number, memory_bytes)
        self._kept: list[torch.Tensor] = []  # the stream writes to them

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        right = tensor.clone()
        tensor.data.fill_(77)  # does not raise the version: the program did not change the tensor
        _native.emulated.write(tensor, right, self.current)
        self._kept.append(tensor)
        return tensor

    def synchronize(self) -> None:
        super().synchronize()
        self._kept.clear()


class WaitingResult(gradients.Result):
    """Waits after each write, for programs that use results immediately. With a real GPU, torch's calls use the same stream and need no
    wait.
    """

    def write(self, out: torch.Tensor) -> None:
        super().write(out)
        _native.emulated.synchronize(self.device.stream())

    def copy(self, indices: torch.Tensor, values: torch.Tensor) -> None:
        super().copy(indices, values)
        _native.emulated.synchronize(self.device.stream())


class WaitingSparsifier(_native.Sparsifier):
    """Waits in the same manner for writes of sparsifiers, and for gradients that they read again. The next calls of torch go to the
    stream that the call names.
    """

    def write_norms(self, out: Any, stream: int) -> None:
        super().write_norms(out, stream)
        _native.emulated.synchronize(stream)

    def write_state(self, tensor: int, residual: Any, velocity: Any, stream: int) -> None:
        super().write_state(tensor, residual, velocity, stream)
        _native.emulated.synchronize(stream)

    def read_state(self, tensor: int, residual: Any, velocity: Any, stream: int) -> None:
        super().read_state(tensor, residual, velocity, stream)
        _native.emulated.synchronize(stream)

    def undo(self, gradients: Any, streams: Sequence[int]) -> None:
        super().undo(gradients, streams)
        for stream in streams:
            _native.emulated.synchronize(stream)


def use(where: torch.device, what: str, memory_bytes: int | None) -> EmulatedDevice:
    """Replaces sparsesync.torch.device.use()."""
    if where.type != "cpu":
        return _use(where, what, memory_bytes)
    return EmulatedDevice(0, memory_bytes)


_use: Any = device.use


def install() -> None:
    """Puts all modules on the emulated GPU from now on."""
    device.use = use
    for each in (bucket, module_state, scalar_allreduce, sparsifier_runtime):
        each.Result = WaitingResult
    sparsifier_runtime.NativeSparsifier = WaitingSparsifier
