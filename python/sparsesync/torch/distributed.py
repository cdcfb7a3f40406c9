"""DistributedDataParallel: where torch's own stood."""

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
    "this DistributedDataParallel is a copy, which is not connected to other workers: wrap its `module` with a new one, on all workers, to "
    "train it; torch.no_grad() is enough to evaluate it"
)


class DistributedDataParallel(torch_surface.Surface):
    """Makes the gradients of a module equal on all workers while backward runs, as torch's own does, with the fewest bytes.

    It is a torch.nn.parallel.DistributedDataParallel, so that frameworks unwrap it, and takes its arguments in the same order.
    python/README.md says what each of them, and each attribute, does here. Of these:

    module: on the CPU or on one GPU, the same on all workers; parameters and buffers become those of worker 0. The wrapper's
    forward is the module's; call it, not the module, wherever a backward pass follows.
    device_ids: the GPU that the module is on, which inputs are then brought to.
    process_group: a torch ProcessGroup, a place of local_group(), or "alone". Without one: MPI where mpirun started the process,
    torch's default group where torchrun did (initialized with Gloo if it is not), this worker alone elsewhere; InputError where
    another launcher, such as srun, has started several processes.
    bucket_cap_mb: what a bucket of "lazy" and "dear" is full with, in MiB as each worker has it; between machines the first one
    with 1, if that is less. Without it 25 for "lazy", and what is planned for "dear".

    Arguments that torch does not have, by name:

    scheme: of gradients of which few rows are not zero: "auto", or a name of sparsesync.schemes().
    gradient: "mean" or "sum" over workers.
    wire: the type that values cross as: None (their own), "bf16" or "f16"; sums are made in f32.
    deadline: seconds, or a timedelta, of each wait for another worker; the process group's if not given.
    announce: tell the rows of an embedding's gradient as its forward pass begins, so that they cross under the pass; every
    forward pass that keeps gradients is then followed by its backward.
    schedule: when gradients cross: a name of sparsesync.schedules(). "lazy" as soon as a bucket is full, under backward. The others
    measure what the passes and the network take in the first steps, and plan by that; "dear", and "auto" where it is the
    best, gather under the next forward pass: then sparsesync.torch.wrap_optimizer() has each update made when its gradient is
    there, and weights that are used in any way are those of after the last step.
    sparsifier: makes dense gradients sparse: sparsesync.torch.DGC(density=0.01), say, CoarseGrained, TopK or Threshold.
    memory_bytes: a budget for the workspace, and for what a sparsifier keeps.
    threads: that the kernels are cut among, on the CPU.
    transport: of a module on a GPU: "nccl", or "staged" (through pinned memory of the host, over what connects the
    processes). Without it NCCL where all workers have it and a GPU each, else staged; statistics() says which, and why.

    A gradient stays what it was: sparse ones come back sparse and coalesced, dense ones dense. Raises AgreementError on all
    workers where modules differ, UnsupportedError for parameters that cannot be synchronized.
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
        # A wrapper that is dropped leaves the others by itself.
        weakref.finalize(self, _leave, self._synchronizer).atexit = False
        if sparsifier:
            self.register_state_dict_post_hook(  # type: ignore[no-untyped-call]
                OnModule(lambda own, state, *_: own.synchronizer.exchange.add_state(state))
            )
        self.register_load_state_dict_pre_hook(  # type: ignore[no-untyped-call]
            OnModule(lambda own, state, *_: own.synchronizer.exchange.take_state(state))
        )

    def forward(self, *inputs: Any, **arguments: Any) -> Any:
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
        """Gradients of forward passes within accumulate here alone; the first backward after a forward pass outside
        synchronizes what has come together."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def join(
        self, divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """For inputs that end earlier on some workers: who is at the end of the block takes part in the others' steps
        with nothing, until all are there; parameters are then those of a worker that was last.

        divide_by_initial_world_size: a mean is over all workers; else over those that still had inputs.
        throw_on_early_termination: raise RuntimeError on all workers as soon as the first has no more.
        """
        return self._synchronizer.join(enable, divide_by_initial_world_size, throw_on_early_termination)

    def synchronize(self) -> None:
        """Waits for all gradients that still cross under a schedule that goes on under the forward pass, and has the steps of
        wrapped optimizers made. Needed nowhere for what is right: whatever uses a parameter does so."""
        self._synchronizer.synchronize()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> torch.Tensor:
        """As torch.nn.utils.clip_grad_norm_ of all parameters, and of sparse gradients too: between backward and step(), on all
        workers. Returns the norm of all gradients.

        Of norm 2, and from the second call on, gradients that a schedule gathers under the next forward pass go on crossing: each
        worker squares its part of the sums, and one number for each bucket crosses. So where nothing has used them since
        backward, and the schemes have sums before they gather them, as all have but all_gather, recursive_doubling, two_level
        and dense_native; else all gradients are waited for. What then differs in rounding is the norm.
        """
        return self._synchronizer.clip(max_norm, norm_type, error_if_nonfinite)

    def train(self, mode: bool = True) -> DistributedDataParallel:
        self._synchronizer.synchronize()
        super().train(mode)  # type: ignore[no-untyped-call]
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of gradients that still cross once they are there, and used."""
        self._synchronizer.once_there(self.module.parameters(), lambda parameters: clear(parameters, set_to_none))

    def statistics(self) -> dict[str, Any]:
        """What synchronizing took so far: bytes, seconds hidden under backward and exposed, as JSON has them; and of each parameter how its
        gradient crosses, by which scheme and why. Bytes and seconds of a parameter are those of its bucket, all that cross together;
        bytes_sent and bytes_received of all have what measuring the links took, too, where scheme is auto."""
        return self._synchronizer.statistics()

    def close(self) -> None:
        """Leaves the others. Forward raises ClosedError from here on; the module is as it would be without the wrapper, and can be
        wrapped again. A wrapper that is dropped does so by itself, as does the end of `with DistributedDataParallel(...) as ddp:`.
        Closing it again does nothing."""
        self._synchronizer.close()

    def __enter__(self) -> DistributedDataParallel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(module: torch.nn.Module, params_and_buffers_to_ignore: Iterable[str]) -> None:
        """Leaves parameters and buffers of these names to each worker, as torch's own does. Names are those of named_parameters()
        and named_buffers() of the module. Call it before the module is wrapped."""
        names = list(params_and_buffers_to_ignore)
        torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(  # type: ignore[no-untyped-call]
            module, names
        )

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return self._synchronizer.session.rank

    @property
    def world_size(self) -> int:
        """How many workers there are."""
        return self._synchronizer.session.size

    @property
    def synchronizer(self) -> Synchronizer:
        return self._synchronizer

    def __getstate__(self) -> dict[str, Any]:
        """A copy has the module, and is not connected."""
        self._synchronizer.finish_all()
        return {**self.__dict__, "_synchronizer": Unconnected(self.module), "process_group": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.nn.Module.__setstate__(self, state)  # type: ignore[no-untyped-call]


class Unconnected:
    """Stands where a copied or unpickled DistributedDataParallel had its synchronizer.

    Lets the module be evaluated, and raises OrderError where gradients would have to be exchanged. A copy is not connected by
    itself: all workers would have to copy at once, and programs copy on worker 0 alone."""

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
    except Exception as error:  # nobody called
        safe_logging.log(logging.WARNING, "a DistributedDataParallel was dropped, and its last step did not end: %s", error)


def _device_named(
    module: torch.nn.Module,
    device_ids: Sequence[int | torch.device] | None,
    output_device: int | torch.device | None,
) -> torch.device | None:
    """Where inputs are brought to. Raises UnsupportedError unless it is where the module is."""
    given = [*(device_ids or ()), *(() if output_device is None else (output_device,))]
    named = [torch.device("cuda", each) if isinstance(each, int) else torch.device(each) for each in given]
    where = next((each.device for each in module.parameters()), torch.device("cpu"))
    for each in named:
        if each != where or each.type != "cuda":
            raise _native.UnsupportedError(
                f"device_ids, output_device: {each}, and the module is on {where}: name the one GPU that it is on, or none"
            )
    return named[0] if device_ids else None
