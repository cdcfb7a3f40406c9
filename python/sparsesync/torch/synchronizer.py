"""What a DistributedDataParallel does at each forward and backward pass: its hooks, its session, what it has learned."""

from __future__ import annotations

import contextlib
import datetime
import enum
import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from sparsesync import _native
from sparsesync.torch import device as of_device
from sparsesync.torch import gradients as of_torch
from sparsesync.torch import layout, state
from sparsesync.torch.announcements import Announcements
from sparsesync.torch.bucket import Bucket
from sparsesync.torch.gradients import Kind, Submitted, Synchronized
from sparsesync.torch.joining import Joining
from sparsesync.torch.launch import LocalMember, connect

_log = logging.getLogger("sparsesync")


class Listener:
    """Is told what crosses: of each step first every bucket's gradients, then that the step is over."""

    def on_submit(self, members: Sequence[Synchronized], kind: Kind, given: Sequence[Submitted]) -> None:
        raise NotImplementedError

    def on_step(self) -> None:
        raise NotImplementedError


class Synchronizer:
    """Synchronizes the gradients of a module. All workers make one, in the same order."""

    def __init__(
        self,
        module: torch.nn.Module,
        group: dist.ProcessGroup | LocalMember | None,
        options: layout.Options,
        *,
        deadline: float | datetime.timedelta | None,
        announce: bool,
        memory_bytes: int | None,
        threads: int,
        transport: str | None,
    ) -> None:
        self.parameters = of_torch.synchronized(
            (name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad
        )
        self.listener: Listener | None = None
        self._module = module
        self._options = options
        what = f"parameter '{self.parameters[0].name}'"
        self._device = of_device.use(of_device.device_of(self.parameters), what, memory_bytes)
        connection = connect(group, deadline, self._device, transport)
        self._kind = connection.kind
        self._payloads = connection.payloads
        self._dense_scheme = connection.dense_scheme
        self._one_backward = connection.shares_gpu and self._device.one_backward
        # On one machine what crosses takes the processors that the pass needs: no use in starting early. A GPU does both.
        late = connection.one_machine and self._device.native is None
        self._first_bytes = options.full_bytes if late else options.first_bytes
        self.session = connection.open(self._device, threads, memory_bytes)
        sparse = layout.sparse_parameters(module)
        self._sparse_by_module = frozenset(each.index for each in self.parameters if each.parameter in sparse)
        self._buckets: list[Bucket] | None = None  # before the first step: none
        self._bucket_of: dict[int, Bucket] = {}
        self._announcements: Announcements | None = None
        self._ready: dict[int, None] = {}  # parameters, in the order in which their gradients became ready
        self._streams: dict[int, int] = {}  # of each parameter, the one that wrote its gradient
        self._next = _Next.FORWARD
        self._running = False  # within a backward pass that is synchronized
        self._joining: Joining | None = None
        stated = layout.statement(self.parameters, state.buffers_of(module), options, announce)
        self.session.agree("the model", stated)
        state.take_over(self.session, module, root=0)
        self._hooks = [
            of_torch.when_ready(each.parameter, functools.partial(self._on_gradient, each.index))
            for each in self.parameters
        ]
        if announce:
            self._announcements = Announcements(module, self.parameters, self._device)

    # ---- A step.

    def begin_forward(self, synchronize: bool, broadcast_buffers: bool) -> None:
        self._expect_open()
        if self._running:
            raise _native.OrderError(
                "the last backward pass failed on its way, and the workers are out of step: make the "
                "DistributedDataParallel again"
            )
        if self._one_backward and torch._C._is_multithreading_enabled():
            raise _native.UnsupportedError(
                "workers that are threads of one process share a GPU, and torch runs their backward passes in one thread, one after "
                "another: train within torch.autograd.set_multithreading_enabled(False), or start a process for each"
            )
        if not synchronize:
            self._next = _Next.ACCUMULATE
            if self._announcements:
                self._announcements.listen(tells=False)
            return
        if self._next is not _Next.SYNCHRONIZE:  # the first one of a step
            root = self._joining.begin_step(self.session) if self._joining else 0
            if broadcast_buffers:
                self._broadcast_buffers(root)
        self._next = _Next.SYNCHRONIZE
        if self._announcements:
            self._announcements.listen(tells=self._buckets is not None)

    def end_forward(self) -> None:
        if self._announcements:
            self._announcements.end(tells=self._next is _Next.SYNCHRONIZE and self._buckets is not None)

    def _broadcast_buffers(self, root: int) -> None:
        state.broadcast_together(self.session, [buffer for _, buffer in state.buffers_of(self._module)], root)

    def _on_gradient(self, index: int, _: torch.Tensor) -> None:
        self._streams[index] = self._device.stream()
        if self._next is _Next.ACCUMULATE:
            return
        self._expect_open()
        if self._next is _Next.FORWARD:
            raise _native.OrderError(
                "backward ran without a forward pass of the DistributedDataParallel before it: call the wrapper, not the "
                "module; add up losses of one forward pass; or use no_sync()"
            )
        if not self._running:
            self._begin_backward()
        if index in self._ready:
            raise _native.OrderError(
                f"parameter '{self.parameters[index].name}' got a gradient twice in one backward pass, such as by "
                "reentrant checkpoints: use checkpoint(..., use_reentrant=False)"
            )
        self._ready[index] = None
        if self._buckets is None:
            return
        bucket = self._bucket_of[index]
        bucket.pending.discard(index)
        if not bucket.pending:
            self._submit(bucket)

    def _begin_backward(self) -> None:
        self._running = True
        self._ready.clear()
        for bucket in self.buckets:
            bucket.begin_step()
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        with torch.profiler.record_function("sparsesync::synchronize"):
            self._synchronize_rest()
        self._next = _Next.FORWARD
        self._running = False

    def _synchronize_rest(self) -> None:
        """What is not submitted yet, with what gradients there are; then waits for all."""
        if self._buckets is None:
            self._learn()
        assert self._buckets is not None
        for bucket in self._buckets:
            if not bucket.submitted:
                self._submit(bucket)
        scale = 1.0
        if self._joining and self._options.gradient == "mean":
            scale = self._joining.scale(self.session.size)
        for bucket in self._buckets:
            bucket.finish(scale)
        if self._announcements:
            self._announcements.forget()
        if self.listener:
            self.listener.on_step()

    def _submit(self, bucket: Bucket) -> None:
        given = bucket.submit(self._streams[each.index] for each in bucket.planned.members if each.index in self._streams)
        if self.listener:
            self.listener.on_submit(bucket.planned.members, bucket.planned.kind, given)

    def _learn(self) -> None:
        """Makes the buckets of what the first backward pass showed all workers."""
        untold = self._announcements.untold(self.parameters) if self._announcements else []
        seen = layout.tell(self.session, layout.observe(self.parameters, self._ready, untold))
        sizes = (self._first_bytes, self._options.full_bytes)
        planned = layout.plan(self.parameters, seen, self._sparse_by_module, *sizes)
        silent = {index for observed in seen for index in observed.untold}
        buckets = [
            Bucket(self.session, self._device, each, self._options, self._dense_scheme, self._announces(each, silent))
            for each in planned
        ]
        self._bucket_of = {each.index: bucket for bucket in buckets for each in bucket.planned.members}
        if self._announcements:
            # All rows cross ahead of the first gradients.
            telling = {b.number: tuple(each.index for each in b.planned.members) for b in buckets if b.announces}
            order = [(number, "announce") for number in telling]
            order += [(bucket.number, phase) for bucket in buckets for phase in ("reduce", "gather")]
            self.session.set_order(order, self.session.step)
            self._announcements.start(self.session, telling)
        self._buckets = buckets
        for bucket in buckets:
            bucket.begin_step()
        _log.log(logging.INFO if self.session.rank == 0 else logging.DEBUG, "%s", self._decided())

    def _announces(self, planned: layout.Planned, silent: set[int]) -> bool:
        if self._announcements is None or planned.kind is Kind.DENSE:
            return False
        return all(each.index not in silent for each in planned.members)

    def _decided(self) -> str:
        assert self._buckets is not None
        of_kinds = {kind: [b for b in self._buckets if b.planned.kind is kind] for kind in Kind}
        parts = [
            f"{sum(len(bucket.planned.members) for bucket in of_kind)} {kind} parameters in {len(of_kind)} buckets"
            for kind, of_kind in of_kinds.items()
            if of_kind
        ]
        return (
            f"worker {self.session.rank} of {self.session.size} over {self._kind}: {', '.join(parts)}; scheme "
            f"{self._options.scheme}, {self._options.gradient}, wire {self._options.wire or 'as it is'}; on "
            f"{self.session.device}, gradients cross {self._payloads}"
        )

    # ---- Uneven inputs.

    @contextlib.contextmanager
    def join(self, enable: bool, of_all: bool, throws: bool) -> Iterator[None]:
        self._expect_open()
        if not enable:
            yield
            return
        self._joining = joining = Joining(of_all, throws)
        try:
            yield
            while joining.shadow(self.session):
                self._next = _Next.SYNCHRONIZE
                self._broadcast_buffers(joining.root)
                self._begin_shadow()
                self._synchronize_rest()
                self._next = _Next.FORWARD
            state.take_over(self.session, self._module, joining.root)
        finally:
            self._joining = None

    def _begin_shadow(self) -> None:
        """A step of a worker that has no inputs: no gradients."""
        for each in self.parameters:
            each.parameter.grad = None
        self._ready.clear()
        for bucket in self.buckets:
            bucket.begin_step()
        if self._announcements and self._buckets is not None:
            self._announcements.listen(tells=True)
            self._announcements.end(tells=True)

    # ---- What it took.

    @property
    def buckets(self) -> Sequence[Bucket]:
        """In the order of their gradients; none before the first step."""
        return self._buckets or ()

    def statistics(self) -> dict[str, Any]:
        self._expect_open()
        told = [(bucket.planned.members, bucket.statistics()) for bucket in self.buckets]
        seconds = sum(each["seconds"] for _, each in told)
        exposed = sum(each["seconds_exposed"] for _, each in told)
        return {
            "workers": self.session.size,
            "rank": self.session.rank,
            "transport": self._kind,
            "device": self.session.device,
            "payloads": self._payloads,
            "steps": self.session.step,
            **self.session.counters(),
            "seconds": seconds,
            "seconds_exposed": exposed,
            "seconds_hidden": max(0.0, seconds - exposed),
            "memory_bytes": self.session.memory_in_use,
            "memory_high_water_bytes": self.session.memory_high_water,
            "pinned_bytes": self.session.pinned_in_use,
            "pinned_high_water_bytes": self.session.pinned_high_water,
            "parameters": {each.name: dict(of_bucket) for members, of_bucket in told for each in members},
        }

    # ---- The end.

    def _expect_open(self) -> None:
        if self.session.closed:
            raise _native.ClosedError("the DistributedDataParallel is closed: make another one")

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._announcements:
            self._announcements.close()
        self.session.close()


class _Next(enum.Enum):
    """What the last forward pass asks of the backward pass that follows."""

    FORWARD = "nothing: a forward pass comes first"
    ACCUMULATE = "keep gradients here"
    SYNCHRONIZE = "make them equal"
