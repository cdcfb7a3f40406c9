"""A communication hook for programs that keep torch's DistributedDataParallel."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from sparsesync import _native
from sparsesync.torch import device as torch_device
from sparsesync.torch.gradients import Synchronized, synchronized
from sparsesync.torch.launch import connect
from sparsesync.torch.schedule import bucketing
from sparsesync.torch.schedule.bucket import Bucket

Hook = Callable[[object, GradBucket], torch.futures.Future[torch.Tensor]]


class _TorchBucket:
    """A bucket of torch, and the buckets of this library that send its gradients.

    Gradients are passed through stand-ins for the parameters, in their .grad.
    """

    def __init__(self, bucket: GradBucket, names: dict[torch.Tensor, str], first: int) -> None:
        parameters = bucket.parameters()
        # For a sparse gradient, torch passes a plain tensor as the parameter. Such a bucket has a single parameter.
        stand_ins = [torch.nn.Parameter(each.detach(), requires_grad=False) for each in parameters]
        named = [names.get(each, f"parameter {first + i}") for i, each in enumerate(parameters)]
        self.members = [
            Synchronized(first + each.index, each.name, each.parameter)
            for each in synchronized(zip(named, stand_ins, strict=True))
        ]
        self.ours: list[Bucket] = []
        self.take(bucket)

    def take(self, bucket: GradBucket) -> None:
        """Takes the gradients of a step."""
        whole = bucket.buffer()
        self._buffer = whole
        # On a GPU the future makes the reader's stream wait for the stream that writes the result.
        devices: list[int | str | torch.device] = [] if whole.device.type == "cpu" else [whole.device]
        self.done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        for each, gradient in zip(self.members, [whole] if whole.is_sparse else bucket.gradients(), strict=True):
            each.parameter.grad = gradient

    def submit(self) -> None:
        for each in self.ours:
            each.submit()

    def finish(self) -> None:
        for each in self.ours:
            each.wait()
            each.finish()
        result = self.members[0].parameter.grad if self._buffer.is_sparse else self._buffer
        assert result is not None
        self.done.set_result(result)


class CommHookState:
    """The state of ``comm_hook()``: a session over ``process_group``, and the buckets. Create one for each model.

    All ranks must create it in the same order. The arguments are those of ``DistributedDataParallel``, except:

    Args:
        module: The module whose parameter names errors and statistics show.
        process_group: The torch process group of the model; the default group if not given.
        device: Device of the gradients. The default is the device of ``module``, or the CPU without a module.

    Example:
        >>> import sparsesync.torch
        >>> import torch
        >>> import torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> model = torch.nn.Sequential(torch.nn.Embedding(4000, 8), torch.nn.Linear(8, 1))
        >>> ddp = torch.nn.parallel.DistributedDataParallel(model)
        >>> state = sparsesync.torch.CommHookState(model)
        >>> ddp.register_comm_hook(None, sparsesync.torch.comm_hook(state))
        >>> for step in range(3):
        ...     ddp(torch.tensor([3, 1, 3])).sum().backward()
        >>> state.statistics()["0.weight"]["gradient"]  # dense, and sent as rows
        'rows'
        >>> state.close()
        >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        module: torch.nn.Module | None = None,
        process_group: dist.ProcessGroup | None = None,
        scheme: str = "auto",
        gradient: str = "mean",
        wire: str | None = None,
        deadline: float | datetime.timedelta | None = None,
        *,
        bucket_cap_mb: float | None = None,
        memory_bytes: int | None = None,
        threads: int = 1,
        transport: str | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self._options = bucketing.Options(scheme, gradient, wire, bucket_cap_mb)
        self._group = dist.group.WORLD if process_group is None else process_group
        if device is None:
            of_module = (each.device for each in module.parameters() if each.requires_grad) if module is not None else iter(())
            device = next(of_module, torch.device("cpu"))
        self._device = torch_device.use(torch.device(device), "the module", memory_bytes)
        connection = connect(process_group, deadline, self._device, transport)
        self.session = connection.open(self._device, threads, memory_bytes)
        self._dense_scheme = connection.dense_scheme
        self.session.agree("the hook", bucketing.statement([], [], self._options, announce=False, broadcast_buffers=False))
        self._names: dict[torch.Tensor, str] = {}
        if module is not None:
            self._names = {parameter: name for name, parameter in module.named_parameters()}
        self._began = False  # torch rebuilds its buckets after the first step
        self._known: dict[tuple[int, ...], _TorchBucket] = {}
        self._waiting: list[_TorchBucket] = []  # buckets of the current step
        self._learned = False

    def statistics(self) -> dict[str, Any]:
        """Returns the costs of each parameter, by name, as in ``DistributedDataParallel.statistics()["parameters"]``."""
        return {
            each.name: ours.statistics()
            for bucket in self._known.values()
            for ours in bucket.ours
            for each in ours.planned.members
        }

    def close(self) -> None:
        """Leaves the other workers."""
        self.session.close()

    def take(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Takes one bucket of a step; ``comm_hook()`` calls it.

        Args:
            bucket: The bucket of torch's DistributedDataParallel.

        Returns:
            A future of the bucket's synchronized buffer.

        Raises:
            UnsupportedError: torch rebuilt its buckets after the second step.
        """
        if not self._began:
            self._began = bucket.is_last()
            return self._by_torch(bucket)
        key = tuple(id(each) for each in bucket.parameters())
        known = self._known.get(key)
        if known is None:
            if self._learned:
                raise _native.UnsupportedError(
                    "torch rebuilt its buckets after the second step: pass static_graph=False to torch's DistributedDataParallel, "
                    "or wrap the module with sparsesync.torch.DistributedDataParallel"
                )
            first = sum(len(each.members) for each in self._known.values())
            known = self._known[key] = _TorchBucket(bucket, self._names, first)
        else:
            known.take(bucket)
        self._waiting.append(known)
        if self._learned:
            known.submit()
        if bucket.is_last():
            self._end_step()
        return known.done

    def _end_step(self) -> None:
        """Ends the step. Backward is nearly over: torch asks for the last bucket after it has passed on all others."""
        if not self._learned:
            for each in self._waiting:
                self._learn(each)
            for each in self._waiting:
                each.submit()
            self._learned = True
        for each in self._waiting:
            each.finish()
        self._waiting = []

    def _learn(self, bucket: _TorchBucket) -> None:
        seen = bucketing.tell(self.session, bucketing.observe(bucket.members, (each.index for each in bucket.members), []))
        layers = bucketing.layers_of(bucket.members, seen, frozenset())
        planner = _native.SchedulePlanner(self.session, layers.native(), "lazy", self._options.full_bytes)
        bucket.ours = [
            Bucket(self.session, self._device, each, self._options, self._dense_scheme, announces=False)
            for each in layers.planned(planner.buckets)
        ]
        for each in bucket.ours:
            each.use.ask = lambda indices: [True] * len(indices)  # torch determines which parameters are used

    def _by_torch(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if self._options.gradient == "mean":
            buffer = buffer.div_(dist.get_world_size(self._group))
        work = dist.all_reduce(buffer, group=self._group, async_op=True)
        assert work is not None
        future: torch.futures.Future[Any] = work.get_future()
        return future.then(lambda done: done.value()[0])


def comm_hook(state: CommHookState) -> Hook:
    """Returns a communication hook for torch's DistributedDataParallel.

    Gradients with few nonzero rows are sent as rows, all others whole. The first step uses torch's all-reduce, because
    torch rebuilds its buckets after it. All ranks must register the hook.

    Args:
        state: The state of the model.

    Returns:
        A hook for ``torch.nn.parallel.DistributedDataParallel.register_comm_hook``.

    Example:
        See ``CommHookState``.
    """

    def hook(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return state.take(bucket)

    # torch reads the annotations, which are strings here.
    hook.__annotations__ = {"_": object, "bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
    return hook
