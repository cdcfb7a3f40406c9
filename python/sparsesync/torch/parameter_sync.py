"""``synchronize()``: equal gradients of some parameters, beside a framework that handles the others."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, overload

import torch
from torch.distributed.device_mesh import DeviceMesh

from sparsesync import _native
from sparsesync.torch.functional import reducer_of
from sparsesync.torch.gradients import DTYPES, compacted, replace_rows
from sparsesync.torch.launch import Group
from sparsesync.torch.sparse_reducer import Rows, SparseReducer, SparseWork


@overload
def synchronize(
    parameters: Iterable[torch.nn.Parameter],
    group: Group | DeviceMesh = None,
    *,
    reduction: str = "mean",
    overlap: Literal[False] = False,
) -> None: ...
@overload
def synchronize(
    parameters: Iterable[torch.nn.Parameter],
    group: Group | DeviceMesh = None,
    *,
    reduction: str = "mean",
    overlap: Literal[True],
) -> GradientHooks: ...
def synchronize(
    parameters: Iterable[torch.nn.Parameter],
    group: Group | DeviceMesh = None,
    *,
    reduction: str = "mean",
    overlap: bool = False,
) -> GradientHooks | None:
    """Makes the gradients of some parameters equal on all workers of a group.

    Use it for embedding tables that another framework leaves out: parameters that FSDP2 or ``replicate`` ignores, or tables outside
    the module of a DeepSpeed engine. Only rows with nonzero elements are sent, whether gradients are sparse or dense. Gradients keep
    their layout. A worker without a gradient gets one, unless all workers have none.

    All workers call it with the same parameters in the same order. The group's session and its options are those of
    ``all_reduce()``.

    Args:
        parameters: Parameters on one device. The local shards of a DTensor are reduced over ``group``, element by element.
        group: As ``process_group`` of ``DistributedDataParallel``, or a device mesh with one dimension.
        reduction: ``"mean"`` or ``"sum"``.
        overlap: False: reduce the gradients that exist now; call it after each backward pass. True: install hooks that do so within
            each backward pass; call it once.

    Returns:
        None, or with ``overlap`` the hooks.

    Raises:
        InputError: An argument is invalid.
        UnsupportedError: The dtype or layout of a gradient cannot be reduced.
        AgreementError: The workers' parameters differ in shape or dtype.
        Error: The errors of a step, as in ``DistributedDataParallel``. With ``overlap``, ``backward()`` raises them.

    Example:
        >>> import sparsesync.torch
        >>> import torch
        >>> table = torch.nn.Embedding(1000, 4, sparse=True)
        >>> table(torch.tensor([3, 1, 3])).sum().backward()
        >>> sparsesync.torch.synchronize(table.parameters(), "alone")  # a group of this process alone
        >>> table.weight.grad.indices()
        tensor([[1, 3]])
    """
    chosen = _checked(parameters, reduction)
    reducer = reducer_of(group, chosen[0].device)
    if overlap:
        return GradientHooks(chosen, reducer, reduction)
    for started in [_start(each, reducer, reduction) for each in chosen]:
        started.finish()
    return None


class GradientHooks:
    """Hooks that make gradients equal within each backward pass, as ``synchronize(..., overlap=True)`` returns them.

    A gradient is sent while the backward pass computes those of earlier layers. ``backward()`` returns once all are equal. Every
    worker must run the same backward passes, and each pass must reach at least one of the parameters. They are expected in reverse
    order, as ``DistributedDataParallel`` expects them.

    Example:
        >>> import sparsesync.torch
        >>> import torch
        >>> table = torch.nn.Embedding(1000, 4, sparse=True)
        >>> hooks = sparsesync.torch.synchronize(table.parameters(), "alone", overlap=True)
        >>> table(torch.tensor([3, 1, 3])).sum().backward()
        >>> table.weight.grad.indices()
        tensor([[1, 3]])
        >>> hooks.remove()
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], reducer: SparseReducer, reduction: str) -> None:
        self._in_order = list(reversed(parameters))
        self._reducer = reducer
        self._reduction = reduction
        self._enabled = True
        self._ready: set[int] = set()  # positions of gradients that the pass has computed
        self._started: list[_Started] = []  # operations of the pass
        # The engine holds the pass until it ends or fails.
        self._pass: weakref.ref[_Pass] | None = None
        self._handles = [
            each.register_post_accumulate_grad_hook(lambda _, at=at: self._on_gradient(at))  # type: ignore[no-untyped-call]
            for at, each in enumerate(self._in_order)
        ]

    def remove(self) -> None:
        """Removes the hooks. Later backward passes leave gradients on their worker."""
        for each in self._handles:
            each.remove()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Returns a context manager within which gradients accumulate on each worker, as in ``DistributedDataParallel``."""
        before, self._enabled = self._enabled, False
        try:
            yield
        finally:
            self._enabled = before

    def _on_gradient(self, position: int) -> None:
        if not self._enabled:
            return
        if self._pass is None:
            begun = _Pass(self)
            self._pass = weakref.ref(begun)
            torch.autograd.Variable._execution_engine.queue_callback(begun.end)
        elif self._pass() is None:
            raise _native.OrderError(
                "the last backward pass failed, and the workers' gradients are out of step: remove these hooks, and start all workers again"
            )
        elif position < len(self._started):
            raise _native.OrderError(
                "a parameter got another gradient after its gradient was sent, for example from a reentrant checkpoint: use "
                "checkpoint(..., use_reentrant=False), or call synchronize() after backward()"
            )
        self._ready.add(position)
        while len(self._started) in self._ready:
            self._start_next()

    def _start_next(self) -> None:
        self._started.append(_start(self._in_order[len(self._started)], self._reducer, self._reduction))

    def end_pass(self) -> None:
        """Sends the remaining gradients, and waits for all. torch calls it at the end of a backward pass."""
        while len(self._started) < len(self._in_order):
            self._start_next()
        for each in self._started:
            each.finish()
        self._pass = None
        self._ready.clear()
        self._started.clear()


class _Pass:
    """A backward pass. The engine drops it with its callback if the pass fails."""

    def __init__(self, hooks: GradientHooks) -> None:
        self._hooks = hooks

    def end(self) -> None:
        self._hooks.end_pass()


def _checked(parameters: Iterable[torch.nn.Parameter], reduction: str) -> list[torch.nn.Parameter]:
    """Returns the parameters that have elements, each once. Raises InputError if they are none, or an argument is invalid."""
    if reduction not in ("sum", "mean"):
        raise _native.InputError(f"there is no reduction '{reduction}': use 'sum' or 'mean'")
    if isinstance(parameters, torch.Tensor):
        raise _native.InputError("synchronize: one tensor is given: give several parameters, such as [table.weight] or table.parameters()")
    given = list(dict.fromkeys(parameters))
    for each in given:
        if not isinstance(each, torch.Tensor) or not each.is_leaf or not each.requires_grad:
            raise _native.InputError(f"synchronize: a {type(each).__name__} that is not a parameter, or needs no gradient: leave it out")
        if each.dtype not in DTYPES:
            raise _native.UnsupportedError(f"synchronize: a parameter of {each.dtype}: gradients are f32, f64, f16 or bf16")
    chosen = [each for each in given if each.numel() > 0]
    if not chosen:
        raise _native.InputError("synchronize: no parameters are given: give those that no other framework reduces")
    devices = sorted({str(each.device) for each in chosen})
    if len(devices) > 1:
        raise _native.InputError(f"synchronize: parameters on {' and '.join(devices)}: call it for those of each device")
    return chosen


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the local part of a DTensor, and any other tensor as it is. Scalars become rows."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.unsqueeze(0) if part.dim() == 0 else part


@dataclasses.dataclass(frozen=True)
class _Started:
    """An all-reduce of a parameter's gradient that is under way.

    Two rows follow those of the gradient. They are nonzero if some worker has a sparse gradient, or a dense one. A worker without a
    gradient learns from them whether there is one, and its layout.
    """

    parameter: torch.nn.Parameter
    rows: int
    given: torch.Tensor  # rows of this worker's gradient
    work: SparseWork

    def finish(self) -> None:
        """Waits, and replaces the gradient by the result. Raises the error of the operation."""
        self.work.wait()
        indices, values = self.work.result()
        found = int((indices < self.rows).sum())
        layouts = indices[found:].tolist()
        result = indices[:found], values[:found]
        parameter = self.parameter
        if parameter.grad is None and layouts and self.rows not in layouts:
            parameter.grad = torch.zeros_like(parameter)
        gradient = parameter.grad
        if gradient is None or gradient.is_sparse:
            parameter.grad = _sparse(result, parameter) if layouts else None
        else:
            replace_rows(_local(gradient), self.given, result)


def _sparse(result: Rows, like: torch.Tensor) -> torch.Tensor:
    indices, values = result
    return torch.sparse_coo_tensor(indices.unsqueeze(0), values, like.shape, is_coalesced=True, check_invariants=False)


def _start(parameter: torch.nn.Parameter, reducer: SparseReducer, reduction: str) -> _Started:
    """Starts to reduce the gradient of a parameter. Raises UnsupportedError if its layout cannot be reduced."""
    gradient, like = parameter.grad, _local(parameter.detach())
    rows = len(like)
    if gradient is None:
        given = torch.empty(0, dtype=torch.int64, device=like.device), like[:0]
        layout = []
    elif gradient.is_sparse and gradient.sparse_dim() == 1:
        given = gradient._indices()[0], gradient._values().detach()
        layout = [rows]
    elif gradient.layout is torch.strided:
        given = compacted(_local(gradient))
        layout = [rows + 1]
    else:
        raise _native.UnsupportedError(
            f"synchronize: a gradient of the layout {gradient.layout} with {gradient.dim()} dimensions: give parameters whose gradients "
            "are dense, or sparse in their rows"
        )
    indices = torch.cat([given[0], torch.tensor(layout, dtype=torch.int64, device=like.device)])
    values = torch.cat([given[1], given[1].new_ones(len(layout), *like.shape[1:])])
    return _Started(parameter, rows, given[0], reducer.all_reduce_rows(indices, values, rows + 2, reduction))
