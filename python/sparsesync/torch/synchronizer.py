"""What a DistributedDataParallel does at each forward and backward pass: its hooks, its session, what it has learned."""

from __future__ import annotations

import contextlib
import datetime
import enum
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch._compile import _disable_dynamo  # torch.compiler.disable would import all of dynamo at once

from sparsesync import _native
from sparsesync.torch import device as of_device
from sparsesync.torch import gradients as of_torch
from sparsesync.torch import module_state, safe_logging
from sparsesync.torch.announcements import Announcements
from sparsesync.torch.gradients import Kind, OnModule, Submitted, Synchronized
from sparsesync.torch.launch import Group, connect
from sparsesync.torch.module_state import BackgroundBuffers, Membership, ModuleState
from sparsesync.torch.optimizer import backward_optimizers
from sparsesync.torch.optimizer.grad_ops import GradientOps
from sparsesync.torch.schedule import bucketing, deferred_params
from sparsesync.torch.schedule.bucket import Bucket
from sparsesync.torch.schedule.bucketing import Planned
from sparsesync.torch.schedule.pending_results import OF_ONE_STEP, Action, PendingResults
from sparsesync.torch.schedule.scalar_allreduce import ask_all
from sparsesync.torch.schedule.schedule import Schedule
from sparsesync.torch.sparsify.sparsifier_runtime import SparsifierRuntime, Wrapped
from sparsesync.torch.sparsify.sparsifier_state import SparsifierState
from sparsesync.torch.uneven_inputs import UnevenInputs

_FAILED = (
    "the last backward pass failed on its way, and the workers are out of step: wrap the module again, on all workers, which closes "
    "this DistributedDataParallel"
)


class Listener:
    """Is told what crosses: of each step first every bucket's gradients, then that the step is over. It raises only what ends the
    session: its own errors are no errors of the step."""

    def on_submit(self, members: Sequence[Synchronized], kind: Kind, given: Sequence[Submitted]) -> None:
        pass

    def on_step(self) -> None:
        pass


class Scaler(Protocol):
    """Scales losses, and has steps skipped that overflow."""

    skipped_steps: int

    def get_scale(self) -> float: ...

    def begin_step(self) -> None: ...


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
        self._state = ModuleState(module, init_buffers)
        self.parameters = of_torch.synchronized(each for each in self._state.parameters() if each[1].requires_grad)
        self.listener: Listener | None = None
        self._module = module
        self._options = options
        self._broadcasts = broadcast_buffers and bool(self._state.buffers())
        self._buffers: BackgroundBuffers | None = None  # that cross under the forward pass
        # Whether the next pass makes buffers worker 0's. None: they are equal, and no pass has run since the module was wrapped.
        self._refresh_due: bool | None = None
        self._with_buffers = [each for each in module.modules() if each._buffers]
        self._membership = Membership(self._state, self.parameters)
        what = f"parameter '{self.parameters[0].name}'"
        self._device = of_device.use(of_device.device_of(self.parameters), what, memory_bytes)
        _close_failed(self.parameters)
        self._state.check()
        connection = connect(group, deadline, self._device, transport)
        self._kind = connection.kind
        self._payloads = connection.payloads
        # What the network sums by itself is whole in one phase: nothing of it would be left for the next forward pass.
        self._dense_scheme = "dense_ring" if options.schedule == "dear" else connection.dense_scheme
        self._one_backward = connection.shares_gpu and self._device.one_backward
        # On one machine what crosses takes the processors that the pass needs: no use in starting early. A GPU does both.
        late = connection.one_machine and self._device.native is None
        self._first_bytes = None if late else options.first_bytes
        self.session = connection.open(self._device, threads, memory_bytes)
        try:
            self._set_up(module, announce, broadcast_buffers, init_sync)
        except BaseException:
            self.session.close()
            raise

    def _set_up(self, module: torch.nn.Module, announce: bool, broadcast_buffers: bool, init_sync: bool) -> None:
        """Agrees with the other workers on the model, and listens to it."""
        options = self._options
        self._sparsifying: SparsifierRuntime | None = None
        if options.sparsifier:
            options.sparsifier.check((each.name, each.parameter) for each in self.parameters)
            self._sparsifying = SparsifierRuntime(options.sparsifier, self.session, self._device)
        sparse = bucketing.sparse_parameters(module)
        self._sparse_by_module = frozenset(each.index for each in self.parameters if each.parameter in sparse)
        self._schedule: Schedule | None = None  # before the first step: none
        self._wrapped: list[Wrapped] = []
        self._scaler: Scaler | None = None
        self._is_left_out = False  # the last step: refused, or the sparsifier found what is not finite
        self._results = PendingResults(of_torch.weakly(self._scale_of_results))
        self.stepping = GradientOps(
            self.parameters,
            self._wrapped,
            self._results,
            of_torch.weakly(self._schedule_to_ask),
        )
        self._announcements: Announcements | None = None
        self._ready: dict[int, None] = {}  # parameters, in the order in which their gradients became ready
        self._streams: dict[int, int] = {}  # of each parameter, the one that wrote its gradient
        self._next = _Next.FORWARD
        self._running = False  # within a backward pass that is synchronized
        self._through_output = False  # within a backward pass that comes through what a forward pass returned
        self._is_late = False  # ... which was of a step that is over
        self._steps_begun = 0
        self._arrivals: dict[int, int] = {}  # of parameters' gradients, in this step
        self._expected: dict[int, int] = {}  # the most that there were in a step, where there were several
        self._warned = False
        # Other wrapped modules that share a parameter, by its index, and its gradient as this one found it in the step.
        self._sharing: dict[int, weakref.WeakSet[Synchronizer]] = {}
        self._copies: dict[int, torch.Tensor] = {}
        self._joining: UnevenInputs | None = None
        stated = bucketing.statement(self.parameters, self._state.buffers(), options, announce, broadcast_buffers)
        self.session.agree("the model", stated)
        if init_sync:
            self._state.take_over(self.session, root=0)
        self._state.shares_buffers = broadcast_buffers
        self._with_optimizers: list[torch.nn.Parameter] = []  # that step in the backward pass
        self._hooks: list[Any] = [of_torch.when_ready(each.parameter, self._hook_of(each.index)) for each in self.parameters]
        self._when_output = of_torch.weakly(self._on_output)
        self._sees_modules = False
        if options.measures:
            self._see_modules()
            self._hooks += [of_torch.before_ready(each.parameter, _finisher(each.parameter)) for each in self.parameters]
        if announce:
            self._announcements = Announcements(module, self.parameters, self._device)
        self._meet_others()

    def _meet_others(self) -> None:
        """Finds live wrappers that share parameters."""
        own = {id(each.parameter): each.index for each in self.parameters}
        _live[id(self)] = weakref.ref(self)
        for other in _all_live():
            if other is self:
                continue
            shared = [(own[id(each.parameter)], each.index) for each in other.parameters if id(each.parameter) in own]
            for index, of_other in shared:
                self._sharing.setdefault(index, weakref.WeakSet()).add(other)
                other._sharing.setdefault(of_other, weakref.WeakSet()).add(self)

    def _see_modules(self) -> None:
        """From now on the forward pass is seen to come to each module that has parameters."""
        self._sees_modules = True
        by_parameter = {each.parameter: each for each in self.parameters}
        on_module = of_torch.weakly(self._on_module)
        for each in self._module.modules():
            if isinstance(each, torch.jit.ScriptModule):
                continue  # it takes no hooks: its parent waits for its parameters, or begin_forward()
            held = [*each.parameters(recurse=False)]
            for child in each.children():
                held += child.parameters() if isinstance(child, torch.jit.ScriptModule) else ()
            own = [by_parameter[p] for p in held if p in by_parameter]
            if own:
                self._hooks.append(each.register_forward_pre_hook(OnModule(functools.partial(on_module, own))))

    def measure(self) -> Schedule:
        """Between steps: from the next one on passes are measured, whatever the schedule. Raises OrderError before the first step."""
        self._expect_open()
        if self._schedule is None:
            raise _native.OrderError("record_model: call it after the first step, which shows the order of the layers")
        if not self._sees_modules:
            self._see_modules()
        self._schedule.measure()
        return self._schedule

    @property
    def transport_kind(self) -> str:
        """The network that connects the workers: "mpi", "process_group", "local" or "nccl"."""
        return self._kind

    @property
    def broadcasts_buffers(self) -> bool:
        """Whether forward passes see the buffers of worker 0."""
        return self._broadcasts

    @property
    def all_there(self) -> bool:
        """Whether all results of the last step were taken."""
        return not self._results.pending

    # ---- A step.

    def begin_forward(self, synchronize: bool) -> None:
        if isinstance(self._module, torch.jit.ScriptModule) and not self.session.closed:
            self.synchronize()
        if not torch.is_grad_enabled():
            if not self.session.closed:
                self._begin_evaluation()
            return
        self._expect_open()
        self._membership.check()
        self._through_output = self._is_late = False  # where a backward pass failed
        self.expect_finished()
        if self._one_backward and torch._C._is_multithreading_enabled():
            raise _native.UnsupportedError(
                "workers that are threads of one process share a GPU, and torch runs their backward passes in one thread, one after "
                "another: train within torch.autograd.set_multithreading_enabled(False), or start a process for each"
            )
        self._finish_buffers()
        # torch's rule, but that a second pass of a step leaves buffers alone, as backward may need what they were.
        if self._next is _Next.FORWARD and self._refresh_due is not False and not self._joining:
            self._refresh_buffers()
        self._refresh_due = synchronize
        if not synchronize:
            self._next = _Next.ACCUMULATE
            if self._announcements:
                self._announcements.listen(tells=False)
            return
        if self._schedule is None:
            self._with_optimizers = backward_optimizers.take_over(each.parameter for each in self.parameters)
        if self._joining and self._next is not _Next.SYNCHRONIZE:
            self._refresh_joined(self._joining.begin_step(self.session))
        self._next = _Next.SYNCHRONIZE
        if self._announcements:
            self._announcements.listen(tells=self._schedule is not None)

    @_disable_dynamo
    def _on_module(self, parameters: Sequence[Synchronized], *_: object) -> None:
        """The forward pass comes to a module with parameters of its own."""
        schedule = self._schedule
        if schedule is None or schedule.times is None:
            return
        times = schedule.times if self._next is _Next.SYNCHRONIZE else None
        if not self.all_there:
            if times:
                times.leave()
            for each in parameters:
                if isinstance(each.parameter, deferred_params.Pending):
                    deferred_params.finish(each.parameter)
        if times:
            times.enter(schedule.layer_of(parameters[0].index))

    def _begin_evaluation(self) -> None:
        """A pass without gradients sees the buffers of worker 0. They are broadcast once for all passes that leave them as they are,
        in the place of the next step's broadcast: so workers may evaluate on different numbers of batches."""
        self._finish_buffers()
        if self._joining:
            return
        if self._refresh_due:
            self._refresh_buffers()
            self._refresh_due = False
        if self._next is not _Next.ACCUMULATE and any(each.training for each in self._with_buffers):
            self._refresh_due = True

    def end_forward(self, result: Any) -> None:
        """result: what the forward pass returned."""
        if self._next is _Next.SYNCHRONIZE:
            on_output = functools.partial(self._when_output, self._steps_begun)
            for each in of_torch.tensors_in(result):
                each.register_hook(on_output)  # type: ignore[no-untyped-call]
        if self._schedule and self._schedule.times:
            self._schedule.times.leave()
        if self._announcements:
            self._announcements.end(tells=self._next is _Next.SYNCHRONIZE and self._schedule is not None)

    def _refresh_buffers(self, root: int = 0) -> None:
        """Broadcasts the buffers of worker `root`."""
        if self._broadcasts:
            module_state.broadcast_together(self.session, [buffer for _, buffer in self._state.buffers()], root)

    def _refresh_joined(self, root: int) -> None:
        """Within join(): buffers that were sent behind the last step are equal."""
        self._finish_buffers()
        if not self._buffers:
            self._refresh_buffers(root)

    @_disable_dynamo
    def _finish_buffers(self, *_: object) -> None:
        """Writes the buffers that were sent behind the last step. Call it before anything may write to them: torch's batch_norm
        leaves no trace of that it did."""
        if self._buffers and self._buffers.pending and not self.session.closed:
            self._buffers.finish()
            self._refresh_due = False

    def _hook_of(self, index: int) -> Callable[..., None]:
        """Makes a hook as weakly() does, but cheaper: it is called for each gradient of each step."""
        reference = weakref.ref(self)

        def call(_: object, accumulated: tuple[Any, ...]) -> None:
            alive = reference()
            if alive is not None and accumulated[0] is not None:
                alive._on_gradient(index)

        return call

    def _on_gradient(self, index: int) -> None:
        each = self.parameters[index]
        if each.parameter.grad is None:
            raise _native.OrderError(
                f"parameter '{each.name}': a hook took its gradient before workers exchanged it, such as by an optimizer's step within the "
                "backward pass: step after backward(), or use torch.distributed.optim._apply_optimizer_in_backward before the first "
                "forward pass"
            )
        self._streams[index] = self._device.stream()
        if self._next is _Next.ACCUMULATE or not (self._running or self._begins_with(index)):
            return
        if not self._running:
            self._begin_backward()
        came_before = index in self._ready
        if came_before:
            del self._ready[index]
        self._ready[index] = None
        if index in self._sharing:
            self._copies[index] = each.parameter.grad.clone()
        if (came_before or self._expected) and not self._is_last(index, came_before):
            return
        if self._schedule is None:
            return
        complete = self._schedule.ready(index)
        if complete:
            self._submit(complete)

    def _is_last(self, index: int, came_before: bool) -> bool:
        """Whether no more gradients of a parameter are expected in this step. Raises OrderError where one came once it was sent."""
        arrival = self._arrivals[index] = self._arrivals.get(index, int(came_before)) + 1
        expected = self._expected.get(index, 1)
        if arrival > expected:
            self._expected[index] = arrival
            if self._schedule and self._schedule.bucket_of(index).submitted:
                raise _native.OrderError(
                    f"parameter '{self.parameters[index].name}' got another gradient in one backward pass once it was sent, which it did "
                    "not in the first step, such as by a reentrant checkpoint: use checkpoint(..., use_reentrant=False)"
                )
        return arrival == expected

    def _begins_with(self, index: int) -> bool:
        """Whether a gradient, the first one of a backward pass, begins a step; else it stays here. Raises OrderError for that of a
        forward pass whose step is over."""
        self._expect_open()
        elsewhere = any(other._through_output or other._running for other in self._sharing.get(index, ()))
        if self._next is _Next.SYNCHRONIZE:
            return self._through_output or not elsewhere
        if self._is_late:
            raise _native.OrderError(
                "backward ran again after the step of its forward pass was over: add up the losses of all forward passes of a step and "
                "call backward() once, or run all of these passes but the last one, and their backward(), within no_sync()"
            )
        if not elsewhere and not self._warned:
            self._warned = True
            safe_logging.log(
                logging.WARNING,
                "parameter '%s' got a gradient that no forward pass of the DistributedDataParallel led to: it stays on this worker. Call "
                "the wrapper, not the module, if workers should exchange it",
                self.parameters[index].name,
            )
        return False

    def _on_output(self, steps_begun: int, _: torch.Tensor) -> None:
        """A backward pass comes through what a forward pass returned. It ends the step, if it brings gradients of parameters: not the
        pass that the first one comes in, which may be one within it, of a reentrant checkpoint."""
        if self.session.closed:
            return
        if steps_begun != self._steps_begun and not self._running:
            self._is_late = True
        if not self._through_output:
            self._through_output = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)

    def _end_pass(self) -> None:
        self._through_output = self._is_late = False
        if self._running:
            self._end_backward()

    def _begin_backward(self) -> None:
        self.synchronize()  # what this forward pass did not come to
        self._running = True
        self._steps_begun += 1
        self._forget_arrivals()
        self._begin_step()
        if self._schedule and self._schedule.times:
            self._schedule.times.begin_backward()
        if not self._through_output:
            torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)

    def _forget_arrivals(self) -> None:
        self._ready.clear()
        self._arrivals.clear()
        self._copies.clear()

    def _end_backward(self) -> None:
        with torch.profiler.record_function("sparsesync::synchronize"):
            self._synchronize_rest()
        self._next = _Next.FORWARD
        self._running = False

    def _synchronize_rest(self) -> None:
        """What is not submitted yet, with what gradients there are; then waits for all, but for what goes on under forward."""
        if self._schedule is None:
            schedule = self._schedule = self._learn()
            rest = schedule.buckets
            self._begin_step()
        else:
            schedule = self._schedule
            rest = schedule.end_backward()
        for bucket in rest:
            self._submit(bucket)
        schedule.submit_numbers()
        not_finite, refusal = 0, None
        try:
            not_finite = self._sparsifying.end_step() if self._sparsifying else 0
        except OF_ONE_STEP as error:
            refusal = error  # of all workers: they submit the rest alike
        if self._buffers:
            self._buffers.submit(self.session.rank == (self._joining.root if self._joining else 0))
        self._results.begin(schedule.in_order_of_gathers())
        if self._announcements:
            self._announcements.forget()
        is_due = schedule.end_step()
        if refusal:
            self._leave_out()
            raise refusal
        if not_finite:
            self._skip(not_finite)
        if is_due or self._joining or not schedule.under_forward:
            self._take_all_or_none()
            ask_all(self.session, schedule.buckets, self._scale_of_results())
        else:
            self._results.mark()
        if self._with_optimizers:
            self._results.once_there(self._with_optimizers, backward_optimizers.step)
        if self.listener:
            self.listener.on_step()
        if is_due and schedule.review(list(self._ready)):
            self._take_buckets(schedule, tells=False)

    def _begin_step(self) -> None:
        """Before the first gradients of a step cross."""
        self._is_left_out = False
        self.stepping.begin_step()
        if self._scaler:
            self._scaler.begin_step()
        if self._sparsifying:
            self._sparsifying.begin_step(self._scaler.get_scale() if self._scaler else None)

    def _skip(self, not_finite: int) -> None:
        """Leaves all parameters without gradients, and nothing of the step behind."""
        self._leave_step(stays_owed=False)
        self._is_left_out = True
        assert self._options.sparsifier is not None
        if self._options.sparsifier.on_not_finite == "raise" and self._scaler is None:
            self._next = _Next.FORWARD
            self._running = False
            raise FloatingPointError(
                f"{not_finite} values of gradients, of all workers, are infinite or not a number, or are so once they are rounded "
                "for the wire: nothing of this step is used. A smaller learning rate or loss scale may be the mend; "
                'on_not_finite="skip" skips such steps'
            )

    # ---- PendingResults.

    def _take_all_or_none(self) -> None:
        """Waits for all results. Where workers refused a step of one of the buckets, for want of memory, say, parameters are left without
        gradients on all workers, which go on with the next step."""
        try:
            self.synchronize()
        except OF_ONE_STEP:
            self._leave_out()
            raise

    def _leave_out(self) -> None:
        """Behind a refusal, which all workers know of."""
        self._leave_step(stays_owed=True)
        if self._sparsifying:
            self._sparsifying.discard_step()
        self._is_left_out = True
        self._next = _Next.FORWARD
        self._running = False

    def _leave_step(self, stays_owed: bool) -> None:
        """Leaves all parameters without gradients, as Bucket.drop()."""
        self._results.leave()
        for bucket in self.buckets:
            with contextlib.suppress(*OF_ONE_STEP):  # it is left out in any case
                bucket.drop(stays_owed)

    def synchronize(self) -> None:
        """Waits for all results, and does all that was asked for."""
        self._results.take_all()

    def finish_all(self, *_: object) -> None:
        """Call it before the module's state is read."""
        self.synchronize()
        self._finish_buffers()

    def once_there(self, parameters: Iterable[torch.nn.Parameter], action: Action) -> None:
        """Does something with parameters: now, or with those whose gradients still cross once they are there."""
        self._results.once_there(parameters, action)

    def _schedule_to_ask(self) -> Schedule | None:
        return None if self._joining else self._schedule  # a worker without inputs does not ask

    def _scale_of_results(self) -> float:
        if self._joining and self._options.gradient == "mean":
            return self._joining.scale(self.session.size)
        return 1.0

    # ---- Between backward and step().

    def clip(self, most: float, norm_type: float, error_if_nonfinite: bool) -> torch.Tensor:
        """As GradientOps.clip()."""
        self._expect_open()
        return self.stepping.clip(most, norm_type, error_if_nonfinite)

    def scaled(self, scaler: Scaler) -> None:
        """From now on losses are scaled. Raises OrderError where they are so already."""
        if self._scaler is not None:
            raise _native.OrderError("LossScaler: the module has one already: use that one")
        self._scaler = scaler

    def keep_finite(self) -> bool:
        """Whether all gradients of the step are finite. If not, on all workers, parameters are left without gradients, and what
        sparsifiers had sent is owed."""
        self._expect_open()
        if self._is_left_out:
            return False
        if self.stepping.are_finite():
            return True
        self._leave_step(stays_owed=True)
        if self._sparsifying:
            self._sparsifying.discard_step()
        return False

    def wrapped(self, wrapped: Wrapped) -> None:
        """An optimizer waits for each gradient apart."""
        optimizer = wrapped.optimizer
        own = {each.parameter for each in self.parameters}
        if not any(each in own for group in optimizer.param_groups for each in group["params"]):
            raise _native.InputError(
                "wrap_optimizer: none of the optimizer's parameters is one of the module's: make the optimizer of "
                "ddp.parameters()"
            )
        self.expect_no_step("wrap_optimizer")
        self._wrapped.append(wrapped)

    def _submit(self, bucket: Bucket) -> None:
        streams = (self._streams[each.index] for each in bucket.planned.members if each.index in self._streams)
        given = bucket.submit(streams, self._copies)
        if self.listener:
            self.listener.on_submit(bucket.planned.members, bucket.planned.kind, given)

    def _learn(self) -> Schedule:
        """Makes the schedule of what the first backward pass showed all workers."""
        untold = self._announcements.untold(self.parameters) if self._announcements else []
        seen = bucketing.tell(self.session, bucketing.observe(self.parameters, self._ready, untold))
        under_forward = bool(self._wrapped) or self._options.schedule == "dear"
        if under_forward and self._broadcasts:
            self._buffers = BackgroundBuffers(self.session, self._device, self._state)
            if not isinstance(self._module, torch.jit.ScriptModule):
                finish_buffers = of_torch.weakly(self._finish_buffers)
                self._hooks.append(self._module.register_forward_pre_hook(OnModule(finish_buffers)))
        if under_forward:
            finish_all = of_torch.weakly(self.finish_all)
            for each in self._module.modules():
                if not isinstance(each, torch.jit.ScriptModule):  # which takes no such hook
                    self._hooks.append(each.register_state_dict_pre_hook(OnModule(finish_all)))  # type: ignore[no-untyped-call]
        layers = bucketing.layers_of(self.parameters, seen, self._sparse_by_module, self._options.sparsifier)
        if self._sparsifying:
            sparsified = [each for each in self.parameters if layers.kinds[each.index] is Kind.SPARSIFIED]
            self._sparsifying.take_momentum(self._wrapped, sparsified)
        schedule = Schedule(
            self.session,
            self._device,
            layers,
            self._options,
            of_torch.weakly(self._bucket),
            dense_scheme=self._dense_scheme,
            first_bytes=self._first_bytes,
            announce=self._announcements is not None,
            under_forward=under_forward,
            extra=[self._buffers.number] if self._buffers else [],
            sparsifying=self._sparsifying,
        )
        self._take_buckets(schedule, tells=True)
        return schedule

    def _bucket(self, planned: Planned, announces: bool) -> Bucket:
        if self._sparsifying and planned.kind is Kind.SPARSIFIED:
            return self._sparsifying.bucket(planned, self._options, self._dense_scheme)
        return Bucket(self.session, self._device, planned, self._options, self._dense_scheme, announces)

    def _take_buckets(self, schedule: Schedule, tells: bool) -> None:
        """There are other buckets. tells: whether their rows of this step are to be told now."""
        if self._announcements:
            telling = {b.number: tuple(each.index for each in b.planned.members) for b in schedule.buckets if b.announces}
            self._announcements.start(self.session, telling, tells, self._results.take_numbered)
        safe_logging.log(logging.INFO if self.session.rank == 0 else logging.DEBUG, "%s", self._decided(schedule))

    def _decided(self, schedule: Schedule) -> str:
        of_kinds = {kind: [b for b in schedule.buckets if b.planned.kind is kind] for kind in Kind}
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

    # ---- What a sparsifier owes, beside the model's state.

    def add_state(self, state: dict[str, torch.Tensor]) -> None:
        """To a state_dict()."""
        if self._sparsifying:
            self.synchronize()
            state.update(self._sparsifying.state(self.buckets, self.parameters, self._options.gradient == "mean").entries())

    def take_state(self, state: dict[str, torch.Tensor]) -> None:
        """Takes out of a state_dict() what is of sparsifiers. Raises InputError where that is not this one's."""
        owed = SparsifierState.of(state)
        if owed is None:
            return
        if self._sparsifying is None:
            raise _native.InputError(
                "the state has what a sparsifier owes, and there is none here: give `sparsifier`, or leave out what begins with "
                "'sparsesync.'"
            )
        self.synchronize()
        self._sparsifying.load(owed, self.buckets, self.parameters, self._options.gradient == "mean")
        for name, _ in owed.entries():
            del state[name]

    # ---- Uneven inputs.

    @contextlib.contextmanager
    def join(self, enable: bool, of_all: bool, throws: bool) -> Iterator[None]:
        self._expect_open()
        if not enable:
            yield
            return
        if getattr(_joins, "is_within", False):
            raise _native.OrderError(
                "join: within another join() a worker without inputs would take part in the steps of one model alone, and the others wait "
                "for it in those of the other: wrap one torch.nn.Module that holds both models, and join() its DistributedDataParallel"
            )
        _joins.is_within = True
        joining = UnevenInputs(of_all, throws)
        try:
            self.begin_join(joining)
            yield
            while self.shadow(joining):
                pass
            self.end_join(joining)
        finally:
            _joins.is_within = False
            self._joining = None

    def begin_join(self, joining: UnevenInputs) -> None:
        """From the next step on workers report whether they have inputs."""
        if self._sparsifying and self._scaler:
            raise _native.UnsupportedError(
                "join: with a sparsifier and a LossScaler a worker without inputs would not know which steps are skipped: "
                "leave one of them out"
            )
        self._joining = joining

    def shadow(self, joining: UnevenInputs) -> bool:
        """Takes part, without inputs, in a step of workers that have some. Returns whether any had."""
        self.begin_join(joining)
        if not joining.shadow(self.session):
            return False
        self._next = _Next.SYNCHRONIZE
        self._refresh_joined(joining.root)
        self._begin_shadow()
        with contextlib.suppress(*OF_ONE_STEP):  # workers with inputs hear of it, and go on
            self._synchronize_rest()
        self._next = _Next.FORWARD
        return True

    def end_join(self, joining: UnevenInputs) -> None:
        """No worker has inputs: parameters become those of one that was last."""
        self._state.take_over(self.session, joining.root)
        self._refresh_due = None
        self._joining = None

    def _begin_shadow(self) -> None:
        """A step of a worker that has no inputs: no gradients."""
        for each in self.parameters:
            each.parameter.grad = None
        self._forget_arrivals()
        self._begin_step()
        if self._announcements and self._schedule is not None:
            self._announcements.listen(tells=True)
            self._announcements.end(tells=True)

    # ---- What it took.

    @property
    def buckets(self) -> Sequence[Bucket]:
        """In the order of their gradients; none before the first step."""
        return self._schedule.buckets if self._schedule else ()

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
            "schedule": {"name": self._options.schedule, **(self._schedule.statistics() if self._schedule else {})},
            **self.session.counters(),
            **({"sparsifier": self._sparsifying.statistics()} if self._sparsifying else {}),
            **({"loss_scale": self._scaler.get_scale(), "skipped_steps": self._scaler.skipped_steps} if self._scaler else {}),
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

    def expect_finished(self) -> None:
        """Raises OrderError where the last backward pass failed."""
        if self._running:
            raise _native.OrderError(_FAILED)

    def expect_no_step(self, what: str) -> None:
        """Raises OrderError where a step was made."""
        if self._schedule is not None:
            raise _native.OrderError(f"{what}: call it before the first step")

    def _expect_open(self) -> None:
        if self.session.closed:
            raise _native.ClosedError("the DistributedDataParallel is closed: wrap the module again")

    def close(self) -> None:
        try:
            if not self.session.closed and not self._running:
                self.synchronize()
        finally:
            self._running = False
            _live.pop(id(self), None)
            self._results.leave()  # an error came before them
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            backward_optimizers.give_back(self._with_optimizers)
            self._with_optimizers = []
            if self._announcements:
                self._announcements.close()
            self.session.close()


# Wrappers that are not closed, by id(). No lock guards it: garbage collection may close a wrapper within any statement.
_live: dict[int, weakref.ref[Synchronizer]] = {}
_joins = threading.local()  # is_within: whether this thread, which may be a worker, is within a join()


def _all_live() -> list[Synchronizer]:
    """Returns the wrappers of this process that are not closed."""
    found = [each() for each in list(_live.values())]
    return [each for each in found if each is not None]


def _finisher(parameter: torch.nn.Parameter) -> Callable[[object], None]:
    """Takes the results of a parameter before another gradient is added to what it has."""
    reference = weakref.ref(parameter)

    def call(_: object) -> None:
        held = reference()
        if isinstance(held, deferred_params.Pending):
            deferred_params.finish(held)

    return call


def _close_failed(parameters: Iterable[Synchronized]) -> None:
    """Closes the wrappers of these parameters whose last backward pass failed: the module is wrapped again. Other workers, which may
    wait for this one in that pass, then wrap it again, too."""
    own = {id(each.parameter) for each in parameters}
    for other in _all_live():
        if other._running and any(id(each.parameter) in own for each in other.parameters):
            other.close()


class _Next(enum.Enum):
    """What the last forward pass asks of the backward pass that follows."""

    FORWARD = "nothing: a forward pass comes first"
    ACCUMULATE = "keep gradients here"
    SYNCHRONIZE = "make them equal"
