"""A sparsifier at work on a module: its step, its buckets, and what chunks all workers choose."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol

import torch

from sparsesync import _native
from sparsesync._native import Sparsifier as NativeSparsifier
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.gradients import DTYPES, Result, Submitted, Synchronized, dense_gradient, handed_over, write_dense
from sparsesync.torch.schedule.bucket import Bucket
from sparsesync.torch.schedule.bucketing import Options, Planned
from sparsesync.torch.schedule.pending_results import OF_ONE_STEP
from sparsesync.torch.schedule.scalar_allreduce import ScalarAllReduce
from sparsesync.torch.sparsify.sparsifier_state import Owed, SparsifierState
from sparsesync.torch.sparsify.sparsifiers import CoarseGrained, Sparsifier

_TORCHS = {name: dtype for dtype, name in DTYPES.items()}


class Wrapped(Protocol):
    """An optimizer that can do without its momentum."""

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    def momentum_groups(self) -> dict[int, dict[str, Any]]: ...

    def take_momentum(self, parameters: Iterable[torch.nn.Parameter]) -> None: ...

    def parameter_of(self, held: torch.Tensor) -> Any: ...

    def has_master(self, parameter: torch.nn.Parameter) -> bool: ...


class CorrectedMomentum:
    """The momentum that was taken out of an optimizer: velocities are added up here, and cross in the place of gradients."""

    def __init__(self) -> None:
        # The optimizer whose momentum was taken out, and the place of its group: load_state_dict() puts another dict there.
        self._taken_from: tuple[torch.optim.Optimizer, int] | None = None

    @property
    def is_taken(self) -> bool:
        return self._taken_from is not None

    @property
    def group(self) -> dict[str, Any]:
        """The optimizer's group whose momentum was taken out; empty where none was."""
        if self._taken_from is None:
            return {}
        optimizer, place = self._taken_from
        return optimizer.param_groups[place]

    def take(self, sparsifier: Sparsifier, wrapped: Sequence[Wrapped], parameters: Sequence[Synchronized]) -> None:
        """Takes the momentum of these parameters out of optimizers that are wrapped. Raises InputError where they have not one momentum
        together, or some have it elsewhere."""
        groups_of = {parameter: group for optimizer in wrapped for parameter, group in optimizer.momentum_groups().items()}
        groups = [groups_of.get(id(member.parameter)) for member in parameters]
        first = next((group for group in groups if group is not None), None)
        if first is None:
            return
        for member, group in zip(parameters, groups, strict=True):
            said = ("momentum", "nesterov", "dampening")
            if group is None or any(group[name] != first[name] for name in said) or group["dampening"] != 0:
                raise _native.InputError(
                    f"{type(sparsifier).__name__}: parameter '{member.name}' has another momentum in its optimizer than others "
                    "whose momentum is corrected, or dampening: give all of them the same, or momentum_correction=False"
                )
        self._taken_from = next(
            (each.optimizer, place) for each in wrapped for place, group in enumerate(each.optimizer.param_groups) if group is first
        )
        for optimizer in wrapped:
            optimizer.take_momentum([member.parameter for member in parameters])


class StepCounts:
    """Counts what all workers must know of a step before its sums are used: values that are not finite, and the workers that use each
    parameter. All workers make one, between the same steps."""

    def __init__(self, session: _native.Session, device: CpuDevice, buckets: Sequence[SparsifiedBucket]) -> None:
        self._indices = sorted(member.index for bucket in buckets for member in bucket.planned.members)
        where = buckets[0].planned.device
        self._sums = ScalarAllReduce(session, device, "(what is not finite, what is used)", 1 + len(self._indices), where)
        self.number = self._sums.number

    def submit(self, buckets: Sequence[SparsifiedBucket]) -> None:
        """Once all gradients of a step are submitted. Waits until what crosses is taken of all of them."""
        used = {member.index: here for bucket in buckets for member, here in bucket.members_used_here()}
        not_finite = sum(bucket.native.not_finite() for bucket in buckets)
        own = torch.tensor([not_finite, *(used[index] for index in self._indices)], dtype=torch.float64)
        self._sums.own.copy_(own)
        self._sums.submit()

    def summed(self) -> tuple[int, set[int]]:
        """Returns how many values of all workers are not finite, and the parameters that no worker used. Waits for the counts."""
        found, *users = map(int, self._sums.sums().tolist())
        return found, {index for index, count in zip(self._indices, users, strict=True) if count == 0}


@dataclasses.dataclass
class Progress:
    """Where a sparsifier stands."""

    step: int = 0
    not_finite: int = 0  # values, so far
    skipped: int = 0  # steps


@dataclasses.dataclass
class KeptState:
    """What is owed of parameters that have no buckets, by their indices."""

    waiting: dict[int, Owed] = dataclasses.field(default_factory=dict)  # until their buckets are there, such as what was loaded
    before: dict[int, Owed] = dataclasses.field(default_factory=dict)  # the last step, of parameters that have other buckets since
    norms: torch.Tensor | None = None  # of chunks, that were loaded


class SparsifierRuntime:
    """All workers make one, and end each step, alike."""

    def __init__(self, sparsifier: Sparsifier, session: _native.Session, device: CpuDevice) -> None:
        self.sparsifier = sparsifier
        self.progress = Progress()
        self._loss_scale: float | None = None  # where a LossScaler may discard steps
        self._momentum = CorrectedMomentum()
        self._session = session
        self._device = device
        self._norms: _Norms | None = None
        self._counts: StepCounts | None = None
        self._buckets: list[SparsifiedBucket] = []
        self._kept = KeptState()

    def bucket(self, planned: Planned, options: Options, dense_scheme: str) -> SparsifiedBucket:
        return SparsifiedBucket(self._session, self._device, planned, options, dense_scheme, self)

    def native(self, specs: Sequence[_native.TensorSpec], wire: str | None) -> NativeSparsifier:
        """Of a bucket's gradients."""
        options = self.sparsifier.native_options()
        if isinstance(self.sparsifier, CoarseGrained):
            options["chunk"] = min(self.sparsifier.chunk, sum(each.rows * each.width for each in specs))
        return NativeSparsifier(
            self._session,
            specs,
            corrects_momentum=self.corrects_momentum,
            wire=wire,
            **options,
        )

    def of_step(self) -> dict[str, Any]:
        """Returns the options of the native reduce() for the present step."""
        return {
            "share": self.sparsifier.share_of(self.progress.step),
            "scale": 1.0 if self._loss_scale is None else self._loss_scale,
            "momentum": self._momentum.group.get("momentum", 0.0),
            "nesterov": self._momentum.group.get("nesterov", False),
        }

    def statistics(self) -> dict[str, Any]:
        return {
            "name": type(self.sparsifier).__name__,
            "step": self.progress.step,
            "share": self.sparsifier.share_of(self.progress.step),
            "corrects_momentum": self.corrects_momentum,
            "not_finite": self.progress.not_finite,
            "skipped_steps": self.progress.skipped,
        }

    # ---- Momentum.

    @property
    def corrects_momentum(self) -> bool:
        return self._momentum.is_taken

    def take_momentum(self, wrapped: Iterable[Wrapped], parameters: Sequence[Synchronized]) -> None:
        """Before there are buckets: takes the momentum of these parameters out of optimizers that are wrapped, where the sparsifier
        corrects it. Raises InputError as CorrectedMomentum.take()."""
        if self.sparsifier.corrects_momentum:
            self._momentum.take(self.sparsifier, list(wrapped), parameters)

    # ---- What is owed.

    def state(self, buckets: Iterable[Bucket], parameters: Sequence[Synchronized], of_mean: bool) -> SparsifierState:
        """Between steps, when all results were taken, or the session is over: this worker's."""
        owed = dict(self._kept.waiting)
        for each in buckets:
            if isinstance(each, SparsifiedBucket):
                each.give_back_lost()
                owed.update(each.state())
        named = {parameters[index].name: each for index, each in owed.items()}
        norms = self._kept.norms  # loaded, and not used yet
        if norms is None and self._norms:
            norms = self._norms.summed()
        return SparsifierState(self.progress.step, self._session.rank, self._session.size, of_mean, named, norms)

    def load(
        self, state: SparsifierState, buckets: Iterable[Bucket], parameters: Sequence[Synchronized], of_mean: bool
    ) -> None:
        """Between steps. Raises InputError, before anything is changed, for the state of another worker, or of another model."""
        if (state.rank, state.workers) != (self._session.rank, self._session.size):
            raise _native.InputError(
                f"what is owed is that of worker {state.rank} of {state.workers}, and this is worker {self._session.rank} of "
                f"{self._session.size}: save on each worker, and load its own; with another number of workers see resharded()"
            )
        if state.of_mean != of_mean:
            raise _native.InputError("what is owed is of gradients that are a sum, or a mean, over workers, and these are not")
        by_name = {each.name: each for each in parameters}
        loaded: dict[int, Owed] = {}
        for name, owed in state.owed.items():
            if name not in by_name or not self.sparsifier.takes(name, by_name[name].parameter):
                raise _native.InputError(f"parameter '{name}' owes something, and the sparsifier of this model does not take it")
            parameter = by_name[name].parameter
            residual, velocity = owed
            if residual.numel() != parameter.numel():  # and so has the velocity, where there is one
                raise _native.InputError(
                    f"parameter '{name}' owes {residual.numel()} elements, and has {parameter.numel()}: this is the state of another model"
                )
            if self._buckets:  # before, it is not known yet
                self.expect_velocity(name, owed)
            loaded[by_name[name].index] = (
                residual.to(parameter.device).contiguous(),
                None if velocity is None else velocity.to(parameter.device).contiguous(),
            )
        for each in (member for bucket in self._buckets for member in bucket.planned.members):
            if state.owed and each.index not in loaded:
                raise _native.InputError(f"the state lacks what parameter '{each.name}' owes: this is the state of another model")
            if not state.owed:  # of before the first step
                zeros = torch.zeros(each.parameter.numel(), device=each.parameter.device)
                loaded[each.index] = (zeros, zeros if self.corrects_momentum else None)
        self.progress.step = state.step
        self._kept.norms = state.norms
        self._kept.waiting = loaded
        self.take_over(buckets)

    def expect_velocity(self, name: str, owed: Owed) -> None:
        """Raises InputError where a velocity was saved and there is none, or the other way round."""
        has_velocity = owed[1] is not None
        if has_velocity != self.corrects_momentum:
            before, now = ("it was", "it is not") if has_velocity else ("it was not", "it is")
            raise _native.InputError(
                f"parameter '{name}': {before} saved with its momentum corrected, and {now} corrected now: have wrap_optimizer() and "
                "momentum as they were"
            )

    def take_over(self, buckets: Iterable[Bucket]) -> None:
        """Gives buckets what is owed of their parameters."""
        for each in buckets:
            if isinstance(each, SparsifiedBucket):
                each.set_state(self._kept.waiting)
                for member in each.planned.members:
                    self._kept.waiting.pop(member.index, None)

    def keep(self, bucket: Bucket) -> None:
        """Takes what a bucket has that is to be released."""
        if isinstance(bucket, SparsifiedBucket):
            self._kept.waiting.update(bucket.state())
            if self._loss_scale is not None:
                bucket.give_back()
                self._kept.before.update(bucket.state())

    # ---- Chunks, which all workers choose by the norms of the step before.

    def watch(self, buckets: Iterable[Bucket]) -> list[int]:
        """Between steps: there are these buckets now. Returns the numbers of others, which cross behind the gradients."""
        own = self._buckets = [each for each in buckets if isinstance(each, SparsifiedBucket)]
        if self._norms:
            self._norms.release()
            self._norms = None
        self.take_over(own)
        if self._kept.waiting:
            name = next(iter(self._kept.waiting))
            raise _native.InputError(f"parameter number {name} owes something, and its gradient is not made sparse any more")
        if own and self._counts is None:
            self._counts = StepCounts(self._session, self._device, own)
        if isinstance(self.sparsifier, CoarseGrained) and own:
            self._norms = _Norms(self._session, self._device, own)
        return [each.number for each in (self._counts, self._norms) if each]

    def begin_step(self, scale: float | None) -> None:
        """Before a step's first gradients cross. scale: of the loss, where there is a LossScaler."""
        self._loss_scale = scale
        self._kept.before.clear()
        if self._norms:
            known, self._kept.norms = self._kept.norms, None
            self._norms.choose(self.sparsifier.share_of(self.progress.step), known)

    def end_step(self) -> int:
        """Once all gradients of a step are submitted. Waits until what crosses is taken of all of them. How many values of all workers
        are not finite: where there are some nothing of the step is to be used."""
        if self._counts is None:
            return 0
        self._counts.submit(self._buckets)
        if self._norms:
            self._norms.submit()
        try:
            found, unused = self._counts.summed()
        except OF_ONE_STEP:
            for bucket in self._buckets:
                bucket.keep_unused(())
            if self._norms:
                self._norms.forget()
            self.progress.step += 1  # which discard_step() takes back
            raise
        for bucket in self._buckets:
            bucket.keep_unused(unused)
        self.progress.not_finite += found
        if found:
            self.progress.skipped += 1
            if self._norms:
                self._norms.forget()
        else:
            self.progress.step += 1
        return found

    def discard_step(self) -> None:
        """Behind end_step(), when buckets were dropped and stay owed: sums are not used."""
        for each in self._buckets:
            each.set_state(self._kept.before)
        self.progress.step -= 1
        self.progress.skipped += 1


class SparsifiedBucket(Bucket):
    """Of its parameters' dense gradients what the sparsifier takes of them crosses."""

    def __init__(
        self,
        session: _native.Session,
        device: CpuDevice,
        planned: Planned,
        options: Options,
        dense_scheme: str,
        sparsifying: SparsifierRuntime,
    ) -> None:
        self._sparsifying = sparsifying
        specs = [each.spec(planned.kind) for each in planned.members]
        self.native = sparsifying.native(specs, options.wire)
        self._given: Sequence[Submitted] = ()  # gradients of the step under way
        self._may_give_back = False  # what the last step took, and did not do so yet
        self._unused_before: dict[int, Owed] = {}  # of parameters without a gradient here: what they owed before the step
        self._kept: dict[int, Owed] = {}  # of those among them that owe it still, whatever the step sent
        self._unused: set[int] = set()  # parameters that no worker used in the last step
        super().__init__(session, device, planned, options, dense_scheme, announces=False)

    def _crossing(self, options: Options, _: str) -> tuple[list[_native.TensorSpec], str, str | None]:
        scheme = "balanced" if options.scheme.startswith("dense_") else options.scheme
        return list(self.native.crossing), scheme, None

    @property
    def gradient_tensors(self) -> int:
        return len(self.native.crossing)

    def _start(self, given: Sequence[Submitted], streams: Sequence[int]) -> _native.Ticket:
        without = [place for place, each in enumerate(given) if each is None]
        self._unused_before = {self.planned.members[place].index: self._state_of(place) for place in without}
        frozen = self._frozen()
        self.set_state({index: _zeros_like(self._unused_before[index]) for index in frozen})  # so that nothing of it is sent
        self._given = given
        self._kept = {index: self._unused_before[index] for index in frozen}
        if self._sparsifying.corrects_momentum:  # velocities go on: other workers may have gradients
            self._given = [
                torch.zeros_like(each.parameter, memory_format=torch.contiguous_format)
                if gradient is None and each.index not in frozen
                else gradient
                for each, gradient in zip(self.planned.members, given, strict=True)
            ]
        self._may_give_back = True
        return self.native.reduce(self.number, self._views(), streams=streams, **self._sparsifying.of_step())

    def drop(self, stays_owed: bool) -> None:
        try:
            super().drop(stays_owed)
        finally:
            if stays_owed:
                self.give_back()
            else:
                self.native.undo(self._views(), [self._device.stream()])
                self.set_state(self._unused_before)
                self._may_give_back = False
            self._given = ()

    def members_used_here(self) -> list[tuple[Synchronized, bool]]:
        """Returns each member, and whether it had a gradient here in the last step."""
        return list(zip(self.planned.members, self.use.here, strict=True))

    def _frozen(self) -> list[int]:
        """Returns the parameters without a gradient here that do not require one."""
        members = self.planned.members
        return [each.index for each in members if each.index in self._unused_before and not each.parameter.requires_grad]

    def keep_unused(self, unused: Collection[int]) -> None:
        """Gives parameters that no worker used in this step, and those that are frozen here, the residual of before the step."""
        self._unused = {each.index for each in self.planned.members if each.index in unused}
        kept = {*self._unused, *self._frozen()}
        self._kept = {index: owed for index, owed in self._unused_before.items() if index in kept}
        self.set_state(self._kept)

    def _views(self) -> list[Any]:
        """Of the gradients. Made for each use: what is handed over is taken once."""
        return [handed_over(each, self._device) for each in self._given]

    def give_back(self) -> None:
        """What it sent in the last step is owed."""
        if self._may_give_back:
            self.native.give_back()
            self.set_state(self._kept)
            self._may_give_back = False

    def give_back_lost(self) -> None:
        """Gives back what was sent in a step whose results never came, as the session ended."""
        if self._given:
            self.give_back()

    def _write(self, scale: float) -> None:
        self._given = ()
        if self.native.chunks:
            self._write_chunks()
        else:
            for place, (each, spec) in enumerate(zip(self.planned.members, self.native.crossing, strict=True)):
                if each.index not in self._unused:
                    result = Result(self._session, self.number, place, self._device)
                    write_dense(result, each.parameter, _TORCHS[spec.dtype])
        if scale != 1:
            for each in self.planned.members:
                if each.index not in self._unused:
                    assert each.parameter.grad is not None
                    each.parameter.grad.mul_(scale)

    def _write_chunks(self) -> None:
        spec = self.native.crossing[0]
        whole = torch.empty(spec.rows * spec.width, dtype=_TORCHS[spec.dtype], device=self.planned.device)
        Result(self._session, self.number, 0, self._device).write(whole)
        begin = 0
        for each in self.planned.members:
            size = each.parameter.numel()
            if each.index not in self._unused:
                gradient = dense_gradient(each.parameter)
                gradient.copy_(whole[begin : begin + size].view(gradient.shape))
            begin += size

    def _reason(self, choice: dict[str, Any]) -> str:
        told = self._sparsifying.statistics()
        return f"{told['name']} takes {told['share']:.3g} of it; scheme: {super()._reason(choice)}"

    # ---- What is kept.

    def state(self) -> dict[int, Owed]:
        """Copies, by the parameters' places, of what is owed where losses are not scaled."""
        return {each.index: self._state_of(place) for place, each in enumerate(self.planned.members)}

    def _state_of(self, place: int) -> Owed:
        size = self.planned.members[place].parameter.numel()
        residual = self._empty(size)
        velocity = self._empty(size) if self._sparsifying.corrects_momentum else None
        self.native.write_state(place, self._device.view(residual), self._view_of(velocity), self._device.stream())
        for numbers in (residual, velocity):
            if numbers is not None:
                numbers.div_(self.native.scale)
        return residual, velocity

    def set_state(self, states: dict[int, Owed]) -> None:
        for place, each in enumerate(self.planned.members):
            if each.index in states:
                self._sparsifying.expect_velocity(each.name, states[each.index])
                residual, velocity = (None if numbers is None else numbers * self.native.scale for numbers in states[each.index])
                self.native.read_state(place, self._view_of(residual), self._view_of(velocity), self._device.stream())

    def _view_of(self, numbers: torch.Tensor | None) -> Any:
        return None if numbers is None else self._device.view(numbers)

    def _empty(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.float32, device=self.planned.device)


def _zeros_like(owed: Owed) -> Owed:
    residual, velocity = owed
    return torch.zeros_like(residual), None if velocity is None else torch.zeros_like(velocity)


class _Norms:
    """Of all chunks of some buckets: they hide under what follows the step."""

    def __init__(self, session: _native.Session, device: CpuDevice, buckets: Sequence[SparsifiedBucket]) -> None:
        ends = list(itertools.accumulate(each.native.chunks for each in buckets))
        self._ranges = list(zip(buckets, [0, *ends], ends, strict=False))  # of their chunks among all
        self._chunks = ends[-1]
        self._device = device
        self._sums = ScalarAllReduce(session, device, "(norms of chunks)", self._chunks, buckets[0].planned.device)
        self.number = self._sums.number
        self.release = self._sums.release
        self._is_chosen = True  # by the last sums
        self._chosen_by: torch.Tensor | None = None

    def submit(self) -> None:
        """Once a step, behind all buckets."""
        for each, begin, end in self._ranges:
            each.native.write_norms(self._sums.view(begin, end), self._device.stream())
            self._sums.own[begin:end].div_(each.native.scale)  # so that they are the same whatever the scale of the loss
        self._sums.submit()
        self._is_chosen = False

    def forget(self) -> None:
        """Of the last step: the chunks of the one before are those of the next one, too."""
        self._is_chosen = True

    def summed(self) -> torch.Tensor | None:
        """Returns the norms that the next step's chunks are chosen by; None before the first step. Where the session ended before the
        last step's sums came, they are those of the step before."""
        if self._is_chosen:
            return self._chosen_by
        try:
            return self._sums.sums()
        except _native.Error:
            return self._chosen_by

    def choose(self, share: float, known: torch.Tensor | None) -> None:
        """Has every bucket take its part of the chunks that all workers choose. known: norms that count in the place of these."""
        if known is None and self._is_chosen:
            return
        self._is_chosen = True
        try:
            norms = self._sums.sums() if known is None else known
        except OF_ONE_STEP:  # on all workers: chunks stay as they are
            return
        self._chosen_by = norms
        if norms is None or len(norms) != self._chunks:  # of other buckets: all chunks cross, once
            return
        chosen = _native.largest_chunks(norms.tolist(), _native.count_of_share(share, self._chunks))
        for each, begin, end in self._ranges:
            each.native.choose([chunk - begin for chunk in chosen if begin <= chunk < end])
