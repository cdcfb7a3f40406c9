"""The schedule of a module's gradients at work: its buckets, where their step stands, and when it is planned anew."""

from __future__ import annotations

import collections
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.schedule.bucket import Bucket
from sparsesync.torch.schedule.bucketing import Layers, Options, Planned
from sparsesync.torch.schedule.layer_timer import LayerTimer
from sparsesync.torch.schedule.scalar_allreduce import Norm, UsageCounts
from sparsesync.torch.sparsify.sparsifier_runtime import SparsifierRuntime

_KEPT = 32  # steps
# Steps until the order of gradients is looked at again, which then doubles: as plans are reviewed
# (engine/planner/schedule/schedule_planner.cpp).
_FIRST_LOOK = 7
_LONGEST_BETWEEN_LOOKS = 1000
MakeBucket = Callable[[Planned, bool], Bucket]  # and whether it announces


class Schedule:
    """All workers make one, and end each step, alike."""

    def __init__(
        self,
        session: _native.Session,
        device: CpuDevice,
        layers: Layers,
        options: Options,
        make_bucket: MakeBucket,
        *,
        dense_scheme: str,
        first_bytes: float | None,
        announce: bool,
        under_forward: bool,
        extra: Sequence[int] = (),
        sparsifying: SparsifierRuntime | None = None,
    ) -> None:
        """first_bytes: what the first bucket is full with. under_forward: whether forward passes can wait for one bucket after
        another. extra: numbers of buckets that cross behind the last gradients, and are no part of the schedule."""
        self._session = session
        self._device = device
        self._make_bucket = make_bucket
        self._extra = tuple(extra)
        self._sparsifying = sparsifying
        self._of_sparsifier: Sequence[int] = ()  # buckets
        self.norm: Norm | None = None  # of gradients that still cross, where somebody asks for it
        self._usage: UsageCounts | None = None
        self._planning = (
            options.schedule,
            options.full_bytes,
            first_bytes,
            options.scheme,
            dense_scheme,
            announce,
            under_forward,
        )
        self._steps_seen = 0
        self._look_at = _FIRST_LOOK
        self._take_layers(layers, {})
        self._plans = options.measures
        self.times = LayerTimer(len(layers.members), device) if options.measures else None
        self.passes: tuple[list[float], list[float]] | None = None  # of the last step: seconds of each layer, forward and backward
        self._steps: collections.deque[tuple[float, float]] = collections.deque(maxlen=_KEPT)  # seconds of each, and of its passes
        self._ended: float | None = None
        self.buckets: list[Bucket] = []
        self._make_buckets()

    def _take_layers(self, layers: Layers, seconds: dict[int, tuple[float, float]]) -> None:
        """seconds: of the passes of parameters, by their places in the module, where they are known."""
        self._layers = layers
        self._layer_of = {each.index: layer for layer, each in enumerate(layers.members)}
        self._planner = _native.SchedulePlanner(self._session, layers.native(seconds), *self._planning)

    def _make_buckets(self) -> None:
        """Those of the planner, in the place of those that there are."""
        for bucket in self.buckets:
            if self._sparsifying:
                self._sparsifying.keep(bucket)
            bucket.release()
        self._step = self._planner.step()
        announcing = {bucket for bucket, phase in self._planner.order if phase == "announce"}
        planned = self._layers.planned(self._planner.buckets)
        self.buckets = [self._make_bucket(each, number in announcing) for number, each in enumerate(planned)]
        if self._sparsifying:
            self._of_sparsifier = self._sparsifying.watch(self.buckets)
        if self.norm:
            self.norm.watch(self.buckets)
        self._watch_usage(bool(announcing))
        self._set_order()

    def _watch_usage(self, announces: bool) -> None:
        """Counts the workers that use a parameter where results alone cannot tell."""
        with_rows = self._with_rows()
        if self._usage:
            self._usage.release()
            self._usage = None
        if with_rows and (self.under_forward or announces):
            self._usage = UsageCounts(self._session, self._device, with_rows)
        for bucket in with_rows:
            bucket.usage = self._usage.are_used if self._usage else None

    def _with_rows(self) -> list[Bucket]:
        return [bucket for bucket in self.buckets if bucket.planned.kind.has_rows]

    def _set_order(self) -> None:
        order = [(self.buckets[bucket].number, phase) for bucket, phase in self._planner.order]
        behind = 1 + max(place for place, (_, phase) in enumerate(order) if phase == "reduce")
        of_steps = [each.number for each in (self.norm, self._usage) if each]
        extra = (*of_steps, *self._of_sparsifier, *self._extra)
        order[behind:behind] = [(number, phase) for number in extra for phase in ("reduce", "gather")]
        self._session.set_order(order, self._session.step)

    def watch_norm(self) -> None:
        """Between steps, all workers: from the next step on `norm` knows that of gradients that still cross."""
        if self.norm is None:
            where = self.buckets[0].planned.device
            self.norm = Norm(self._session, self._device, where, len(self._layers.members))
            self.norm.watch(self.buckets)
            self._set_order()

    @property
    def layers(self) -> Layers:
        return self._layers

    @property
    def under_forward(self) -> bool:
        """Whether gathers go on under the next forward pass."""
        return self._planner.under_forward

    def bucket_of(self, parameter: int) -> Bucket:
        """That a parameter, by its place in the module, crosses in."""
        return self.buckets[self._step.bucket_of(self._layer_of[parameter])]

    def layer_of(self, parameter: int) -> int:
        return self._layer_of[parameter]

    def in_order_of_gathers(self) -> list[Bucket]:
        return [self.buckets[bucket] for bucket, phase in self._planner.order if phase == "gather"]

    # ---- A step.

    def ready(self, parameter: int) -> Bucket | None:
        """A gradient is ready. The bucket that is to be submitted now, if there is one."""
        layer = self._layer_of[parameter]
        if self.times:
            self.times.ready(layer)
        complete = self._step.ready(layer)
        return None if complete is None else self.buckets[complete]

    def end_backward(self) -> list[Bucket]:
        """Buckets that are to be submitted now, with what gradients there are."""
        return [self.buckets[bucket] for bucket in self._step.end_backward()]

    def submit_numbers(self) -> None:
        """Submits what is summed beside gradients, once all buckets are submitted."""
        if self.norm:
            self.norm.submit()
        if self._usage:
            self._usage.submit(self._with_rows())

    def end_step(self) -> bool:
        """Everything is submitted. Whether a review is due."""
        now = time.perf_counter()
        self._steps_seen += 1
        if self.times is None:
            return self._is_look_due()
        forward, backward = self.passes = self.times.end_step()
        if self._ended is not None:
            self._steps.append((now - self._ended, sum(forward) + sum(backward)))
        self._ended = now
        return self._planner.add_step(forward, backward) if self._plans else self._is_look_due()

    def _is_look_due(self) -> bool:
        """Where nothing is planned anew the order of gradients may change all the same."""
        if self._steps_seen < self._look_at:
            return False
        self._look_at += min(self._steps_seen, _LONGEST_BETWEEN_LOOKS)
        return True

    def measure(self) -> None:
        """From the next step on passes are measured, whether schedules are planned by them or not."""
        if self.times is None:
            self.times = LayerTimer(len(self._layers.members), self._device)

    def review(self, ready: Sequence[int]) -> bool:
        """Between steps, all workers, when all results were taken: plans anew. Whether there are other buckets now.

        ready: parameters, as their gradients became ready in the last step."""
        self._ended = None  # a step that is planned behind is like no other
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
        if self._plans and self.passes:
            seconds = {index: (self.passes[0][layer], self.passes[1][layer]) for index, layer in self._layer_of.items()}
        self._take_layers(layers, seconds)
        if self.times:
            self.times = LayerTimer(len(layers.members), self._device)
        self._make_buckets()
        return True

    def observed(self) -> dict[int, tuple[float, float]]:
        """Between steps, when all results were taken: of each layer of which rows cross those that this worker touched in the last
        step, and those of all workers. Rows of tensors alike are known together: each has its share by what was first seen of it."""
        found = {}
        for bucket in self._with_rows():
            members = bucket.planned.members
            spaces: dict[tuple[int, torch.dtype], list[int]] = {}
            for place, each in enumerate(members):
                tensor = each.parameter
                spaces.setdefault((tensor.numel() // tensor.shape[0], tensor.dtype), []).append(place)
            for places, (touched, united) in zip(spaces.values(), self._session.observed(bucket.number), strict=True):
                weights = [self._layers.touched.get(members[p].index, 0.0) * members[p].parameter.shape[0] for p in places]
                whole = sum(weights) or 1.0
                for place, weight in zip(places, weights, strict=True):
                    found[self._layer_of[members[place].index]] = (touched * weight / whole, united * weight / whole)
        return found

    # ---- What it is.

    @property
    def expected(self) -> dict[str, float] | None:
        """Of a step, in seconds; nothing before passes were measured."""
        return self._planner.expected

    @property
    def measured(self) -> dict[str, float] | None:
        """The same as it was here: medians of the last steps; what crosses, a mean of all steps of the present buckets."""
        if not self._steps:
            return None
        iteration, compute = (statistics.median(each) for each in zip(*self._steps, strict=True))
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
