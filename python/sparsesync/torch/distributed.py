"""DistributedDataParallel: a drop-in replacement for the class of the same name in torch.nn.parallel."""

from __future__ import annotations

import contextlib
import datetime
import logging
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._compile import _disable_dynamo  # torch.compiler.disable would import all of dynamo at once
from torch.distributed.utils import _to_kwargs

from sparsesync import _native
from sparsesync.torch import safe_logging, torch_surface
from sparsesync.torch.gradients import clear
from sparsesync.torch.launch import Group
from sparsesync.torch.module_hooks import OnModule
from sparsesync.torch.schedule.bucketing import Options
from sparsesync.torch.sparsify.sparsifiers import Sparsifier
from sparsesync.torch.synchronizer import Synchronizer

_IS_A_COPY = (
    "this DistributedDataParallel is a copy, which is not connected to other workers: to train it, wrap its `module` again on all workers; "
    "to evaluate it, use torch.no_grad()"
)


class DistributedDataParallel(torch_surface.Surface):
    """Averages the gradients of a module over all workers during backward, and sends only the rows that were touched.

    It is a subclass of ``torch.nn.parallel.DistributedDataParallel`` with the same arguments in the same order, so that
    frameworks find and unwrap it. Arguments of torch that are not listed below are accepted; docs/guide/ddp.md lists
    their effect. Call the wrapper, not the module, in every forward pass that a backward pass follows. Gradients keep
    their layout: sparse gradients come back sparse and coalesced, dense gradients dense.

    All ranks must create wrappers in the same order, with equal arguments and modules of equal shapes. The constructor
    connects the workers and broadcasts parameters and buffers. It closes earlier wrappers of the module whose last
    backward pass failed.

    Args:
        module: The module, on the CPU or on one GPU, the same kind of device on all workers. Parameters and buffers
            become those of worker 0.
        device_ids: The GPU that the module is on, as a list of one; inputs are then moved there. A process group given
            here counts as ``process_group``.
        output_device: The same GPU, if given.
        dim: Dimension for ``scatter()`` and ``gather()``, as in torch.
        broadcast_buffers: Broadcast the buffers of worker 0 before the first forward pass of each step and before
            evaluation. False: each worker keeps its buffers.
        init_sync: Broadcast parameters and buffers in the constructor. Shapes are compared in any case.
        process_group: A torch ProcessGroup, a member of ``local_group()``, or ``"alone"``. Without it, workers are
            connected by MPI if mpirun started the process, and by torch's default group if torchrun, srun or a launcher
            with PMI's variables did. It is initialized with Gloo if necessary. A process that no launcher started trains
            alone.
        bucket_cap_mb: Capacity of a bucket in MiB, for the schedules ``"lazy"`` and ``"dear"``. The default is 25 for
            ``"lazy"``, and a measured size for ``"dear"``. If workers are on several machines, the first bucket has at
            most 1 MiB.
        device_mesh: A one-dimensional device mesh, instead of ``process_group``.
        forward_sync_buffers: False: broadcast buffers in the constructor only. Takes precedence over
            ``broadcast_buffers``.

    Keyword Args:
        scheme: Algorithm for gradients with few nonzero rows: a name from ``sparsesync.schemes()``, or ``"auto"``,
            which measures links and candidates in the first steps.
        gradient: ``"mean"`` or ``"sum"`` over workers.
        wire: Type of the values in messages, ``"bf16"`` or ``"f16"``; the type of the gradient if not given. Sums are
            computed in f32.
        deadline: Timeout of each wait for another worker, in seconds or as a ``datetime.timedelta``. The default is the
            timeout of the process group, or 30 minutes.
        announce: Exchange the row indices of embeddings during the forward pass (index prefetch), so that backward
            sends values only. Every forward pass that keeps gradients must then be followed by its backward pass.
        schedule: Name from ``sparsesync.schedules()``: when gradients are sent. ``"lazy"`` sends a bucket during
            backward as soon as it is full. The others measure computation and network in the first steps and plan the
            buckets. The schedule ``"dear"`` gathers under the next forward pass, and ``"auto"`` does if that is faster.
            Combine these two with ``wrap_optimizer()``. Reading a weight always returns its value after the last step.
        sparsifier: Sends a part of each dense gradient: ``DGC``, ``TopK``, ``Threshold`` or ``CoarseGrained``.
        memory_bytes: Budget for the workspace and for the state of a sparsifier, in bytes; no limit if not given.
        threads: Number of threads for the CPU kernels.
        transport: ``"ucx"`` connects the workers by UCX instead of MPI or Gloo. For a module on a GPU, ``"nccl"``, or
            ``"staged"`` to copy through pinned host memory; the default is NCCL if it is available on all workers and
            each has its GPU, otherwise staged. ``statistics()`` reports which, and why.

    Raises:
        AgreementError: Modules or arguments differ between workers. Raised on all of them.
        DeadlineError: A worker did not connect in time.
        DeviceError: The build or the machine lacks the GPU.
        InputError: An argument cannot be used, or a launcher that says nothing about the address started several
            processes.
        UnsupportedError: A parameter or a buffer cannot be synchronized.

    Example:
        >>> import sparsesync.torch
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Embedding(1000, 8, sparse=True), torch.nn.Linear(8, 1))
        >>> ddp = sparsesync.torch.DistributedDataParallel(model)
        >>> ddp(torch.tensor([3, 1, 3])).sum().backward()
        >>> model[0].weight.grad.indices()  # the rows that some worker looked up
        tensor([[1, 3]])
        >>> ddp.world_size  # started without mpirun or torchrun
        1
        >>> ddp.close()
    """

    module: torch.nn.Module

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: torch_surface.Devices | Group = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Group = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Sequence[tuple[str, torch.nn.Parameter]] | None = None,
        param_to_hook_all_reduce: torch.nn.Parameter | None = None,
        mixed_precision: Any = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: Sequence[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
        lazy_bucket_allocation: bool = False,
        *,
        scheme: str = "auto",
        gradient: str = "mean",
        wire: str | None = None,
        deadline: float | datetime.timedelta | None = None,
        announce: bool = False,
        schedule: str = "lazy",
        sparsifier: Sparsifier | None = None,
        memory_bytes: int | None = None,
        threads: int = 1,
        transport: str | None = None,
    ) -> None:
        torch_surface.check_module(module)
        devices, process_group = torch_surface.devices_and_group(device_ids, process_group, device_mesh)
        torch_surface.check_delayed(module, delay_all_reduce_named_params, param_to_hook_all_reduce)
        torch_surface.check_mixed_precision(mixed_precision)
        if check_reduction:
            warnings.warn("check_reduction has no effect, as in torch: leave it out", FutureWarning, stacklevel=2)
        bucket_cap_mb = torch_surface.capacity_of(bucket_cap_mb, bucket_cap_mb_list)
        init_buffers, forward_buffers = torch_surface.syncs_buffers(broadcast_buffers, forward_sync_buffers)
        torch_surface.localize(module, device_mesh)
        inputs_to = _device_named(module, devices, output_device)
        super().__init__(
            module,
            device_ids=devices,
            output_device=output_device,
            forward_sync_buffers=forward_buffers,
            bucket_cap_mb=bucket_cap_mb,
            bucket_bytes_cap_list=[int(each * (1 << 20)) for each in bucket_cap_mb_list or ()],
            dim=dim,
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
            static_graph=static_graph,
            mixed_precision=mixed_precision,
            skip_all_reduce_unused_params=skip_all_reduce_unused_params,
            batched_grad_copy=batched_grad_copy,
            lazy_bucket_allocation=lazy_bucket_allocation,
            **({} if device_mesh is None else {"device_mesh": device_mesh}),
        )
        self._inputs_to = inputs_to
        self._synchronizer = Synchronizer(
            module,
            process_group,
            Options(scheme, gradient, wire, bucket_cap_mb, schedule, sparsifier),
            deadline=deadline,
            announce=announce,
            broadcast_buffers=forward_buffers,
            init_sync=init_sync,
            init_buffers=init_buffers,
            memory_bytes=memory_bytes,
            threads=threads,
            transport=transport,
        )
        self.process_group = torch_surface.torch_group(process_group)
        # A wrapper that is garbage-collected closes its session.
        weakref.finalize(self, _leave, self._synchronizer).atexit = False
        if sparsifier:
            self.register_state_dict_post_hook(  # type: ignore[no-untyped-call]
                OnModule(lambda own, state, *_: own.synchronizer.exchange.add_state(state))
            )
        self.register_load_state_dict_pre_hook(  # type: ignore[no-untyped-call]
            OnModule(lambda own, state, *_: own.synchronizer.exchange.take_state(state))
        )

    def forward(self, *inputs: Any, **arguments: Any) -> Any:
        """Runs the module's forward pass and prepares the exchange of its gradients.

        Args:
            inputs: Positional arguments of the module's ``forward()``.
            arguments: Keyword arguments of the module's ``forward()``.

        Returns:
            The module's result.

        Raises:
            ClosedError: The wrapper is closed.
            OrderError: The last backward pass failed, or parameters changed since the module was wrapped.
        """
        if torch.is_grad_enabled() or self._synchronizer.broadcasts_buffers:
            self._begin_forward()
        if self._inputs_to is not None:
            of_devices, named_of_devices = _to_kwargs(inputs, arguments, self._inputs_to, False)
            inputs, arguments = of_devices[0], named_of_devices[0]
        result = self.module(*inputs, **arguments)
        if torch.is_grad_enabled():
            self._end_forward(result)
        return result

    @_disable_dynamo
    def _begin_forward(self) -> None:
        self._begin_join()
        self._synchronizer.begin_forward(self.require_backward_grad_sync)

    @_disable_dynamo
    def _end_forward(self, result: Any) -> None:
        self._synchronizer.end_forward(result)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Returns a context manager within which gradients accumulate on each worker without communication.

        The first backward pass after a forward pass outside of the context synchronizes the accumulated gradients. All
        ranks must use it for the same passes.
        """
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def join(
        self, divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Returns a context manager for inputs that end earlier on some workers.

        A worker that leaves the block takes part in the steps of the others, without gradients, until no worker has
        inputs. Parameters then become those of a worker that was last. All ranks must enter it together.

        Args:
            divide_by_initial_world_size: Average over all workers. False: over the workers that still had inputs.
            enable: False: do nothing.
            throw_on_early_termination: Raise RuntimeError on all workers as soon as the first has no more inputs.

        Raises:
            OrderError: This thread is already within a ``join()``.
            UnsupportedError: The module has both a sparsifier and a LossScaler.
        """
        return self._synchronizer.join(enable, divide_by_initial_world_size, throw_on_early_termination)

    def synchronize(self) -> None:
        """Waits for gradients that are still in transit, and makes the deferred steps of wrapped optimizers.

        Correctness never requires it, because any use of a parameter waits. It is useful before you measure time.
        """
        self._synchronizer.synchronize()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> torch.Tensor:
        """Clips the norm of all gradients, like ``torch.nn.utils.clip_grad_norm_``, sparse gradients included.

        Call it between backward and ``step()``. All ranks must call it in the same order.

        From the second call on, with ``norm_type`` 2, gradients that a schedule gathers under the next forward pass
        stay in transit. Each worker then squares its part of the sums, and one number per bucket is exchanged. Only the
        rounding of the norm differs. This requires that the program has not used the gradients since backward, and that
        the scheme has sums before it gathers: all schemes but ``all_gather``, ``recursive_doubling``, ``two_level`` and
        ``dense_native``. Otherwise it waits for all gradients.

        Args:
            max_norm: Largest norm of all gradients together.
            norm_type: Order of the norm.
            error_if_nonfinite: Raise RuntimeError if the norm is infinite or NaN.

        Returns:
            The norm before clipping, a tensor of shape ``[]``, in the dtype of the first parameter, f32 or wider.

        Raises:
            RuntimeError: The norm is infinite or NaN, and ``error_if_nonfinite`` is set.
        """
        return self._synchronizer.clip(max_norm, norm_type, error_if_nonfinite)

    def train(self, mode: bool = True) -> DistributedDataParallel:
        """Sets training or evaluation mode, like ``torch.nn.Module.train``, after waiting for all gradients.

        Args:
            mode: True for training mode, False for evaluation mode.
        """
        self._synchronizer.synchronize()
        super().train(mode)  # type: ignore[no-untyped-call]
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears all gradients. Gradients in transit are cleared after their updates are made.

        Args:
            set_to_none: Set gradients to None. False: set them to zeros.
        """
        self._synchronizer.once_there(self.module.parameters(), lambda parameters: clear(parameters, set_to_none))

    def statistics(self) -> dict[str, Any]:
        """Returns what synchronization has cost so far, as a dictionary that JSON can store.

        The counts are those of this worker.

        Returns:
            A dictionary.

            - The numbers ``workers``, ``rank`` and ``steps``.
            - The strings ``transport``, ``device`` and ``payloads``: the network, the device, and how gradients are
              sent and why.
            - Totals of the session: ``bytes_sent``, ``bytes_received``, ``messages_sent`` and ``messages_received``.
              With ``scheme="auto"`` they include the measurement of links.
            - Communication time in seconds: ``seconds``, the part ``seconds_exposed`` that the program waited for, and
              the rest, ``seconds_hidden``.
            - Workspace in bytes: ``memory_bytes`` and ``memory_high_water_bytes``; in pinned host memory
              ``pinned_bytes`` and ``pinned_high_water_bytes``.
            - The ``schedule``: its buckets, expected and measured seconds of a step, and the buckets that cannot be
              hidden.
            - Only with a sparsifier or a LossScaler: ``sparsifier``, ``loss_scale`` and ``skipped_steps``.
            - The ``parameters``, by name: bucket, scheme, the reason for the scheme, and bytes and seconds of the
              bucket.

        Raises:
            ClosedError: The wrapper is closed.
        """
        return self._synchronizer.statistics()

    def close(self) -> None:
        """Leaves the other workers. Closing a wrapper again does nothing.

        The module can be used without the wrapper and wrapped again; ``forward()`` raises ClosedError. The end of a
        ``with`` block closes the wrapper, and so does garbage collection.
        """
        self._synchronizer.close()

    def __enter__(self) -> DistributedDataParallel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(module: torch.nn.Module, params_and_buffers_to_ignore: Iterable[str]) -> None:
        """Excludes parameters and buffers of these names from synchronization, as torch's class does.

        Call it before wrapping the module.

        Args:
            module: The module that will be wrapped.
            params_and_buffers_to_ignore: Names from ``named_parameters()`` and ``named_buffers()``.
        """
        names = list(params_and_buffers_to_ignore)
        torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(  # type: ignore[no-untyped-call]
            module, names
        )

    @property
    def rank(self) -> int:
        """The rank of this worker, from 0."""
        return self._synchronizer.session.rank

    @property
    def world_size(self) -> int:
        """The number of workers."""
        return self._synchronizer.session.size

    @property
    def synchronizer(self) -> Synchronizer:
        """The object that exchanges gradients; internal."""
        return self._synchronizer

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state of an unconnected copy."""
        self._synchronizer.finish_all()
        return {**self.__dict__, "_synchronizer": Unconnected(self.module), "process_group": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.nn.Module.__setstate__(self, state)  # type: ignore[no-untyped-call]


class Unconnected:
    """Replaces the synchronizer of a copied or unpickled DistributedDataParallel.

    The module can be evaluated. Exchanging gradients raises OrderError. Copies do not connect, because all workers
    would have to copy at the same time, and many programs copy on worker 0 only.
    """

    broadcasts_buffers = False

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def begin_forward(self, _: bool) -> None:
        if any(each.requires_grad for each in self._module.parameters()):
            raise _native.OrderError(_IS_A_COPY)

    def end_forward(self, _: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def finish_all(self) -> None:
        pass

    def once_there(self, parameters: Iterable[torch.nn.Parameter], action: Callable[[Sequence[torch.nn.Parameter]], None]) -> None:
        action(list(parameters))

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _native.OrderError(_IS_A_COPY)


def _leave(synchronizer: Synchronizer) -> None:
    try:
        synchronizer.close()
    except Exception as error:  # called by the garbage collector, so no caller could handle it
        safe_logging.log(logging.WARNING, "a DistributedDataParallel was garbage-collected before its last step ended: %s", error)


def _device_named(
    module: torch.nn.Module,
    device_ids: Sequence[int | torch.device] | None,
    output_device: int | torch.device | None,
) -> torch.device | None:
    """Returns the device that inputs are moved to, or None. Raises UnsupportedError unless it is the module's GPU."""
    given = [*(device_ids or ()), *(() if output_device is None else (output_device,))]
    named = [torch.device("cuda", each) if isinstance(each, int) else torch.device(each) for each in given]
    where = next((each.device for each in module.parameters()), torch.device("cpu"))
    for each in named:
        if each != where or each.type != "cuda":
            raise _native.UnsupportedError(
                f"device_ids, output_device: {each}, and the module is on {where}: pass the GPU that the module is on, or leave them out"
            )
    return named[0] if device_ids else None
