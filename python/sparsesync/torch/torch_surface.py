"""Arguments and attributes of torch's DistributedDataParallel, and their effect in this package."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook, _JoinConfig

from sparsesync import _native
from sparsesync.torch.launch import Group, LocalMember
from sparsesync.torch.synchronizer import Synchronizer
from sparsesync.torch.uneven_inputs import UnevenInputs

TorchDistributedDataParallel = torch.nn.parallel.DistributedDataParallel

_MIB = 1 << 20
_HOOKS = (
    "gradients do not go through torch's reducer, so no communication hook sees them: pass wire='bf16' or wire='f16' to compress them, "
    "sparsifier=... to send a part of them, or register the hook with torch.nn.parallel.DistributedDataParallel"
)
_BACKWARD_RETURNS = (
    "backward() returns once gradients are equal: pass schedule='dear' to overlap the gather phase with the next forward pass"
)
# Methods that are not available, and alternatives.
_REMEDIES = {
    "register_comm_hook": _HOOKS,
    "_register_builtin_comm_hook": _HOOKS,
    "_register_buffer_comm_hook": (
        "buffers are broadcast: pass forward_sync_buffers=False, and call torch.distributed on the module's buffers before the forward pass"
    ),
    "finalize_backward": _BACKWARD_RETURNS,
    "_update_process_group": "close() this wrapper, and wrap the module again with another process_group",
    "_remove_autograd_hooks": "close() removes all hooks",
    "_set_sparse_metadata": "sparse gradients need no metadata: leave the call out",
}
_STATISTICS = "use statistics() or _get_ddp_logging_data()"


class _Refused:
    """Replaces an object of torch's reducer: raises UnsupportedError for each attribute."""

    def __init__(self, name: str, remedy: str) -> None:
        self._name = name
        self._remedy = remedy

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):  # Python looks these up on any object
            raise AttributeError(attribute)
        raise _native.UnsupportedError(f"{self._name}.{attribute}: there is no torch reducer here: {self._remedy}")


def _refusing(name: str) -> Callable[..., NoReturn]:
    def call(*_: Any, **__: Any) -> NoReturn:
        """Raises UnsupportedError, because torch's reducer is not used. The message names an alternative."""
        remedy = _REMEDIES.get(name, f"it is a part of torch's reducer, which is not used here: {_STATISTICS}")
        raise _native.UnsupportedError(f"{name}: {remedy}")

    call.__name__ = name
    return call


def _fixed(name: str, remedy: str) -> Any:
    """Makes a property whose value is set once, when the module is wrapped."""

    def get(self: Surface) -> Any:
        return self.__dict__[name]  # the property hides this entry from attribute access

    def put(self: Surface, value: Any) -> None:
        if self.__dict__.setdefault(name, value) is not value:
            raise _native.UnsupportedError(
                f"{name} cannot change once the module is wrapped: close(), and wrap the module again with {remedy}"
            )

    return property(get, put, doc="The value from when the module was wrapped. Another value raises UnsupportedError.")


class _JoiningByTorch(UnevenInputs):
    """Uneven inputs within torch's Join: the first Joinable reports each step of a worker that has inputs."""

    def __init__(self, of_all: bool, joinable: Surface) -> None:
        super().__init__(of_all, throws=False)  # torch's Join raises
        self._joinable = joinable

    def begin_step(self, session: _native.Session) -> int:
        work = Join.notify_join_context(self._joinable)
        if work is not None:
            work.wait()
        return super().begin_step(session)


class _SurfaceJoinHook(JoinHook):
    """Takes part in the steps of workers that still have inputs."""

    def __init__(self, of_all: bool, joinable: Surface, synchronizer: Synchronizer) -> None:
        self.joining = _JoiningByTorch(of_all, joinable)
        self._joinable = joinable
        self._synchronizer = synchronizer

    def main_hook(self) -> None:
        self._synchronizer.shadow(self.joining)

    def post_hook(self, is_last_joiner: bool) -> None:
        self._synchronizer.end_join(self.joining)
        self._joinable._join_hook = None
        self._joinable._join_config = _JoinConfig.construct_disabled_join_config()  # type: ignore[no-untyped-call]


class Surface(TorchDistributedDataParallel):
    """A torch.nn.parallel.DistributedDataParallel without its reducer.

    torch's __init__ does not run. Methods of torch's class that need its reducer raise UnsupportedError, including
    those that future versions of torch add.
    """

    _synchronizer: Synchronizer
    _join_hook: _SurfaceJoinHook | None

    process_group = _fixed("process_group", "another process_group")
    forward_sync_buffers = _fixed("forward_sync_buffers", "another forward_sync_buffers")
    require_forward_param_sync = _fixed("require_forward_param_sync", "forward_sync_buffers=False")
    require_manual_backward_finalization = _fixed("require_manual_backward_finalization", "schedule='dear'")
    should_finalize_after_backward = False

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        device_ids: Sequence[int | torch.device] | None,
        output_device: int | torch.device | None,
        forward_sync_buffers: bool,
        bucket_cap_mb: float | None,
        **others: Any,
    ) -> None:
        torch.nn.Module.__init__(self)
        Joinable.__init__(self)
        self.module = module
        self._join_hook = None
        ignored = frozenset(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self.parameters_to_ignore = set(ignored)
        self.device = next((each.device for name, each in module.named_parameters() if name not in ignored), torch.device("cpu"))
        self.device_type = self.device.type
        named = [torch.device("cuda", each) if isinstance(each, int) else torch.device(each) for each in device_ids or ()]
        self.device_ids = [each.index for each in named] or None
        self.output_device = _index(output_device) if output_device is not None else named[0].index if named else None
        self.is_multi_device_module = False
        self.forward_sync_buffers = forward_sync_buffers
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self.require_manual_backward_finalization = False
        self.bucket_bytes_cap = int((25 if bucket_cap_mb is None else bucket_cap_mb) * _MIB)
        self.bucket_bytes_cap_default = bucket_cap_mb is None
        self.broadcast_bucket_size = 250 * _MIB
        self.use_side_stream_for_tensor_copies = False
        self.reducer: Any = _Refused("reducer", f"{_STATISTICS}; to synchronize after no_sync(), run the last forward pass outside of it")
        self.logger: Any = _Refused("logger", _STATISTICS)
        for name, value in others.items():  # stored for programs that read them; not used here
            setattr(self, name, value)

    @property
    def broadcast_buffers(self) -> bool:
        """Whether forward passes see the buffers of worker 0. It cannot be changed after wrapping."""
        return bool(self.forward_sync_buffers)

    @broadcast_buffers.setter
    def broadcast_buffers(self, value: bool) -> None:
        self.forward_sync_buffers = value

    @property
    def named_module_buffers(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """The buffers that are not ignored, by name, as they are now."""
        return {name: each for name, each in self.module.named_buffers() if name not in self.parameters_to_ignore}

    @property
    def modules_buffers(self) -> list[torch.Tensor]:  # type: ignore[override]
        """The buffers that are not ignored, as they are now."""
        return list(self.named_module_buffers.values())

    def will_sync_module_buffers(self) -> bool:
        """Returns whether forward passes broadcast any buffer."""
        return self.broadcast_buffers and bool(self.modules_buffers)

    def _set_static_graph(self) -> None:
        self.static_graph = True

    def _check_reducer_finalized(self) -> None:
        """Raises OrderError if the last backward pass failed."""
        self._synchronizer.expect_finished()

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        if sample_rate < 1:
            raise _native.InputError(f"sample_rate {sample_rate}: 1 or more")

    def _set_ddp_sink_clone(self, val: bool) -> None:
        """Has no effect: outputs are passed on unchanged."""

    def _register_fused_optim(
        self, optim: Any, *args: Any, optim_params: Iterable[torch.nn.Parameter] | None = None, **kwargs: Any
    ) -> None:
        """Steps an optimizer for each parameter within backward(), once its gradient is equal on all workers.

        The gradient is None afterwards. Call it before the first forward pass.

        Args:
            optim: Class of the optimizer.
            args: Positional arguments of the optimizer after the parameters.
            optim_params: Parameters to step; all parameters of the module if not given.
            kwargs: Keyword arguments of the optimizer.
        """
        from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward

        def make(parameters: list[torch.nn.Parameter], **options: Any) -> torch.optim.Optimizer:
            made: torch.optim.Optimizer = optim(parameters, *args, **options)
            return made

        self._synchronizer.expect_no_step("_register_fused_optim")
        _apply_optimizer_in_backward(make, self.module.parameters() if optim_params is None else optim_params, kwargs)

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        """Returns the keys of torch's logging data that are known here. For times and bytes, use statistics()."""
        parameters = [each.parameter for each in self._synchronizer.parameters]
        has_torch_group = self.process_group is not None
        data: dict[str, Any] = {
            "module_name": type(self.module).__name__,
            "backend_name": dist.get_backend(self.process_group) if has_torch_group else self._synchronizer.transport_kind,
            "device_ids": ", ".join(map(str, self.device_ids or ())),
            "dtypes": ", ".join(sorted({str(each.dtype).removeprefix("torch.") for each in parameters})),
            "master_addr": os.environ.get("MASTER_ADDR", "N/A"),
            "master_port": os.environ.get("MASTER_PORT", "N/A"),
            "world_size": self._synchronizer.session.size,
            "rank": self._synchronizer.session.rank,
            "output_device": -1 if self.output_device is None else self.output_device,
            "broadcast_buffers": int(self.broadcast_buffers),
            "bucket_cap_bytes": self.bucket_bytes_cap,
            "find_unused_parameters": int(self.find_unused_parameters),
            "gradient_as_bucket_view": int(self.gradient_as_bucket_view),
            "static_graph": int(self.static_graph),
            "has_sync_bn": int(any(isinstance(each, torch.nn.SyncBatchNorm) for each in self.module.modules())),
            "is_multi_device_module": int(self.is_multi_device_module),
            "iteration": self._synchronizer.session.step,
            "num_parameter_tensors": len(parameters),
            "total_parameter_size_bytes": sum(each.numel() * each.element_size() for each in parameters),
        }
        return data

    # ---- Interface of torch.distributed.algorithms.join.Join

    @property
    def join_device(self) -> torch.device:
        """The device of the module, for ``torch.distributed.algorithms.join.Join``."""
        device: torch.device = self.device
        return device

    @property
    def join_process_group(self) -> Any:
        """The process group of the workers, for ``torch.distributed.algorithms.join.Join``.

        Raises:
            UnsupportedError: The workers are not connected by a torch process group.
        """
        if self.process_group is None:
            raise _native.UnsupportedError(
                "Join: it needs a torch process group, and this wrapper has none: use the wrapper's join(), or call "
                "torch.distributed.init_process_group() before you wrap the module"
            )
        return self.process_group

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Returns the hook for ``torch.distributed.algorithms.join.Join``.

        Args:
            kwargs: ``divide_by_initial_world_size`` as for ``join()``, True by default. Other keys are ignored.

        Returns:
            A hook that takes part in the steps of workers that still have inputs.

        Raises:
            UnsupportedError: The workers are not connected by a torch process group.
        """
        self.join_process_group  # noqa: B018  raises now if the group is missing
        self._join_hook = _SurfaceJoinHook(kwargs.get("divide_by_initial_world_size", True), self, self._synchronizer)
        return self._join_hook

    def _begin_join(self) -> None:
        """Reports to torch's Join, before a forward pass."""
        if self._join_hook is not None and self._join_config.enable:
            self._synchronizer.begin_join(self._join_hook.joining)


# Methods of torch's class that need no reducer.
_KEPT = frozenset(
    {
        "_active_ddp_module",
        "_get_active_ddp_module",
        "_get_data_parallel_params",
        "_set_params_and_buffers_to_ignore_for_model",
        "forward",
        "gather",
        "join",
        "no_sync",
        "scatter",
        "to_kwargs",
        "train",
    }
)

for _name, _value in vars(TorchDistributedDataParallel).items():
    if not _name.startswith("__") and _name not in vars(Surface) and _name not in _KEPT and callable(_value):
        setattr(Surface, _name, _refusing(_name))


def _index(device: int | torch.device) -> int | None:
    return device if isinstance(device, int) else torch.device(device).index


def check_module(module: object) -> None:
    """Raises InputError for an object that is not a module, and for lazy parameters and buffers, which have no shape yet."""
    if not isinstance(module, torch.nn.Module):
        raise _native.InputError(f"module: {type(module).__name__} is not a torch.nn.Module: give the model")
    for kind, named in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, each in named:
            if torch.nn.parameter.is_lazy(each):
                raise _native.InputError(f"{kind} '{name}' has no shape yet: run a forward pass of the module before you wrap it")


Devices = Sequence[int | torch.device] | None


def devices_and_group(device_ids: Any, process_group: Group, device_mesh: Any) -> tuple[Devices, Group]:
    """Returns the devices and the process group that the arguments name.

    A process group passed as ``device_ids``, which was the process group's position in earlier versions, counts as the
    group. Raises InputError if the arguments name two groups.
    """
    if isinstance(device_ids, (dist.ProcessGroup, LocalMember, str)):
        if process_group is not None:
            raise _native.InputError("device_ids, process_group: both are process groups: give one of them")
        device_ids, process_group = None, device_ids
    if device_mesh is None:
        return device_ids, process_group
    if process_group is not None:
        raise _native.InputError("process_group, device_mesh: both are given: give one of them")
    if device_mesh.ndim != 1:
        raise _native.InputError(
            f"device_mesh: it has {device_mesh.ndim} dimensions: give the one that replicates the module, such as device_mesh['dp']"
        )
    return device_ids, device_mesh.get_group(mesh_dim=0)


def torch_group(process_group: Group) -> dist.ProcessGroup | None:
    """Returns the torch group whose processes are the workers, or None. Call it after the workers are connected."""
    if process_group is None and dist.is_initialized():
        return dist.group.WORLD
    return process_group if isinstance(process_group, dist.ProcessGroup) else None


def localize(module: torch.nn.Module, device_mesh: Any) -> None:
    """Converts the module's DTensor parameters to tensors, as torch does for a mesh that is part of a larger one."""
    if device_mesh is not None and device_mesh._get_root_mesh() != device_mesh:
        from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform

        _pre_dp_module_transform(module)


def capacity_of(bucket_cap_mb: float | None, bucket_cap_mb_list: Sequence[float] | None) -> float | None:
    """Returns the capacity of all buckets, in MiB. Raises UnsupportedError for a list of different capacities."""
    if not bucket_cap_mb_list:
        return bucket_cap_mb
    if len(set(bucket_cap_mb_list)) > 1:
        raise _native.UnsupportedError(
            f"bucket_cap_mb_list {list(bucket_cap_mb_list)}: buckets have one capacity: pass bucket_cap_mb={max(bucket_cap_mb_list)}, or "
            "schedule='auto', which plans the size of each"
        )
    return bucket_cap_mb_list[0]


def syncs_buffers(broadcast_buffers: bool | None, forward_sync_buffers: bool | None) -> tuple[bool, bool]:
    """Returns whether buffers are broadcast when the module is wrapped, and whether they are before forward passes."""
    if forward_sync_buffers is None:
        both = broadcast_buffers is None or bool(broadcast_buffers)
        return both, both
    if broadcast_buffers is not None:
        warnings.warn("broadcast_buffers has no effect beside forward_sync_buffers: leave it out", FutureWarning, stacklevel=3)
    return True, bool(forward_sync_buffers)


def check_delayed(
    module: torch.nn.Module, named: Iterable[tuple[str, torch.nn.Parameter]] | None, hooked: torch.nn.Parameter | None
) -> None:
    """Raises InputError unless both or neither argument is given, and all parameters are the module's.

    These parameters are synchronized like all others.
    """
    if (named is None) != (hooked is None):
        raise _native.InputError("delay_all_reduce_named_params, param_to_hook_all_reduce: one is given: give both or neither")
    own = set(module.parameters())
    for name, parameter in named or ():
        if parameter not in own:
            raise _native.InputError(f"delay_all_reduce_named_params: '{name}' is not a parameter of the module: leave it out")


def check_mixed_precision(mixed_precision: Any) -> None:
    """Raises UnsupportedError if it requests any dtype."""
    if mixed_precision is None:
        return
    types = (mixed_precision.param_dtype, mixed_precision.reduce_dtype, mixed_precision.buffer_dtype)
    if any(each is not None for each in types):
        raise _native.UnsupportedError(
            f"mixed_precision: {mixed_precision}: run the forward pass within torch.autocast(), or give an f16 or bf16 module and "
            "wrap_optimizer(..., master_weights=True), instead of param_dtype; pass wire='f16' or 'bf16' instead of reduce_dtype"
        )
