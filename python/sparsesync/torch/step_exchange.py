"""One synchronization step of a module: scheduled buckets, sparsified gradients, and the results."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch import safe_logging
from sparsesync.torch.announcements import Announcements
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.gradients import Kind, Submitted, Synchronized
from sparsesync.torch.module_state import SharedBuffers
from sparsesync.torch.optimizer import backward_optimizers
from sparsesync.torch.optimizer.grad_ops import GradientOps
from sparsesync.torch.passes import Arrivals
from sparsesync.torch.schedule import bucketing
from sparsesync.torch.schedule.bucket import Bucket
from sparsesync.torch.schedule.pending_results import OF_ONE_STEP, PendingResults
from sparsesync.torch.schedule.scalar_allreduce import ask_all
from sparsesync.torch.schedule.schedule import Planning, Schedule
from sparsesync.torch.sparsify.sparsifier_runtime import SparsifierRuntime, Wrapped
from sparsesync.torch.sparsify.sparsifier_state import SparsifierState
from sparsesync.torch.uneven_inputs import UnevenInputs


class Listener:
    """Observes the gradients that are sent: in each step every bucket's gradients, then the end of the step.

    It raises only exceptions that end the session. Its internal errors must not fail the step.
    """

    def on_submit(self, members: Sequence[Synchronized], kind: Kind, given: Sequence[Submitted]) -> None:
        """Observes the gradients of a bucket as they are sent.

        Args:
            members: The parameters of the bucket.
            kind: How their gradients are sent.
            given: The gradients: None, a dense tensor of the parameter's shape, or ``indices``: ``[nnz]``, dtype
                ``torch.int64``, and ``values``: ``[nnz, ...]``, in the parameter's dtype.
        """

    def on_step(self) -> None:
        """Observes the end of a step."""


@dataclasses.dataclass(frozen=True)
class Worker:
    """This worker: its session, the device of its gradients, and how they are sent."""

    session: _native.Session
    device: CpuDevice
    transport_kind: str  # "mpi", "process_group", "ucx", "local" or "nccl"
    payloads: str  # how gradients are sent, and why
    without_ucx: str  # why Gloo connects the workers instead of UCX
    one_machine: bool  # all workers are on one machine
    deadline_s: float
    dense_scheme: str
    first_bytes: float | None  # capacity of the first bucket
    one_backward: bool  # torch runs the backward passes of all workers of this process one after another


class StepExchange:
    """The exchange of a module's gradients. All workers make one, and end each step, in the same order."""

    def __init__(
        self, worker: Worker, parameters: Sequence[Synchronized], options: bucketing.Options, buffers: SharedBuffers
    ) -> None:
        self._worker = worker
        self._parameters = parameters
        self._options = options
        self._buffers = buffers
        self.listener: Listener | None = None
        self.schedule: Schedule | None = None  # made by the first step
        self.results = PendingResults()
        self.gradient_ops = GradientOps(parameters, self.results)
        self.announcements: Announcements | None = None
        self.sparsifier: SparsifierRuntime | None = None
        if options.sparsifier:
            options.sparsifier.check((member.name, member.parameter) for member in parameters)
            self.sparsifier = SparsifierRuntime(options.sparsifier, worker.session, worker.device)

    def announce(self) -> None:
        """Turns index prefetch on, before the first forward pass."""
        module, worker = self._buffers.state.module, self._worker
        self.announcements = Announcements(module, self._parameters, worker.session, worker.device, self.results)

    def measure(self) -> Schedule:
        """Measures passes from the next step on, with any schedule. Raises OrderError before the first step."""
        if self.schedule is None:
            raise _native.OrderError("record_model: call it after the first step, which determines the order of the layers")
        self.schedule.measure()
        return self.schedule

    @property
    def worker(self) -> Worker:
        """This worker."""
        return self._worker

    @property
    def options(self) -> bucketing.Options:
        """The options of synchronization."""
        return self._options

    @property
    def buckets(self) -> Sequence[Bucket]:
        """The buckets in the order of their gradients; empty before the first step."""
        return self.schedule.buckets if self.schedule else ()

    # ---- Schedule

    @property
    def goes_on_under_forward(self) -> bool:
        """Whether parts of a step may be sent under the next forward pass."""
        return bool(self.gradient_ops.wrapped) or self._options.schedule == "dear"

    def learn(self, arrivals: Arrivals) -> None:
        """Makes the schedule from the observations of all workers in the first backward pass."""
        session = self._worker.session
        untold = self.announcements.untold(self._parameters) if self.announcements else []
        seen = bucketing.tell(session, bucketing.observe(self._parameters, arrivals.ready, untold))
        extra = self._buffers.send_behind_steps() if self.goes_on_under_forward else []
        sparse = bucketing.sparse_parameters(self._buffers.state.module)
        sparse_by_module = frozenset(member.index for member in self._parameters if member.parameter in sparse)
        layers = bucketing.layers_of(self._parameters, seen, sparse_by_module, self._options.sparsifier)
        if self.sparsifier:
            sparsified = [member for member in self._parameters if layers.kinds[member.index] is Kind.SPARSIFIED]
            self.sparsifier.take_momentum(self.gradient_ops.wrapped, sparsified)
        planning = Planning(
            self._options,
            self._worker.dense_scheme,
            self._worker.first_bytes,
            announce=self.announcements is not None,
            under_forward=self.goes_on_under_forward,
        )
        schedule = Schedule(session, self._worker.device, layers, planning, extra=extra, sparsifier=self.sparsifier)
        self._use_buckets(schedule, announces=True)
        self.schedule = schedule

    def _use_buckets(self, schedule: Schedule, announces: bool) -> None:
        """Starts to use new buckets. announces: announce their rows of this step now."""
        if self.announcements:
            self.announcements.start(schedule, announces)
        level = logging.INFO if self._worker.session.rank == 0 else logging.DEBUG
        safe_logging.log(level, "%s", self._described(schedule))

    def _described(self, schedule: Schedule) -> str:
        of_kinds = {kind: [bucket for bucket in schedule.buckets if bucket.planned.kind is kind] for kind in Kind}
        parts = [
            f"{sum(len(bucket.planned.members) for bucket in of_kind)} {kind} parameters in {len(of_kind)} buckets"
            for kind, of_kind in of_kinds.items()
            if of_kind
        ]
        worker, session = self._worker, self._worker.session
        return (
            f"worker {session.rank} of {session.size} over {worker.transport_kind}: {', '.join(parts)}; scheme "
            f"{self._options.scheme}, {self._options.gradient}, wire {self._options.wire or 'as it is'}; on "
            f"{session.device}, gradients are sent {worker.payloads}"
        )

    # ---- Step

    def begin_step(self) -> None:
        """Prepares a step before its first gradients are sent."""
        loss_scale = self.gradient_ops.begin_step()
        if self.sparsifier:
            self.sparsifier.begin_step(loss_scale)

    def submit(self, bucket: Bucket, arrivals: Arrivals) -> None:
        members = bucket.planned.members
        streams = (arrivals.streams[member.index] for member in members if member.index in arrivals.streams)
        given = bucket.submit(streams, arrivals.copies)
        if self.listener:
            self.listener.on_submit(members, bucket.planned.kind, given)

    def expect_unsent(self, parameter: Synchronized) -> None:
        """Raises OrderError if a parameter got another gradient after its gradient was sent."""
        if self.schedule and self.schedule.bucket_of(parameter.index).submitted:
            raise _native.OrderError(
                f"parameter '{parameter.name}' got another gradient after its gradient was sent, unlike in the first step, for example "
                "from a reentrant checkpoint: use checkpoint(..., use_reentrant=False)"
            )

    def finish(
        self, arrivals: Arrivals, joining: UnevenInputs | None, with_optimizers: Sequence[torch.nn.Parameter]
    ) -> Exception | None:
        """Submits the remaining buckets with the gradients that exist, then waits, except for gathers under the next forward pass.

        Returns the error of a step that all workers skipped: they continue with the next one.

        with_optimizers: parameters that are stepped once their gradients are equal.
        """
        schedule = self.schedule
        if schedule is None:
            self.learn(arrivals)
            schedule = self.schedule
            assert schedule is not None
            self.begin_step()
        for bucket in schedule.end_backward():
            self.submit(bucket, arrivals)
        schedule.submit_numbers()
        not_finite, refusal = 0, None
        try:
            not_finite = self.sparsifier.end_step() if self.sparsifier else 0
        except OF_ONE_STEP as error:
            refusal = error  # raised on all workers, which submit the rest in the same order
        self._buffers.submit(root=joining.root if joining else 0)
        scale = joining.scale(self._worker.session.size) if joining and self._options.gradient == "mean" else 1.0
        self.results.begin(schedule.in_order_of_gathers(), scale)
        if self.announcements:
            self.announcements.forget()
        is_due = schedule.end_step()
        left_out = self._left_out(refusal) if refusal else self._skipped(not_finite) if not_finite else None
        if left_out:
            return left_out
        if schedule.waits_after_backward(needs_all=is_due or joining is not None):
            try:
                self.results.take_all()
            except OF_ONE_STEP as error:
                return self._left_out(error)
            ask_all(self._worker.session, schedule.buckets, scale)
        else:
            self.results.mark()
        if with_optimizers:
            self.results.once_there(with_optimizers, backward_optimizers.step)
        if self.listener:
            self.listener.on_step()
        if is_due and schedule.review(list(arrivals.ready)):
            self._use_buckets(schedule, announces=False)
        return None

    def _skipped(self, not_finite: int) -> Exception | None:
        """Drops the step, leaving all parameters without gradients. Returns the error to raise, if non-finite values are an error."""
        self._leave_step(stays_owed=False)
        self.gradient_ops.is_left_out = True
        assert self._options.sparsifier is not None
        if self._options.sparsifier.on_not_finite != "raise" or self.gradient_ops.scaler is not None:
            return None
        return FloatingPointError(
            f"{not_finite} gradient values, over all workers, are infinite or NaN, or become so in the wire type: the step is not used; "
            'try a smaller learning rate or loss scale, or pass on_not_finite="skip" to skip such steps'
        )

    def _left_out(self, refusal: Exception) -> Exception:
        """Drops a step that was refused on all workers, for example for lack of memory. Leaves parameters without gradients."""
        self._leave_step(stays_owed=True)
        if self.sparsifier:
            self.sparsifier.discard_step()
        self.gradient_ops.is_left_out = True
        return refusal

    def _leave_step(self, stays_owed: bool) -> None:
        """Leaves all parameters without gradients, like Bucket.drop()."""
        self.results.leave()
        for bucket in self.buckets:
            with contextlib.suppress(*OF_ONE_STEP):  # the step is dropped in any case
                bucket.drop(stays_owed)

    # ---- Between backward and step()

    def clip(self, most: float, norm_type: float, error_if_nonfinite: bool, joining: UnevenInputs | None) -> torch.Tensor:
        """Clips gradients like GradientOps.clip()."""
        return self.gradient_ops.clip(most, norm_type, error_if_nonfinite, self._early(joining))

    def keep_finite(self, joining: UnevenInputs | None) -> bool:
        """Returns whether all gradients of the step are finite.

        If not, all workers leave parameters without gradients, and sent elements return to the residuals of
        sparsifiers.
        """
        if self.gradient_ops.is_left_out:
            return False
        if self.gradient_ops.are_finite(self._early(joining)):
            return True
        self._leave_step(stays_owed=True)
        if self.sparsifier:
            self.sparsifier.discard_step()
        return False

    def _early(self, joining: UnevenInputs | None) -> Schedule | None:
        """Returns the schedule if gradients may be used while in transit.

        Not within join(), because a worker without inputs does not ask.
        """
        return None if joining else self.schedule

    def add_optimizer(self, wrapped: Wrapped) -> None:
        """Adds an optimizer with deferred steps. Raises InputError if it has none of the module's parameters."""
        own = {member.parameter for member in self._parameters}
        if not any(parameter in own for group in wrapped.optimizer.param_groups for parameter in group["params"]):
            raise _native.InputError(
                "wrap_optimizer: none of the optimizer's parameters is one of the module's: make the optimizer of "
                "ddp.parameters()"
            )
        self.expect_no_step("wrap_optimizer")
        self.gradient_ops.wrapped.append(wrapped)

    def expect_no_step(self, what: str) -> None:
        """Raises OrderError if a step was made."""
        if self.schedule is not None:
            raise _native.OrderError(f"{what}: call it before the first step")

    # ---- Sparsifier state, beside the model's state

    @property
    def _is_mean(self) -> bool:
        return self._options.gradient == "mean"

    def add_state(self, state: dict[str, torch.Tensor]) -> None:
        """Adds the sparsifier's entries to a state_dict()."""
        if self.sparsifier:
            self.results.take_all()
            state.update(self.sparsifier.state(self.buckets, self._parameters, self._is_mean).entries())

    def take_state(self, state: dict[str, torch.Tensor]) -> None:
        """Removes the sparsifier's entries from a state_dict() and loads them. Raises InputError if they do not fit."""
        owed = SparsifierState.of(state)
        if owed is None:
            return
        if self.sparsifier is None:
            raise _native.InputError(
                "the state has entries of a sparsifier, and this module has none: pass `sparsifier`, or remove the entries that begin with "
                "'sparsesync.'"
            )
        self.results.take_all()
        self.sparsifier.load(owed, self.buckets, self._parameters, self._is_mean)
        for name, _ in owed.entries():
            del state[name]

    # ---- Statistics

    def statistics(self) -> dict[str, Any]:
        session = self._worker.session
        of_buckets = [(bucket.planned.members, bucket.statistics()) for bucket in self.buckets]
        seconds = sum(taken["seconds"] for _, taken in of_buckets)
        exposed = sum(taken["seconds_exposed"] for _, taken in of_buckets)
        return {
            "workers": session.size,
            "rank": session.rank,
            "transport": self._worker.transport_kind,
            "device": session.device,
            "payloads": self._worker.payloads,
            "steps": session.step,
            "schedule": {"name": self._options.schedule, **(self.schedule.statistics() if self.schedule else {})},
            **session.counters(),
            **({"sparsifier": self.sparsifier.statistics()} if self.sparsifier else {}),
            **self.gradient_ops.statistics(),
            "seconds": seconds,
            "seconds_exposed": exposed,
            "seconds_hidden": max(0.0, seconds - exposed),
            "memory_bytes": session.memory_in_use,
            "memory_high_water_bytes": session.memory_high_water,
            "pinned_bytes": session.pinned_in_use,
            "pinned_high_water_bytes": session.pinned_high_water,
            "parameters": {member.name: dict(taken) for members, taken in of_buckets for member in members},
        }

    def close(self) -> None:
        """Drops results in transit without waiting for them."""
        self.results.leave()  # only after an error are results still pending here
        if self.announcements:
            self.announcements.close()
