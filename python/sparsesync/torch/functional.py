"""``all_reduce()``: sums of tensors with few nonzero rows over workers, without a wrapper."""

from __future__ import annotations

import functools
import weakref
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from sparsesync import _native
from sparsesync.torch import device as torch_device
from sparsesync.torch.backend import BackendOptions, SparseSyncBackend
from sparsesync.torch.launch import ALONE, Group, connect, initialize_under_torchrun
from sparsesync.torch.sparse_reducer import Rows, SparseReducer, SparseWork


def all_reduce(
    tensor: torch.Tensor | tuple[torch.Tensor, torch.Tensor, int],
    group: Group | DeviceMesh = None,
    async_op: bool = False,
    *,
    reduction: str = "sum",
) -> SparseWork | Rows | None:
    """Sums a tensor with few nonzero rows over all workers of a group. All workers call it, with tensors of one shape and dtype.

    Each group has one session, which the first call opens. Its options are those of ``BackendOptions``, from the environment or from
    the group. Operations run one after the other in the background.

    Args:
        tensor: A sparse COO tensor, which the coalesced sum replaces, or a dense tensor ``[rows, ...]``, which the sum replaces. Or a
            tuple of row indices ``[nnz]``, dtype int64, in any order, values ``[nnz, ...]``, and the number of rows of the whole
            tensor. Values of repeated rows are added. It must not change before the operation has ended.
        group: As ``process_group`` of ``DistributedDataParallel``, or a device mesh with one dimension.
        async_op: Whether to return before the sum is there.
        reduction: ``"sum"`` or ``"mean"``.

    Returns:
        For a tensor None, for a tuple the increasing indices of the sum and their values. With ``async_op`` an object whose
        ``wait()`` waits for the sum, and whose ``result()`` is the list of these tensors. Rows whose sum is zero may be missing.

    Raises:
        InputError: An argument has the wrong type or shape.
        UnsupportedError: The dtype cannot be summed.
        AgreementError: The workers' tensors differ in shape or dtype.
        Error: The errors of a step, as in ``DistributedDataParallel``.

    Example:
        >>> import sparsesync.torch
        >>> import torch
        >>> gradient = torch.sparse_coo_tensor([[7, 3, 7]], torch.ones(3, 2), (10, 2))
        >>> sparsesync.torch.all_reduce(gradient, "alone")  # a group of this process alone
        >>> gradient.indices()
        tensor([[3, 7]])
        >>> indices, values = sparsesync.torch.all_reduce((torch.tensor([7, 3, 7]), torch.ones(3, 2), 10), "alone")
        >>> indices.tolist(), values.tolist()
        ([3, 7], [[1.0, 1.0], [2.0, 2.0]])
    """
    if reduction not in ("sum", "mean"):
        raise _native.InputError(f"there is no reduction '{reduction}': use 'sum' or 'mean'")
    if isinstance(tensor, torch.Tensor):
        if tensor.layout not in (torch.sparse_coo, torch.strided) or tensor.dim() == 0:
            raise _native.InputError(
                f"all_reduce: a tensor of the layout {tensor.layout} with {tensor.dim()} dimensions: give a sparse COO tensor, a dense one "
                "with rows, or (indices, values, rows)"
            )
        reducer = reducer_of(group, tensor.device)
        work = (reducer.all_reduce if tensor.is_sparse else reducer.all_reduce_dense)(tensor, reduction)
    else:
        indices, values, rows = _checked(tensor)
        work = reducer_of(group, values.device).all_reduce_rows(indices, values, rows, reduction)
    if async_op:
        return work
    work.wait()
    return None if isinstance(tensor, torch.Tensor) else cast(Rows, tuple(work.result()))


def _checked(given: Any) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Returns indices, values and the number of rows. Raises InputError if they do not fit together."""
    match given:
        case (torch.Tensor() as indices, torch.Tensor() as values, int() as rows):
            if indices.dtype is not torch.int64 or indices.dim() != 1:
                raise _native.InputError(f"all_reduce: indices of {indices.dtype} with {indices.dim()} dimensions: give one of int64")
            if values.dim() < 1 or len(values) != len(indices) or values.device != indices.device or values.is_sparse:
                raise _native.InputError(
                    f"all_reduce: {len(indices)} indices on {indices.device} and values of shape {tuple(values.shape)} on {values.device}: "
                    "give a row of values for each index, on one device"
                )
            if rows < 0:
                raise _native.InputError(f"all_reduce: a tensor of {rows} rows: give 0 or more")
            return indices, values, rows
    raise _native.InputError("all_reduce: give a tensor, or a tuple (indices, values, rows)")


_Reducers = dict[torch.device, SparseReducer]
_of_groups: weakref.WeakKeyDictionary[Any, _Reducers] = weakref.WeakKeyDictionary()


class _Workers:
    """Stands for workers that are not a group of torch.distributed."""


_alone, _of_launcher = _Workers(), _Workers()


def _group_of(given: Group | DeviceMesh) -> Group:
    """Returns the group of a device mesh, and any other group as it is. Raises InputError if a mesh has several dimensions."""
    if not isinstance(given, DeviceMesh):
        return given
    if given.ndim != 1:
        raise _native.InputError(
            f"a device mesh of {given.ndim} dimensions: give the one over which to reduce, such as mesh['replicate'], or None for all ranks"
        )
    return given.get_group()


def _key(group: Group) -> Any:
    """Returns the object that a group's reducers belong to. Initializes torch's default group if torchrun started this process."""
    if group == ALONE:
        return _alone
    if group is not None:
        return group
    initialize_under_torchrun(BackendOptions().deadline)
    return dist.group.WORLD if dist.is_initialized() else _of_launcher


def reducer_of(group: Group | DeviceMesh, device: torch.device) -> SparseReducer:
    """Returns the reducer of a group for tensors on a device, and makes it on the first call.

    Raises InputError if a mesh has several dimensions, and the errors of connecting the workers.
    """
    group = _group_of(group)
    key = _key(group)
    if isinstance(key, dist.ProcessGroup) and device.type in (each.type for each in key._device_types):
        backend = key._get_backend(device)
        if isinstance(backend, SparseSyncBackend):
            return backend.reducer(device)
    reducers = _of_groups.setdefault(key, {})
    found = reducers.get(device)
    if found is None or found.closed:
        options = BackendOptions()
        own = torch_device.use(device, "the tensor", None)
        join = functools.partial(connect, group, options.deadline, own, options.transport)
        found = reducers[device] = SparseReducer(join, own, options.scheme, options.wire)
        weakref.finalize(key, found.close)  # the end of the group closes the reducer
    return found
