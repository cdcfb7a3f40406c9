"""The schedule of a module's gradients at work: its buckets, where their step stands, and when it is planned anew."""

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

# Steps until the order of gradients is looked at again, which then doubles: as plans are reviewed
# (engine/planner/schedule/schedule_planner.cpp).
_FIRST_LOOK = 7
_LONGEST_BETWEEN_LOOKS = 1000


@dataclasses.dataclass
class OrderClock:
    """Counts steps until the order of gradients is looked at again, where nothing is planned anew: it may change all the same."""

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
    """Buckets that cross behind the last gradients, and are no part of the schedule."""

    def __init__(
        self, session: _native.Session, device: CpuDevice, sparsifier: SparsifierRuntime | None, numbers: Sequence[int]
    ) -> None:
        """numbers: of buckets that somebody else submits, in all steps."""
        self._session = session
        self._device = device
        self._sparsifier = sparsifier
        self._of_others = tuple(numbers)
        self._of_sparsifier: Sequence[int] = ()
        self._norm: Norm | None = None  # of gradients that still cross, where somebody asks for it
        self._usage: UsageCounts | None = None

    def watch(self, buckets: Sequence[Bucket], counts_usage: bool) -> None:
        """Between steps, all workers: there are these buckets now. counts_usage: whether results alone cannot tell the workers that use
        a parameter."""
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
        """Between steps, all workers: from the next step on norm() knows that of gradients that still cross. Returns whether it did not.

        most: buckets that there may be."""
        if self._norm is not None:
            return False
        self._norm = Norm(self._session, self._device, buckets[0].planned.device, most)
        self._norm.watch(buckets)
        return True

    def norm(self, buckets: Sequence[Bucket]) -> torch.Tensor | None:
        return self._norm.of(buckets) if self._norm else None

    def numbers(self) -> list[int]:
        """In the order in which they cross."""
        of_steps = [sums.number for sums in (self._norm, self._usage) if sums]
        return [*of_steps, *self._of_sparsifier, *self._of_others]

    def submit(self, buckets: Sequence[Bucket]) -> None:
        """Once all buckets are submitted. Those of others, and of the sparsifier, submit themselves."""
        if self._norm:
            self._norm.submit()
        if self._usage:
            self._usage.submit(_with_rows(buckets))


def _with_rows(buckets: Sequence[Bucket]) -> list[Bucket]:
    return [bucket for bucket in buckets if bucket.planned.kind.has_rows]


@dataclasses.dataclass(frozen=True)
class Planning:
    """What a schedule is planned for, besides its layers; the same on all workers."""

    options: Options
    dense_scheme: str
    first_bytes: float | None  # what the first bucket is full with
    announce: bool
    under_forward: bool  # whether forward passes can wait for one bucket after another

    def planner(
        self, session: _native.Session, layers: Layers, seconds: dict[int, tuple[float, float]]
    ) -> _native.SchedulePlanner:
        """seconds: of the passes of parameters, by their places in the module, where they are known."""
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
    """All workers make one, and end each step, alike."""

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
        """extra: numbers of buckets that cross behind the last gradients, and are no part of the schedule."""
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
        """Those of the planner, in the place of those that there are."""
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
        """Between steps, all workers: from the next step on norm() knows that of gradients that still cross."""
        if self._extras.watch_norm(self.buckets, len(self._layers.members)):
            self._set_order()

    def norm(self) -> torch.Tensor | None:
        """Of the gradients of the step under way, without their being gathered. Nothing, on all workers, where it is not known."""
        return self._extras.norm(self.buckets)

    @property
    def layers(self) -> Layers:
        return self._layers

    @property
    def under_forward(self) -> bool:
        """Whether gathers go on under the next forward pass."""
        return self._planner.under_forward

    def bucket_of(self, parameter: int) -> Bucket:
        """That a parameter, by its place in the module, crosses in."""
        return self.buckets[self._step.bucket_of(self._layers.layer_of[parameter])]

    def layer_of(self, parameter: int) -> int:
        return self._layers.layer_of[parameter]

    def in_order_of_gathers(self) -> list[Bucket]:
        return [self.buckets[bucket] for bucket in self._step.gathers()]

    # ---- A step.

    def expect_announcements(self, parameters: Iterable[int]) -> None:
        """Names the parameters whose rows are known in most forward passes; buckets wait for no others' rows."""
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
        """A gradient is ready. The bucket that is to be submitted now, if there is one."""
        layer = self._layers.layer_of[parameter]
        if self.timer.layers:
            self.timer.layers.ready(layer)
        complete = self._step.ready(layer)
        return None if complete is None else self.buckets[complete]

    def end_backward(self) -> list[Bucket]:
        """Buckets that are to be submitted now, with what gradients there are."""
        return [self.buckets[bucket] for bucket in self._step.end_backward()]

    def waits_after_backward(self, needs_all: bool) -> bool:
        """Returns whether the step waits for its results at once. needs_all: whether they are needed now in any case."""
        return bool(self._step.waits_after_backward(needs_all))

    def submit_numbers(self) -> None:
        """Submits what is summed beside gradients, once all buckets are submitted."""
        self._extras.submit(self.buckets)

    def end_step(self) -> bool:
        """Everything is submitted. Whether a review is due."""
        self._order_clock.end_step()
        self.timer.end_step(time.perf_counter())
        if self._plans and self.timer.passes:
            return self._planner.add_step(*self.timer.passes)
        return self._order_clock.is_due()

    @property
    def _plans(self) -> bool:
        """Whether schedules are planned by what passes take."""
        return self._planning.options.measures

    def measure(self) -> None:
        """From the next step on passes are measured, whether schedules are planned by them or not."""
        if self.timer.layers is None:
            self.timer.measure(len(self._layers.members))

    def review(self, ready: Sequence[int]) -> bool:
        """Between steps, all workers, when all results were taken: plans anew. Whether there are other buckets now.

        ready: parameters, as their gradients became ready in the last step."""
        self.timer.pause()  # a step that is planned behind is like no other
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
        """Makes layers of the order in which worker 0 saw gradients become ready, where that has changed. Those that it did not see
        stay behind the ones that they followed."""
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
        """Between steps, when all results were taken: of each layer of which rows cross those that this worker touched in the last
        step, and those of all workers. Rows of tensors alike are known together: each has its share by what was first seen of it."""
        found = {}
        for number, bucket in enumerate(self.buckets):
            if bucket.planned.kind.has_rows:
                for layer, touched, united in self._planner.share(number, self._session.observed(bucket.number)):
                    found[layer] = (touched, united)
        return found

    # ---- What it is.

    @property
    def expected(self) -> dict[str, float] | None:
        """Of a step, in seconds; nothing before passes were measured."""
        return self._planner.expected

    @property
    def measured(self) -> dict[str, float] | None:
        """The same as it was here: medians of the last steps; what crosses, a mean of all steps of the present buckets."""
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
