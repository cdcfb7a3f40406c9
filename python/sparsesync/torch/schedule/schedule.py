"""The schedule of a module's gradients: its buckets, the progress of their step, and replanning."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.gradients import Kind
from sparsesync.torch.schedule.bucket import Bucket
from sparsesync.torch.schedule.bucketing import Layers, Options
from sparsesync.torch.schedule.layer_timer import StepTimer
from sparsesync.torch.schedule.scalar_allreduce import Norm, UsageCounts
from sparsesync.torch.sparsify.sparsifier_runtime import SparsifierRuntime

# Steps until the order of gradients is checked again. The interval doubles each time, like the reviews of plans
# (engine/planner/schedule/schedule_planner.cpp).
_FIRST_LOOK = 7
_LONGEST_BETWEEN_LOOKS = 1000


@dataclasses.dataclass
class OrderClock:
    """Counts steps until the order of gradients is checked again. It may change even if nothing is replanned."""

    steps: int = 0
    next_look: int = _FIRST_LOOK

    def end_step(self) -> None:
        self.steps += 1

    def is_due(self) -> bool:
        if self.steps < self.next_look:
            return False
        self.next_look += min(self.steps, _LONGEST_BETWEEN_LOOKS)
        return True


class Extras:
    """Buckets that follow the last gradients and are not part of the schedule."""

    def __init__(
        self, session: _native.Session, device: CpuDevice, sparsifier: SparsifierRuntime | None, numbers: Sequence[int]
    ) -> None:
        """Starts without counts and norm. numbers: buckets that other objects submit, in all steps."""
        self._session = session
        self._device = device
        self._sparsifier = sparsifier
        self._of_others = tuple(numbers)
        self._of_sparsifier: Sequence[int] = ()
        self._norm: Norm | None = None  # norm of gradients in transit, if it was requested
        self._usage: UsageCounts | None = None

    def watch(self, buckets: Sequence[Bucket], counts_usage: bool) -> None:
        """Takes over new buckets. All workers call it between steps.

        counts_usage: results alone do not show which workers use a parameter.
        """
        if self._sparsifier:
            self._of_sparsifier = self._sparsifier.watch(buckets)
        if self._norm:
            self._norm.watch(buckets)
        if self._usage:
            self._usage.release()
            self._usage = None
        with_rows = _with_rows(buckets)
        if with_rows and counts_usage:
            self._usage = UsageCounts(self._session, self._device, with_rows)
        for bucket in with_rows:
            bucket.use.ask = self._usage.are_used if self._usage else None

    def watch_norm(self, buckets: Sequence[Bucket], most: int) -> bool:
        """Collects the norm of gradients in transit from the next step on. All workers call it between steps.

        Returns whether that is new. most: largest number of buckets.
        """
        if self._norm is not None:
            return False
        self._norm = Norm(self._session, self._device, buckets[0].planned.device, most)
        self._norm.watch(buckets)
        return True

    def norm(self, buckets: Sequence[Bucket]) -> torch.Tensor | None:
        return self._norm.of(buckets) if self._norm else None

    def numbers(self) -> list[int]:
        """Returns the buckets in the order in which they are sent."""
        of_steps = [sums.number for sums in (self._norm, self._usage) if sums]
        return [*of_steps, *self._of_sparsifier, *self._of_others]

    def submit(self, buckets: Sequence[Bucket]) -> None:
        """Sends norm and counts after all buckets were submitted. Buckets of other objects are submitted by those."""
        if self._norm:
            self._norm.submit()
        if self._usage:
            self._usage.submit(_with_rows(buckets))


def _with_rows(buckets: Sequence[Bucket]) -> list[Bucket]:
    return [bucket for bucket in buckets if bucket.planned.kind.has_rows]


@dataclasses.dataclass(frozen=True)
class Planning:
    """The inputs of planning besides the layers; the same on all workers."""

    options: Options
    dense_scheme: str
    first_bytes: float | None  # capacity of the first bucket
    announce: bool
    under_forward: bool  # forward passes can wait for one bucket after another

    def planner(
        self, session: _native.Session, layers: Layers, seconds: dict[int, tuple[float, float]]
    ) -> _native.SchedulePlanner:
        """Makes the planner. seconds: seconds of the passes of each parameter, by its index in the module, if known."""
        options = self.options
        return _native.SchedulePlanner(
            session,
            layers.native(seconds),
            options.schedule,
            options.full_bytes,
            self.first_bytes,
            options.scheme,
            self.dense_scheme,
            self.announce,
            self.under_forward,
        )


class Schedule:
    """The schedule at work. All workers make one, and end each step, in the same order."""

    def __init__(
        self,
        session: _native.Session,
        device: CpuDevice,
        layers: Layers,
        planning: Planning,
        *,
        extra: Sequence[int] = (),
        sparsifier: SparsifierRuntime | None = None,
    ) -> None:
        """Makes the first buckets. extra: buckets that follow the last gradients and are not part of the schedule."""
        self._session = session
        self._device = device
        self._planning = planning
        self._sparsifier = sparsifier
        self._extras = Extras(session, device, sparsifier, extra)
        self._order_clock = OrderClock()
        self._layers = layers
        self._planner = planning.planner(session, layers, {})
        self.timer = StepTimer(device)
        if planning.options.measures:
            self.timer.measure(len(layers.members))
        self.buckets: list[Bucket] = []
        self._make_buckets()

    def _make_buckets(self) -> None:
        """Replaces the buckets by those of the planner."""
        for bucket in self.buckets:
            if self._sparsifier:
                self._sparsifier.keep(bucket)
            bucket.release()
        self._step = self._planner.step()
        options, dense_scheme = self._planning.options, self._planning.dense_scheme
        made: list[Bucket] = []
        for number, planned in enumerate(self._layers.planned(self._planner.buckets)):
            if self._sparsifier and planned.kind is Kind.SPARSIFIED:
                made.append(self._sparsifier.bucket(planned, options, dense_scheme))
            else:
                made.append(Bucket(self._session, self._device, planned, options, dense_scheme, self._step.announces(number)))
        self.buckets = made
        announces = any(bucket.announces for bucket in self.buckets)
        self._extras.watch(self.buckets, counts_usage=self.under_forward or announces)
        self._set_order()

    def _set_order(self) -> None:
        order = self._step.order([bucket.number for bucket in self.buckets], self._extras.numbers())
        self._session.set_order(order, self._session.step)

    def watch_norm(self) -> None:
        """Collects the norm of gradients in transit from the next step on. All workers call it between steps."""
        if self._extras.watch_norm(self.buckets, len(self._layers.members)):
            self._set_order()

    def norm(self) -> torch.Tensor | None:
        """Returns the norm of the current step's gradients before they are gathered; None, on all workers, if it is not known."""
        return self._extras.norm(self.buckets)

    @property
    def layers(self) -> Layers:
        return self._layers

    @property
    def under_forward(self) -> bool:
        """Whether gathers continue under the next forward pass."""
        return self._planner.under_forward

    def bucket_of(self, parameter: int) -> Bucket:
        """Returns the bucket of a parameter, by its index in the module."""
        return self.buckets[self._step.bucket_of(self._layers.layer_of[parameter])]

    def layer_of(self, parameter: int) -> int:
        return self._layers.layer_of[parameter]

    def in_order_of_gathers(self) -> list[Bucket]:
        return [self.buckets[bucket] for bucket in self._step.gathers()]

    # ---- Step

    def expect_announcements(self, parameters: Iterable[int]) -> None:
        """Names the parameters whose rows are known in most forward passes. Buckets wait for the rows of no other parameters."""
        self._step.expect_announcements([self._layers.layer_of[index] for index in parameters])

    def begin_forward(self) -> None:
        """Begins a forward pass in which rows are announced."""
        self._step.begin_forward()

    def announced(self, parameter: int) -> Bucket | None:
        """Counts a parameter whose rows are known. Returns the bucket to announce now, if there is one."""
        complete = self._step.announced(self._layers.layer_of[parameter])
        return None if complete is None else self.buckets[complete]

    def end_forward(self) -> list[Bucket]:
        """Returns the buckets to announce now, with the rows that are known."""
        return [self.buckets[bucket] for bucket in self._step.end_forward()]

    def ready(self, parameter: int) -> Bucket | None:
        """Counts a gradient that is ready. Returns the bucket to submit now, if there is one."""
        layer = self._layers.layer_of[parameter]
        if self.timer.layers:
            self.timer.layers.ready(layer)
        complete = self._step.ready(layer)
        return None if complete is None else self.buckets[complete]

    def end_backward(self) -> list[Bucket]:
        """Returns the buckets to submit now, with the gradients that exist."""
        return [self.buckets[bucket] for bucket in self._step.end_backward()]

    def waits_after_backward(self, needs_all: bool) -> bool:
        """Returns whether the step waits for its results at once. needs_all: they are needed now in any case."""
        return bool(self._step.waits_after_backward(needs_all))

    def submit_numbers(self) -> None:
        """Sends the sums that accompany the gradients, after all buckets were submitted."""
        self._extras.submit(self.buckets)

    def end_step(self) -> bool:
        """Ends a step after everything was submitted. Returns whether a review is due."""
        self._order_clock.end_step()
        self.timer.end_step(time.perf_counter())
        if self._plans and self.timer.passes:
            return self._planner.add_step(*self.timer.passes)
        return self._order_clock.is_due()

    @property
    def _plans(self) -> bool:
        """Whether schedules are planned from measured passes."""
        return self._planning.options.measures

    def measure(self) -> None:
        """Measures passes from the next step on, whether or not schedules are planned from them."""
        if self.timer.layers is None:
            self.timer.measure(len(self._layers.members))

    def review(self, ready: Sequence[int]) -> bool:
        """Replans. All workers call it between steps, after all results were taken. Returns whether the buckets changed.

        ready: the parameters in the order in which their gradients became ready in the last step.
        """
        self.timer.pause()  # planning follows this step, so its duration is not typical
        if self._learn_order(ready):
            return True
        if not self._plans:
            return False
        for layer, (touched, united) in self.observed().items():
            self._planner.observe(layer, touched, united)
        if not self._planner.review():
            return False
        self._make_buckets()
        return True

    def _learn_order(self, ready: Sequence[int]) -> bool:
        """Reorders layers if gradients became ready in another order on worker 0. Returns whether they were reordered.

        Parameters without a gradient keep their position after the parameter that they followed.
        """
        own = self._layers.reordered(ready) if self._session.rank == 0 else None
        told = self._session.all_gather(json.dumps(own).encode() if own else b"")[0]
        if not told:
            return False
        layers = self._layers.in_order(json.loads(told))
        seconds = {}
        if self._plans and self.timer.passes:
            forward, backward = self.timer.passes
            seconds = {index: (forward[layer], backward[layer]) for index, layer in self._layers.layer_of.items()}
        self._layers = layers
        self._planner = self._planning.planner(self._session, layers, seconds)
        if self.timer.layers:
            self.timer.measure(len(layers.members))
        self._make_buckets()
        return True

    def observed(self) -> dict[int, tuple[float, float]]:
        """Returns the rows that this worker and all workers together touched in the last step, for each layer that is sent as rows.

        Call it between steps after all results were taken. Rows of tensors in one row space are counted together, and
        each layer gets the share that was first observed.
        """
        found = {}
        for number, bucket in enumerate(self.buckets):
            if bucket.planned.kind.has_rows:
                for layer, touched, united in self._planner.share(number, self._session.observed(bucket.number)):
                    found[layer] = (touched, united)
        return found

    # ---- Description

    @property
    def expected(self) -> dict[str, float] | None:
        """Expected seconds of a step; None before passes were measured."""
        return self._planner.expected

    @property
    def measured(self) -> dict[str, float] | None:
        """Measured seconds of a step: medians of the last steps. Communication is a mean over all steps of the current buckets."""
        medians = self.timer.medians()
        if medians is None:
            return None
        iteration, compute = medians
        crossing = (bucket.statistics() for bucket in self.buckets)
        return {
            "iteration_s": iteration,
            "compute_s": compute,
            "communication_s": sum(each["seconds"] / max(1, each["steps"]) for each in crossing),
            "exposed_s": max(0.0, iteration - compute),
        }

    def statistics(self) -> dict[str, Any]:
        return {
            "buckets": len(self.buckets),
            "under_forward": self.under_forward,
            "expected": self.expected,
            "measured": self.measured,
            "exposed": [
                {"bucket": self.buckets[bucket].planned.name(), "phase": phase, "seconds": seconds, "why": why}
                for bucket, phase, seconds, why in self._planner.exposed
            ],
        }
