"""The work of a DistributedDataParallel in each forward and backward pass: its hooks, its session, and the exchange of a step."""

from __future__ import annotations

import contextlib
import datetime
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._compile import _disable_dynamo  # torch.compiler.disable would import all of dynamo at once

from sparsesync import _native
from sparsesync.torch import device as torch_device
from sparsesync.torch.gradients import Synchronized, synchronized
from sparsesync.torch.launch import Connection, Group, connect
from sparsesync.torch.module_hooks import ModuleHooks, before_ready, tensors_in, weakly, when_ready
from sparsesync.torch.module_state import Membership, ModuleState, SharedBuffers
from sparsesync.torch.optimizer import backward_optimizers
from sparsesync.torch.optimizer.grad_ops import GradientOps, Scaler
from sparsesync.torch.passes import Arrivals, Next, Passes
from sparsesync.torch.schedule import bucketing, deferred_params
from sparsesync.torch.schedule.bucket import Bucket
from sparsesync.torch.schedule.pending_results import OF_ONE_STEP, Action
from sparsesync.torch.schedule.schedule import Schedule
from sparsesync.torch.sparsify.sparsifier_runtime import Wrapped
from sparsesync.torch.step_exchange import StepExchange, Worker
from sparsesync.torch.uneven_inputs import UnevenInputs, one_at_a_time


class Synchronizer:
    """Synchronizes the gradients of a module. All workers make one, in the same order."""

    def __init__(
        self,
        module: torch.nn.Module,
        group: Group,
        options: bucketing.Options,
        *,
        deadline: float | datetime.timedelta | None,
        announce: bool,
        broadcast_buffers: bool,
        init_sync: bool,
        init_buffers: bool,
        memory_bytes: int | None,
        threads: int,
        transport: str | None,
    ) -> None:
        state = ModuleState(module, init_buffers)
        self.parameters = synchronized(named for named in state.parameters() if named[1].requires_grad)
        self._membership = Membership(state, self.parameters)
        what = f"parameter '{self.parameters[0].name}'"
        device = torch_device.use(torch_device.device_of(self.parameters), what, memory_bytes)
        _close_failed(self.parameters)
        state.check()
        connection = connect(group, deadline, device, transport)
        self._worker = _worker(connection, device, connection.open(device, threads, memory_bytes), options)
        try:
            self._buffers = SharedBuffers(self.session, device, state, broadcast_buffers)
            self._exchange = StepExchange(self._worker, self.parameters, options, self._buffers)
            self._passes = Passes()
            self._arrivals = Arrivals()
            self._joining: UnevenInputs | None = None
            self._with_optimizers: list[torch.nn.Parameter] = []  # parameters that are stepped in the backward pass
            stated = bucketing.statement(self.parameters, state.buffers(), options, announce, broadcast_buffers)
            self.session.agree("the model", stated)
            if init_sync:
                state.take_over(self.session, root=0)
            state.shares_buffers = broadcast_buffers
            self._hooks = ModuleHooks(module)
            self._hooks.add(when_ready(member.parameter, self._hook_of(member.index)) for member in self.parameters)
            if options.measures:
                self._see_modules()
                self._hooks.add(before_ready(member.parameter, _finisher(member.parameter)) for member in self.parameters)
            if announce:
                self._exchange.announce()
            self._meet_others()
        except BaseException:
            self.session.close()
            raise

    def _meet_others(self) -> None:
        """Finds live wrappers that share parameters."""
        own = {id(member.parameter): member.index for member in self.parameters}
        _live[id(self)] = weakref.ref(self)
        for other in _all_live():
            if other is self:
                continue
            for member in other.parameters:
                index = own.get(id(member.parameter))
                if index is not None:
                    self._passes.share(index, other._passes)
                    other._passes.share(member.index, self._passes)

    def _see_modules(self) -> None:
        self._hooks.see_modules(self.parameters, weakly(self._on_module))

    def measure(self) -> Schedule:
        """Measures passes from the next step on, like StepExchange.measure()."""
        self._expect_open()
        schedule = self._exchange.measure()
        self._see_modules()
        return schedule

    @property
    def module(self) -> torch.nn.Module:
        """The wrapped module."""
        return self._buffers.state.module

    @property
    def session(self) -> _native.Session:
        return self._worker.session

    @property
    def exchange(self) -> StepExchange:
        return self._exchange

    @property
    def gradient_ops(self) -> GradientOps:
        return self._exchange.gradient_ops

    @property
    def transport_kind(self) -> str:
        """The network that connects the workers: "mpi", "process_group", "ucx", "local" or "nccl"."""
        return self._worker.transport_kind

    @property
    def broadcasts_buffers(self) -> bool:
        """Whether forward passes see the buffers of worker 0."""
        return self._buffers.broadcasts

    @property
    def all_there(self) -> bool:
        """Whether all results of the last step were taken."""
        return not self._exchange.results.pending

    @property
    def buckets(self) -> Sequence[Bucket]:
        """The buckets in the order of their gradients; empty before the first step."""
        return self._exchange.buckets

    # ---- Step

    def begin_forward(self, synchronize: bool) -> None:
        if isinstance(self._buffers.state.module, torch.jit.ScriptModule) and not self.session.closed:
            self.synchronize()
        passes = self._passes
        if not torch.is_grad_enabled():
            if not self.session.closed:
                self._buffers.begin_evaluation(self._joining is not None, passes.next is Next.ACCUMULATE)
            return
        self._expect_open()
        self._membership.check()
        passes.begin_forward()
        if self._worker.one_backward and torch._C._is_multithreading_enabled():
            raise _native.UnsupportedError(
                "workers that are threads of one process share a GPU, and torch runs their backward passes one after another in one "
                "thread: train within torch.autograd.set_multithreading_enabled(False), or start a process for each worker"
            )
        self._buffers.begin_forward(passes.next is Next.FORWARD and not self._joining, synchronize)
        exchange = self._exchange
        if not synchronize:
            passes.next = Next.ACCUMULATE
            if exchange.announcements:
                exchange.announcements.listen(announces=False)
            return
        if exchange.schedule is None:
            self._with_optimizers = backward_optimizers.take_over(member.parameter for member in self.parameters)
        if self._joining and passes.next is not Next.SYNCHRONIZE:
            self._buffers.begin_joined(self._joining.begin_step(self.session))
        passes.next = Next.SYNCHRONIZE
        if exchange.announcements:
            exchange.announcements.listen(announces=exchange.schedule is not None)

    @_disable_dynamo
    def _on_module(self, parameters: Sequence[Synchronized], *_: object) -> None:
        """Takes the pending results of a module's direct parameters, before its forward pass."""
        schedule = self._exchange.schedule
        if schedule is None or schedule.timer.layers is None:
            return
        timer = schedule.timer.layers if self._passes.next is Next.SYNCHRONIZE else None
        if not self.all_there:
            if timer:
                timer.leave()
            for member in parameters:
                if isinstance(member.parameter, deferred_params.Pending):
                    deferred_params.finish(member.parameter)
        if timer:
            timer.enter(schedule.layer_of(parameters[0].index))

    def end_forward(self, result: Any) -> None:
        """Ends a forward pass. result: the return value of the module."""
        synchronizes = self._passes.next is Next.SYNCHRONIZE
        if synchronizes:
            on_output = functools.partial(weakly(self._on_output), self._passes.steps_begun)
            for tensor in tensors_in(result):
                tensor.register_hook(on_output)  # type: ignore[no-untyped-call]
        schedule, announcements = self._exchange.schedule, self._exchange.announcements
        if schedule and schedule.timer.layers:
            schedule.timer.layers.leave()
        if announcements:
            announcements.end(announces=synchronizes and schedule is not None)

    @_disable_dynamo
    def _finish_buffers(self, *_: object) -> None:
        self._buffers.finish()

    def _hook_of(self, index: int) -> Callable[..., None]:
        """Makes a hook like weakly() does, but cheaper: it is called for each gradient of each step."""
        reference = weakref.ref(self)

        def call(_: object, accumulated: tuple[Any, ...]) -> None:
            alive = reference()
            if alive is not None and accumulated[0] is not None:
                alive._on_gradient(index)

        return call

    def _on_gradient(self, index: int) -> None:
        member, passes, arrivals = self.parameters[index], self._passes, self._arrivals
        gradient = member.parameter.grad
        if gradient is None:
            raise _native.OrderError(
                f"parameter '{member.name}': a hook removed its gradient before workers exchanged it, for example a step of an optimizer "
                "within the backward pass: step after backward(), or use torch.distributed.optim._apply_optimizer_in_backward before "
                "the first forward pass"
            )
        arrivals.streams[index] = self._worker.device.stream()
        if passes.next is Next.ACCUMULATE or not (passes.running or self._begins_step(member)):
            return
        if not passes.running:
            self._begin_backward()
        still_expected = arrivals.add(index)
        if passes.is_shared(index):
            arrivals.copies[index] = gradient.clone()
        if still_expected < 0:
            self._exchange.expect_unsent(member)
        schedule = self._exchange.schedule
        if still_expected != 0 or schedule is None:
            return
        complete = schedule.ready(index)
        if complete:
            self._exchange.submit(complete, arrivals)

    def _begins_step(self, member: Synchronized) -> bool:
        self._expect_open()
        return self._passes.begins_step(member)

    def _on_output(self, steps_begun: int, _: torch.Tensor) -> None:
        """Handles a backward pass that reaches an output of the forward pass."""
        if not self.session.closed and self._passes.come_through_output(steps_begun):
            torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)

    def _end_pass(self) -> None:
        if self._passes.end_pass():
            with torch.profiler.record_function("sparsesync::synchronize"):
                self._synchronize_rest()

    def _begin_backward(self) -> None:
        self.synchronize()  # results whose modules this forward pass did not run
        needs_callback = self._passes.begin_backward()
        self._arrivals.clear()
        self._exchange.begin_step()
        schedule = self._exchange.schedule
        if schedule and schedule.timer.layers:
            schedule.timer.layers.begin_backward()
        if needs_callback:
            torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)

    def _synchronize_rest(self) -> None:
        """Ends the step. Raises the error of a step that all workers skipped; the next step works."""
        if self._exchange.schedule is None and self._exchange.goes_on_under_forward:
            if self._buffers.broadcasts:
                self._hooks.before_forward(weakly(self._finish_buffers))
            self._hooks.before_state(weakly(self.finish_all))
        left_out = self._exchange.finish(self._arrivals, self._joining, self._with_optimizers)
        self._passes.end_step()
        if left_out:
            raise left_out

    # ---- Results

    def synchronize(self) -> None:
        """Waits for all results, and runs all deferred actions."""
        self._exchange.results.take_all()

    def finish_all(self, *_: object) -> None:
        """Waits for results and buffers. Call it before the module's state is read."""
        self.synchronize()
        self._finish_buffers()

    def once_there(self, parameters: Iterable[torch.nn.Parameter], action: Action) -> None:
        """Runs an action on parameters: now, or once their gradients arrive."""
        self._exchange.results.once_there(parameters, action)

    # ---- Between backward and step()

    def clip(self, most: float, norm_type: float, error_if_nonfinite: bool) -> torch.Tensor:
        """Clips gradients like GradientOps.clip()."""
        self._expect_open()
        return self._exchange.clip(most, norm_type, error_if_nonfinite, self._joining)

    def keep_finite(self) -> bool:
        """Checks gradients like StepExchange.keep_finite()."""
        self._expect_open()
        return self._exchange.keep_finite(self._joining)

    def scaled(self, scaler: Scaler) -> None:
        """Scales losses from now on. Raises OrderError if the module already has a scaler."""
        if self.gradient_ops.scaler is not None:
            raise _native.OrderError("LossScaler: the module already has one: use that one")
        self.gradient_ops.scaler = scaler

    def wrapped(self, wrapped: Wrapped) -> None:
        """Adds an optimizer like StepExchange.add_optimizer()."""
        self._exchange.add_optimizer(wrapped)

    # ---- Uneven inputs

    @contextlib.contextmanager
    def join(self, enable: bool, of_all: bool, throws: bool) -> Iterator[None]:
        self._expect_open()
        if not enable:
            yield
            return
        with one_at_a_time():
            joining = UnevenInputs(of_all, throws)
            try:
                self.begin_join(joining)
                yield
                while self.shadow(joining):
                    pass
                self.end_join(joining)
            finally:
                self._joining = None

    def begin_join(self, joining: UnevenInputs) -> None:
        """Has workers report from the next step on whether they have inputs."""
        if self._exchange.sparsifier and self.gradient_ops.scaler:
            raise _native.UnsupportedError(
                "join: a worker without inputs would not know which steps a sparsifier with a LossScaler skips: leave one of the two out"
            )
        self._joining = joining

    def shadow(self, joining: UnevenInputs) -> bool:
        """Takes part, without inputs, in a step of workers that have inputs. Returns whether any had."""
        self.begin_join(joining)
        if not joining.shadow(self.session):
            return False
        self._passes.next = Next.SYNCHRONIZE
        self._buffers.begin_joined(joining.root)
        self._begin_shadow()
        with contextlib.suppress(*OF_ONE_STEP):  # workers with inputs raise it and continue
            self._synchronize_rest()
        self._passes.next = Next.FORWARD
        return True

    def end_join(self, joining: UnevenInputs) -> None:
        """Ends a join(), when no worker has inputs: broadcasts the parameters of a worker that was last."""
        self._buffers.state.take_over(self.session, joining.root)
        self._buffers.are_equal()
        self._joining = None

    def _begin_shadow(self) -> None:
        """Begins a step of a worker without inputs, and so without gradients."""
        for member in self.parameters:
            member.parameter.grad = None
        self._arrivals.clear()
        self._exchange.begin_step()
        announcements = self._exchange.announcements
        if announcements and self._exchange.schedule is not None:
            announcements.listen(announces=True)
            announcements.end(announces=True)

    # ---- Statistics

    def statistics(self) -> dict[str, Any]:
        self._expect_open()
        return self._exchange.statistics()

    # ---- Close

    def expect_finished(self) -> None:
        """Raises OrderError if the last backward pass failed."""
        self._passes.expect_finished()

    def expect_no_step(self, what: str) -> None:
        """Raises OrderError if a step was made."""
        self._exchange.expect_no_step(what)

    def _expect_open(self) -> None:
        if self.session.closed:
            raise _native.ClosedError("the DistributedDataParallel is closed: wrap the module again")

    @property
    def has_failed(self) -> bool:
        """Whether a backward pass is running or has failed."""
        return self._passes.running

    def close(self) -> None:
        try:
            if not self.session.closed and not self._passes.running:
                self.synchronize()
        finally:
            self._passes.running = False
            _live.pop(id(self), None)
            self._exchange.close()
            self._hooks.remove()
            backward_optimizers.give_back(self._with_optimizers)
            self._with_optimizers = []
            self.session.close()


def _worker(
    connection: Connection, device: torch_device.CpuDevice, session: _native.Session, options: bucketing.Options
) -> Worker:
    # On one machine, communication competes with the backward pass for CPU time, so starting early does not help. With a GPU it does.
    is_late = connection.one_machine and device.native is None
    return Worker(
        session,
        device,
        connection.kind,
        connection.payloads,
        connection.without_ucx,
        connection.one_machine,
        connection.deadline.total_seconds(),
        # The network's all-reduce is a single phase, which leaves no gather phase for the next forward pass.
        dense_scheme="dense_ring" if options.schedule == "dear" else connection.dense_scheme,
        first_bytes=None if is_late else options.first_bytes,
        one_backward=connection.shares_gpu and device.one_backward,
    )


# Wrappers that are not closed, by id(). No lock guards it: garbage collection may close a wrapper within any statement.
_live: dict[int, weakref.ref[Synchronizer]] = {}


def _all_live() -> list[Synchronizer]:
    """Returns the wrappers of this process that are not closed."""
    found = [reference() for reference in list(_live.values())]
    return [wrapper for wrapper in found if wrapper is not None]


def _finisher(parameter: torch.nn.Parameter) -> Callable[[object], None]:
    """Makes a hook that takes a parameter's pending results before another gradient is accumulated."""
    reference = weakref.ref(parameter)

    def call(_: object) -> None:
        held = reference()
        if isinstance(held, deferred_params.Pending):
            deferred_params.finish(held)

    return call


def _close_failed(parameters: Iterable[Synchronized]) -> None:
    """Closes wrappers of these parameters whose last backward pass failed, because the module is being wrapped again.

    Other workers may wait for this one in that pass. They then fail, and wrap the module again, too.
    """
    own = {id(member.parameter) for member in parameters}
    for other in _all_live():
        if other.has_failed and any(id(member.parameter) in own for member in other.parameters):
            other.close()
