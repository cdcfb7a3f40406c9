"""Conversion of gradients: from torch to the library, and results back to torch."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch.device import CpuDevice

DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
}

COMPLEX = {torch.complex64: "f32", torch.complex128: "f64"}  # sent as pairs of these

Submitted = torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None


class Kind(enum.StrEnum):
    """How a parameter's gradient is sent."""

    SPARSE = "sparse"  # rows; the gradient is a sparse tensor
    ROWS = "rows"  # rows; the gradient is dense with few nonzero rows
    DENSE = "dense"  # all elements
    SPARSIFIED = "sparsified"  # the elements that a sparsifier selects; the gradient is dense

    @property
    def has_rows(self) -> bool:
        """Whether the gradient is sent as rows. Otherwise all elements are considered."""
        return self in (Kind.SPARSE, Kind.ROWS)


@dataclasses.dataclass(frozen=True)
class Synchronized:
    """A parameter whose gradient is synchronized."""

    index: int
    name: str
    parameter: torch.nn.Parameter

    def spec(self, kind: Kind) -> _native.TensorSpec:
        shape = self.parameter.shape
        elements = self.parameter.numel() * (2 if self.parameter.is_complex() else 1)
        dtype = {**DTYPES, **COMPLEX}[self.parameter.dtype]
        if not kind.has_rows or len(shape) == 0:
            return _native.TensorSpec(self.name, elements, 1, dtype)
        return _native.TensorSpec(self.name, shape[0], elements // shape[0], dtype)


def synchronized(named: Iterable[tuple[str, torch.nn.Parameter]]) -> list[Synchronized]:
    """Returns the parameters that have elements, numbered. Raises InputError if there are none, and UnsupportedError like check()."""
    parameters = [Synchronized(index, *each) for index, each in enumerate(each for each in named if each[1].numel() > 0)]
    if not parameters:
        raise _native.InputError(
            "no parameter of the module requires a gradient: there is nothing to synchronize; train without a "
            "DistributedDataParallel"
        )
    for each in parameters:
        check(each)
    return parameters


def check(parameter: Synchronized) -> None:
    """Raises UnsupportedError if a gradient of the parameter cannot be synchronized."""
    tensor = parameter.parameter
    if tensor.dtype not in DTYPES and tensor.dtype not in COMPLEX:
        raise _native.UnsupportedError(
            f"parameter '{parameter.name}' is {tensor.dtype}: gradients are f32, f64, f16, bf16, complex64 or complex128; set "
            "requires_grad=False, or another dtype"
        )
    if tensor.layout is not torch.strided:
        raise _native.UnsupportedError(
            f"parameter '{parameter.name}' is {tensor.layout}: only strided ones are synchronized; replace it by "
            "its to_dense()"
        )


def submitted(gradient: torch.Tensor | None, kind: Kind) -> Submitted:
    """Converts a gradient to the form that Session.reduce takes. Values are copied only if they are not contiguous."""
    if gradient is None:
        return None
    if not gradient.is_sparse:
        return gradient.detach().contiguous()
    if not kind.has_rows or gradient.sparse_dim() != 1:
        return gradient.detach().to_dense()
    return gradient._indices()[0].contiguous(), gradient._values().detach().contiguous()


def counts_changes(gradient: torch.Tensor) -> bool:
    """Returns whether _version counts changes of this tensor alone. Tensors that share memory also share the counter."""
    if gradient.is_inference():
        return False
    return gradient.is_sparse or gradient.untyped_storage().nbytes() == gradient.numel() * gradient.element_size()


def handed_over(given: Submitted, device: CpuDevice) -> Any:
    """Returns the tensors as views that the library can read."""
    if given is None:
        return None
    if isinstance(given, tuple):
        return tuple(device.view(_reals(each)) for each in given)
    return device.view(_reals(given))


def _reals(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a complex tensor as pairs of reals, in the same memory unless it is conjugate."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def nonzero_rows(gradient: torch.Tensor) -> torch.Tensor:
    """Returns the rows with a nonzero element; for a sparse gradient, all rows that it names."""
    if gradient.is_sparse:
        return distinct(gradient._indices()[0])
    rows: torch.Tensor = torch.nonzero((gradient.detach().unsqueeze(-1).flatten(1) != 0).any(dim=1)).flatten()
    return rows


def compacted(dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the rows of a dense tensor that have a nonzero element, and their values."""
    dense = dense.detach()
    if dense.device.type == "cpu" and dense.dtype in DTYPES:  # one pass, seven times as fast as torch's three
        rows, values = _native.compact(dense.contiguous())
        return torch.from_numpy(rows), torch.from_numpy(values).view(dense.dtype).view(len(rows), *dense.shape[1:])
    found = nonzero_rows(dense)
    return found, dense[found]


def replace_rows(dense: torch.Tensor, rows: torch.Tensor, result: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Replaces the contents of a dense tensor by a result. rows: those with nonzero elements so far."""
    with torch.no_grad():
        dense.index_fill_(0, rows, 0)
        dense.index_copy_(0, *result)


def distinct(rows: torch.Tensor) -> torch.Tensor:
    """Returns the distinct rows, in increasing order."""
    once: torch.Tensor = torch.unique(rows)
    return once


def wait_for_step(session: _native.Session, tickets: Sequence[_native.Ticket]) -> None:
    """Waits for a step's phases, the last one first. Raises the error of the earliest phase that failed.

    A step that exceeds some worker's memory may be restarted in more rounds, but only while no worker has waited for
    its earlier phases.
    """
    first: _native.Error | None = None
    for ticket in reversed(tickets):
        try:
            session.wait(ticket)
        except _native.Error as error:  # an exception from a signal handler ends the wait
            first = error
    if first is not None:
        raise first


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a bucket's step for one tensor. Methods write it in torch's current stream."""

    session: _native.Session
    bucket: int
    place: int
    device: CpuDevice

    def rows(self) -> int | None:
        """Returns the number of rows; None if the result is dense."""
        return self.session.result_rows(self.bucket, self.place)

    def write(self, out: torch.Tensor) -> None:
        """Writes all elements to a dense tensor."""
        self.session.write_dense(self.bucket, self.place, self.device.view(_reals(out)), self.device.stream())

    def copy(self, indices: torch.Tensor, values: torch.Tensor) -> None:
        """Writes the rows. Both tensors have rows() entries."""
        view = self.device.view
        self.session.copy_result(self.bucket, self.place, view(indices), view(_reals(values)), self.device.stream())


def dense_gradient(tensor: torch.nn.Parameter) -> torch.Tensor:
    """Returns the parameter's gradient to write to, a new one unless it is dense already."""
    if tensor.grad is None or tensor.grad.is_sparse:
        tensor.grad = torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)
    return tensor.grad


def write_dense(result: Result, tensor: torch.nn.Parameter, dtype: torch.dtype) -> None:
    """Writes a result of this dtype to the parameter's dense gradient, in place."""
    gradient = dense_gradient(tensor)
    if gradient.is_contiguous() and gradient.dtype == dtype and not gradient.is_conj():
        result.write(gradient.detach())
        return
    whole = torch.empty(gradient.shape, dtype=dtype, device=gradient.device)
    result.write(whole)
    gradient.copy_(whole)


def write_back(result: Result, parameter: Synchronized, kind: Kind) -> None:
    """Writes a bucket's result to the parameter's gradient: sparse if the gradient is, or would be; otherwise dense, in place."""
    tensor = parameter.parameter
    gradient = tensor.grad
    sparse = kind is Kind.SPARSE if gradient is None else gradient.is_sparse
    if sparse:
        tensor.grad = _sparse_result(result, tensor)
        return
    write_dense(result, tensor, tensor.dtype)


def rows_of(result: Result, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the rows of a result, for a tensor of this shape, and their values. A dense result has its nonzero rows."""
    rows = result.rows()
    if rows is None:
        whole = torch.empty(tuple(shape), dtype=dtype, device=device)
        result.write(whole)
        indices = nonzero_rows(whole)
        return indices, whole[indices]
    indices = torch.empty(rows, dtype=torch.int64, device=device)
    values = torch.empty((rows, *shape[1:]), dtype=dtype, device=device)
    result.copy(indices, values)
    return indices, values


def _sparse_result(result: Result, tensor: torch.Tensor) -> torch.Tensor:
    indices, values = rows_of(result, tensor.shape, tensor.dtype, tensor.device)
    return torch.sparse_coo_tensor(
        indices.unsqueeze(0), values, tensor.shape, is_coalesced=True, check_invariants=False
    )


def clear(parameters: Iterable[torch.Tensor], set_to_none: bool) -> None:
    """Clears gradients like zero_grad()."""
    for each in parameters:
        if each.grad is not None and set_to_none:
            each.grad = None
        elif each.grad is not None:
            each.grad.detach_().zero_()
