"""The torch.distributed backend ``sparsesync``: sparse all-reduces by this library, everything else by Gloo and NCCL."""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from sparsesync import _native
from sparsesync.torch import device as torch_device
from sparsesync.torch import process_group as over_group
from sparsesync.torch.launch import Connection, as_timedelta, expect_known, reach
from sparsesync.torch.sparse_reducer import SparseReducer

NAME = "sparsesync"
_VARIABLES = "SPARSESYNC_BACKEND_"
_LEAVING = datetime.timedelta(seconds=10)  # wait for ranks that still connect, before this one leaves
_REDUCTIONS = ((dist.ReduceOp.SUM, "sum"), (dist.ReduceOp.AVG, "mean"))


class BackendOptions(c10d.Backend.Options):
    """Options of the backend ``sparsesync``, for ``pg_options``. All ranks give the same.

    An option that is not given is read from the environment: ``SPARSESYNC_BACKEND_SCHEME``, ``_WIRE``, ``_DEADLINE`` and ``_TRANSPORT``.

    Args:
        scheme: Scheme of sparse all-reduces; ``"auto"`` by default.
        wire: Type in which their values are sent: ``"f32"``, ``"f16"`` or ``"bf16"``; the tensor's dtype by default.
        deadline: Timeout of their waits, in seconds; the timeout of the group by default.
        transport: Network of sparse all-reduces, as for ``DistributedDataParallel``.

    Raises:
        InputError: An option is invalid, or the environment has an unknown option.

    Example:
        >>> import sparsesync.torch
        >>> import torch
        >>> import torch.distributed as dist
        >>> options = sparsesync.torch.BackendOptions(scheme="balanced")
        >>> dist.init_process_group("sparsesync", store=dist.HashStore(), rank=0, world_size=1, pg_options=options)
        >>> gradient = torch.sparse_coo_tensor([[7, 3, 7]], torch.ones(3, 2), (10, 2))
        >>> dist.all_reduce(gradient)
        >>> gradient.indices().tolist(), gradient.values().tolist()
        ([[3, 7]], [[1.0, 1.0], [2.0, 2.0]])
        >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        scheme: str | None = None,
        wire: str | None = None,
        deadline: float | datetime.timedelta | None = None,
        transport: str | None = None,
    ) -> None:
        super().__init__(NAME)
        given = _from_environment(os.environ)
        self.scheme = scheme or given.get("scheme", "auto")
        self.wire = wire or given.get("wire")
        self.deadline = as_timedelta(deadline if deadline is not None else _seconds(given.get("deadline")))
        self.transport = transport or given.get("transport")
        schemes = ["auto", *(name for name, _ in _native.schemes())]
        if self.scheme not in schemes:
            raise _native.InputError(f"there is no scheme '{self.scheme}': use {', '.join(schemes)}")
        if self.wire not in (None, "f32", "f16", "bf16"):
            raise _native.InputError(f"wire '{self.wire}': use f32, f16 or bf16, or leave it out")
        expect_known(self.transport)

    def statement(self) -> dict[str, str]:
        """Returns the options that all ranks must share, and the version, as texts."""
        return {
            "version": _native.provenance()["version"],
            "scheme": self.scheme,
            "wire": str(self.wire),
            "transport": str(self.transport),
        }


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the options in the environment, by name. Raises InputError for one that is unknown."""
    known = ("scheme", "wire", "deadline", "transport")
    found = {name.removeprefix(_VARIABLES): value for name, value in environment.items() if name.startswith(_VARIABLES)}
    for name in found:
        if name.lower() not in known or not name.isupper():
            names = ", ".join(_VARIABLES + each.upper() for each in known)
            raise _native.InputError(f"the environment variable {_VARIABLES}{name} is unknown: use {names}")
    return {name.lower(): value for name, value in found.items()}


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise _native.InputError(f"{_VARIABLES}DEADLINE='{text}': give seconds, such as 60") from None


class SparseSyncBackend(c10d.Backend):
    """One rank's end of a group. torch calls it; programs call torch.distributed."""

    def __init__(self, store: c10d.Store, rank: int, size: int, timeout: datetime.timedelta, options: BackendOptions) -> None:
        super().__init__(rank, size)
        self._store = store
        self._options = options
        options._timeout = timeout
        self._timeout = timeout
        said = c10d.PrefixStore(NAME, store)
        said.set(f"options of {rank}", json.dumps(options.statement()))
        # Connecting waits for all ranks. Each has then said its options, or uses another backend.
        # torch has no type stubs for the collectives of its backends.
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        self._nccl: Any = None
        said.set(f"connected {rank}", "")
        self._expect_equal(said)
        self._reducers: dict[torch.device, SparseReducer] = {}
        _open.add(self)

    def _expect_equal(self, said: c10d.Store) -> None:
        """Compares the options of all ranks. Raises AgreementError on ranks of this backend, naming the first difference."""
        problem = self._difference(said)
        if problem is None:
            return
        ranks = [rank for rank in range(self.size()) if said.check([f"options of {rank}"])]
        with contextlib.suppress(RuntimeError):  # the others' connections fail if this rank leaves before
            said.wait([f"connected {rank}" for rank in ranks], _LEAVING)
        raise _native.AgreementError(f"{problem}: give all ranks the same")

    def _difference(self, said: c10d.Store) -> str | None:
        own = self._options.statement()
        for rank in range(self.size()):
            if not said.check([f"options of {rank}"]):
                return f"rank {rank} uses another backend than {NAME}, or an older version of it"
            others = json.loads(said.get(f"options of {rank}"))
            for name, value in own.items():
                if others.get(name) != value:
                    return f"backend {NAME}: {name} is {value} on rank {self.rank()} and {others.get(name)} on rank {rank}"
        return None

    # ---- Sparse tensors

    def allreduce(self, tensors: list[torch.Tensor], opts: c10d.AllreduceOptions) -> c10d.Work:
        """Sums tensors in place. Sparse ones are not sent by Gloo or NCCL."""
        if not tensors[0].is_sparse:
            work: c10d.Work = self._inner(tensors).allreduce(tensors, opts)
            return work
        return self._sum_sparse(tensors, opts.reduceOp)

    def allreduce_sparse(self, tensors: list[torch.Tensor], opts: c10d.AllreduceOptions) -> c10d.Work:
        """Does the same; torch calls it for sparse tensors on GPUs."""
        return self._sum_sparse(tensors, opts.reduceOp)

    def _sum_sparse(self, tensors: list[torch.Tensor], op: Any) -> c10d.Work:
        reduction = next((name for known, name in _REDUCTIONS if op == known), None)
        if reduction is None:
            raise _native.UnsupportedError(f"sparse tensors can be summed or averaged, not reduced by {op}")
        (tensor,) = tensors  # torch passes one
        return self.reducer(tensor.device).all_reduce(tensor, reduction)

    def reducer(self, device: torch.device) -> SparseReducer:
        """Returns the reducer for sparse tensors on a device."""
        found = self._reducers.get(device)
        if found is None:
            own = torch_device.use(device, "the tensor", None)
            connect = functools.partial(self._connect, device.type, own)
            found = self._reducers[device] = SparseReducer(connect, own, self._options.scheme, self._options.wire)
        return found

    def _connect(self, kind: str, device: torch_device.CpuDevice) -> Connection:
        """Connects all ranks for sparse tensors on a kind of device."""
        deadline = self._options.deadline or self._timeout
        transport = over_group.transport_between(c10d.PrefixStore(f"{NAME}/{kind}", self._store), self.rank(), self.size(), deadline)
        return reach(Connection(transport, "process_group", deadline), device, self._options.transport)

    # ---- Everything else

    def _inner(self, arguments: Any) -> Any:
        """Returns the backend for tensors: Gloo on the CPU, NCCL on GPUs."""
        tensor = next(_tensors_in(arguments), None)
        if tensor is None or tensor.device.type == "cpu":
            return self._gloo
        if tensor.device.type != "cuda":
            raise _native.UnsupportedError(f"backend {NAME}: tensors are on the CPU or on GPUs of CUDA, not on {tensor.device}")
        if self._nccl is None:
            if not dist.is_nccl_available():
                raise _native.UnsupportedError(f"backend {NAME}: dense tensors on GPUs need NCCL, which this build of torch lacks")
            store = c10d.PrefixStore("nccl", self._store)
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            self._nccl = dist.ProcessGroupNCCL(store, self.rank(), self.size(), options)
        return self._nccl

    def monitored_barrier(self, opts: c10d.BarrierOptions, wait_all_ranks: bool = False) -> None:
        """Waits for all ranks. Raises an error that names those that do not come."""
        self._gloo.monitored_barrier(opts.timeout, wait_all_ranks)

    def getBackendName(self) -> str:
        """Returns the name of the backend."""
        return NAME

    @property
    def options(self) -> BackendOptions:
        """The options of the group."""
        return self._options

    @property
    def timeout(self) -> datetime.timedelta:
        """The timeout of the group."""
        return self._timeout

    def statistics(self) -> dict[str, dict[str, Any]]:
        """Returns SparseReducer.statistics() by device, without those that have run no operation."""
        found = {str(device): reducer.statistics() for device, reducer in self._reducers.items()}
        return {device: statistics for device, statistics in found.items() if statistics}

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Sets the timeout of dense collectives."""
        for each in self._dense():
            each.set_timeout(timeout)

    def _set_sequence_number_for_group(self) -> None:
        for each in self._dense():
            each._set_sequence_number_for_group()

    def _get_sequence_number_for_group(self) -> int:
        return int(self._gloo._get_sequence_number_for_group())

    def _dense(self) -> list[Any]:
        return [self._gloo] if self._nccl is None else [self._gloo, self._nccl]

    def shutdown(self) -> None:
        """Leaves the other ranks."""
        self._leave()
        for each in self._dense():
            each.shutdown()

    def abort(self) -> None:
        """Leaves the other ranks, even if operations are under way."""
        self._leave()
        for each in self._dense():
            each.abort()

    def _leave(self) -> None:
        for reducer in self._reducers.values():
            reducer.close()
        _open.discard(self)


# Backends that are in use. torch's wrapper for TORCH_DISTRIBUTED_DEBUG=DETAIL does not keep the Python object alive.
_open: set[SparseSyncBackend] = set()


def _tensors_in(arguments: Any) -> Iterator[torch.Tensor]:
    if isinstance(arguments, torch.Tensor):
        yield arguments
    elif isinstance(arguments, list | tuple):
        for each in arguments:
            yield from _tensors_in(each)


def _delegate(name: str) -> Callable[..., Any]:
    def call(self: SparseSyncBackend, *arguments: Any) -> Any:
        return getattr(self._inner(arguments), name)(*arguments)

    call.__name__ = call.__qualname__ = name
    return call


# Collectives that Gloo and NCCL run.
for _name in (
    "allreduce_coalesced", "broadcast", "reduce", "allgather", "all_gather_single", "allgather_coalesced",
    "all_gather_single_coalesced", "gather", "scatter", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced",
    "all_to_all_single", "alltoall", "send", "recv", "recv_anysource", "barrier",
):  # fmt: skip
    setattr(SparseSyncBackend, _name, _delegate(_name))
# Features that it lacks. torch's properties call themselves without end unless they are overridden.
for _name in (
    "_supports_time_estimate", "supports_coalescing", "supports_reconfigure", "supports_shrinking", "supports_splitting", "supports_window",
):  # fmt: skip
    setattr(SparseSyncBackend, _name, False)


def _create(given: Any, options: Any) -> c10d.Backend:
    """Makes a backend for torch.distributed. given: torch's options of a new group."""
    if options is None:
        options = BackendOptions()
    if not isinstance(options, BackendOptions):
        raise _native.InputError(f"pg_options of the backend {NAME}: give sparsesync.torch.BackendOptions, not {type(options).__name__}")
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15):
        raise _native.UnsupportedError(
            f"torch {torch.__version__} cannot run backends that are written in Python: install torch 2.15 or later, or wrap the model "
            "with sparsesync.torch.DistributedDataParallel"
        )
    return SparseSyncBackend(given.store, given.group_rank, given.group_size, given.timeout, options)


def register() -> None:
    """Registers the backend with torch.distributed."""
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
