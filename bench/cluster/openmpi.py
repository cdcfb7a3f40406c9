"""Calls OpenMPI's MPI_Allreduce from Python: the MPI baseline without sparsesync."""

from __future__ import annotations

import ctypes

import torch


class OpenMpi:
    """The processes that mpirun started. Create one object per process, and call it from one thread."""

    def __init__(self) -> None:
        # RTLD_GLOBAL: OpenMPI's plugins look up its symbols.
        self._mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
        self._call("MPI_Init", None, None)
        self._world = self._handle("ompi_mpi_comm_world")
        self._types = {torch.float32: self._handle("ompi_mpi_float"), torch.float64: self._handle("ompi_mpi_double")}
        self._operations = {"sum": self._handle("ompi_mpi_op_sum"), "max": self._handle("ompi_mpi_op_max")}
        self.rank = self._number("MPI_Comm_rank")
        self.size = self._number("MPI_Comm_size")

    def all_reduce(self, tensor: torch.Tensor, operation: str = "sum") -> None:
        """Overwrites a tensor with the sum or the maximum over all workers."""
        assert tensor.is_contiguous()
        # MPI_IN_PLACE is the address 1.
        data, count = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_int(tensor.numel())
        of = (self._types[tensor.dtype], self._operations[operation])
        self._call("MPI_Allreduce", ctypes.c_void_p(1), data, count, *of, self._world)

    def close(self) -> None:
        self._call("MPI_Finalize")

    def _handle(self, name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self._mpi, name)))

    def _number(self, name: str) -> int:
        number = ctypes.c_int()
        self._call(name, self._world, ctypes.byref(number))
        return number.value

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._mpi, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} returned {status}")
