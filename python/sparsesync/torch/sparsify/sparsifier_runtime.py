"""Sparsifiers in a training step: their buckets, and the chunks that all workers select together."""

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
    """An optimizer that can give up its momentum."""

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    def momentum_groups(self) -> dict[int, dict[str, Any]]: ...

    def take_momentum(self, parameters: Iterable[torch.nn.Parameter]) -> None: ...

    def parameter_of(self, held: torch.Tensor) -> Any: ...

    def has_master(self, parameter: torch.nn.Parameter) -> bool: ...


class CorrectedMomentum:
    """The momentum that was moved out of an optimizer: workers accumulate velocities and send those instead of gradients."""

    def __init__(self) -> None:
        # The optimizer that gave up its momentum, and the index of its group. Not the group: load_state_dict() replaces the dict.
        self._taken_from: tuple[torch.optim.Optimizer, int] | None = None

    @property
    def is_taken(self) -> bool:
        return self._taken_from is not None

    @property
    def group(self) -> dict[str, Any]:
        """The optimizer's group whose momentum was moved; empty if none was."""
        if self._taken_from is None:
            return {}
        optimizer, place = self._taken_from
        return optimizer.param_groups[place]

    def take(self, sparsifier: Sparsifier, wrapped: Sequence[Wrapped], parameters: Sequence[Synchronized]) -> None:
        """Moves the momentum of these parameters out of the wrapped optimizers.

        Raises InputError unless all these parameters have the same momentum settings, without dampening.
        """
        groups_of = {parameter: group for optimizer in wrapped for parameter, group in optimizer.momentum_groups().items()}
        groups = [groups_of.get(id(member.parameter)) for member in parameters]
        first = next((group for group in groups if group is not None), None)
        if first is None:
            return
        for member, group in zip(parameters, groups, strict=True):
            said = ("momentum", "nesterov", "dampening")
            if group is None or any(group[name] != first[name] for name in said) or group["dampening"] != 0:
                raise _native.InputError(
                    f"{type(sparsifier).__name__}: parameter '{member.name}' has dampening, or another momentum than the other "
                    "sparsified parameters: give all of them the same momentum, or pass momentum_correction=False"
                )
        self._taken_from = next(
            (each.optimizer, place) for each in wrapped for place, group in enumerate(each.optimizer.param_groups) if group is first
        )
        for optimizer in wrapped:
            optimizer.take_momentum([member.parameter for member in parameters])


class StepCounts:
    """Counts non-finite values and the workers that use each parameter: all workers need both before they use a step's sums.

    All workers make one, between the same steps.
    """

    def __init__(self, session: _native.Session, device: CpuDevice, buckets: Sequence[SparsifiedBucket]) -> None:
        self._indices = sorted(member.index for bucket in buckets for member in bucket.planned.members)
        where = buckets[0].planned.device
        self._sums = ScalarAllReduce(session, device, "(what is not finite, what is used)", 1 + len(self._indices), where)
        self.number = self._sums.number

    def submit(self, buckets: Sequence[SparsifiedBucket]) -> None:
        """Sends the counts. Call it after all gradients of a step were submitted. Waits until the elements to send are selected."""
        used = {member.index: here for bucket in buckets for member, here in bucket.members_used_here()}
        not_finite = sum(bucket.native.not_finite() for bucket in buckets)
        own = torch.tensor([not_finite, *(used[index] for index in self._indices)], dtype=torch.float64)
        self._sums.own.copy_(own)
        self._sums.submit()

    def summed(self) -> tuple[int, set[int]]:
        """Returns the number of non-finite values on all workers, and the parameters that no worker used. Waits for the counts."""
        found, *users = map(int, self._sums.sums().tolist())
        return found, {index for index, count in zip(self._indices, users, strict=True) if count == 0}


@dataclasses.dataclass
class Progress:
    """Progress of a sparsifier."""

    step: int = 0
    not_finite: int = 0  # values since the start
    skipped: int = 0  # steps since the start


@dataclasses.dataclass
class KeptState:
    """Residuals and velocities of parameters that have no bucket now, by the parameters' indices."""

    waiting: dict[int, Owed] = dataclasses.field(default_factory=dict)  # wait for their buckets, for example after loading
    before: dict[int, Owed] = dataclasses.field(default_factory=dict)  # from before the last step, if the bucket changed since
    norms: torch.Tensor | None = None  # chunk norms that were loaded


class SparsifierRuntime:
    """A sparsifier at work on a module. All workers make one, and end each step in the same order."""

    def __init__(self, sparsifier: Sparsifier, session: _native.Session, device: CpuDevice) -> None:
        self.sparsifier = sparsifier
        self.progress = Progress()
        self._loss_scale: float | None = None  # set if a LossScaler may discard steps
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
        """Makes the native sparsifier of a bucket's gradients."""
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
        """Returns the options of the native reduce() for the current step."""
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

    # ---- Momentum correction

    @property
    def corrects_momentum(self) -> bool:
        return self._momentum.is_taken

    def take_momentum(self, wrapped: Iterable[Wrapped], parameters: Sequence[Synchronized]) -> None:
        """Moves the momentum of these parameters out of the wrapped optimizers if the sparsifier corrects momentum.

        Call it before any bucket exists. Raises InputError like CorrectedMomentum.take().
        """
        if self.sparsifier.corrects_momentum:
            self._momentum.take(self.sparsifier, list(wrapped), parameters)

    # ---- Saved state

    def state(self, buckets: Iterable[Bucket], parameters: Sequence[Synchronized], of_mean: bool) -> SparsifierState:
        """Returns this worker's state. Call it between steps after all results were taken, or once the session is over."""
        owed = dict(self._kept.waiting)
        for each in buckets:
            if isinstance(each, SparsifiedBucket):
                each.give_back_lost()
                owed.update(each.state())
        named = {parameters[index].name: each for index, each in owed.items()}
        norms = self._kept.norms  # loaded norms that no step has used yet
        if norms is None and self._norms:
            norms = self._norms.summed()
        return SparsifierState(self.progress.step, self._session.rank, self._session.size, of_mean, named, norms)

    def load(
        self, state: SparsifierState, buckets: Iterable[Bucket], parameters: Sequence[Synchronized], of_mean: bool
    ) -> None:
        """Loads a saved state between steps.

        Raises InputError, before it changes anything, for the state of another worker or of another model.
        """
        if (state.rank, state.workers) != (self._session.rank, self._session.size):
            raise _native.InputError(
                f"the sparsifier's state was saved by worker {state.rank} of {state.workers}, and this is worker {self._session.rank} of "
                f"{self._session.size}: load each worker's own state; for another number of workers use resharded()"
            )
        if state.of_mean != of_mean:
            saved, now = ("mean", "sum") if state.of_mean else ("sum", "mean")
            raise _native.InputError(f"the sparsifier's state was saved with gradient='{saved}', and the module has gradient='{now}'")
        by_name = {each.name: each for each in parameters}
        loaded: dict[int, Owed] = {}
        for name, owed in state.owed.items():
            if name not in by_name or not self.sparsifier.takes(name, by_name[name].parameter):
                raise _native.InputError(f"the state has a residual of parameter '{name}', which this model's sparsifier does not take")
            parameter = by_name[name].parameter
            residual, velocity = owed
            if residual.numel() != parameter.numel():  # SparsifierState.of() compared the velocity with the residual
                raise _native.InputError(
                    f"parameter '{name}' has {parameter.numel()} elements, and its saved residual {residual.numel()}: this is the state "
                    "of another model"
                )
            if self._buckets:  # unknown before there are buckets
                self.expect_velocity(name, owed)
            loaded[by_name[name].index] = (
                residual.to(parameter.device).contiguous(),
                None if velocity is None else velocity.to(parameter.device).contiguous(),
            )
        for each in (member for bucket in self._buckets for member in bucket.planned.members):
            if state.owed and each.index not in loaded:
                raise _native.InputError(f"the state lacks the residual of parameter '{each.name}': this is the state of another model")
            if not state.owed:  # saved before the first step
                zeros = torch.zeros(each.parameter.numel(), device=each.parameter.device)
                loaded[each.index] = (zeros, zeros if self.corrects_momentum else None)
        self.progress.step = state.step
        self._kept.norms = state.norms
        self._kept.waiting = loaded
        self.take_over(buckets)

    def expect_velocity(self, name: str, owed: Owed) -> None:
        """Raises InputError if a velocity was saved but is not needed now, or the other way round."""
        has_velocity = owed[1] is not None
        if has_velocity != self.corrects_momentum:
            before, now = ("with", "off") if has_velocity else ("without", "on")
            raise _native.InputError(
                f"parameter '{name}' was saved {before} momentum correction, which is {now} now: call wrap_optimizer() and set momentum "
                "as in the run that saved the state"
            )

    def take_over(self, buckets: Iterable[Bucket]) -> None:
        """Gives each bucket the kept state of its parameters."""
        for each in buckets:
            if isinstance(each, SparsifiedBucket):
                each.set_state(self._kept.waiting)
                for member in each.planned.members:
                    self._kept.waiting.pop(member.index, None)

    def keep(self, bucket: Bucket) -> None:
        """Keeps the state of a bucket that is about to be released."""
        if isinstance(bucket, SparsifiedBucket):
            self._kept.waiting.update(bucket.state())
            if self._loss_scale is not None:
                bucket.give_back()
                self._kept.before.update(bucket.state())

    # ---- Chunks: all workers select them by the norms of the step before

    def watch(self, buckets: Iterable[Bucket]) -> list[int]:
        """Takes over the new buckets, between steps. Returns the numbers of further buckets, which follow the gradients."""
        own = self._buckets = [each for each in buckets if isinstance(each, SparsifiedBucket)]
        if self._norms:
            self._norms.release()
            self._norms = None
        self.take_over(own)
        if self._kept.waiting:
            name = next(iter(self._kept.waiting))
            raise _native.InputError(f"parameter number {name} has a residual, but its gradient is no longer sparsified")
        if own and self._counts is None:
            self._counts = StepCounts(self._session, self._device, own)
        if isinstance(self.sparsifier, CoarseGrained) and own:
            self._norms = _Norms(self._session, self._device, own)
        return [each.number for each in (self._counts, self._norms) if each]

    def begin_step(self, scale: float | None) -> None:
        """Prepares a step, before its first gradients are sent. scale: the loss scale, if there is a LossScaler."""
        self._loss_scale = scale
        self._kept.before.clear()
        if self._norms:
            known, self._kept.norms = self._kept.norms, None
            self._norms.choose(self.sparsifier.share_of(self.progress.step), known)

    def end_step(self) -> int:
        """Ends a step after all its gradients were submitted. Waits until the elements to send are selected.

        Returns the number of non-finite values on all workers. If it is not 0, the caller must not use the step.
        """
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
            self.progress.step += 1  # discard_step() undoes this
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
        """Undoes a step after end_step(): the buckets were dropped, and sent elements return to the residuals."""
        for each in self._buckets:
            each.set_state(self._kept.before)
        self.progress.step -= 1
        self.progress.skipped += 1


class SparsifiedBucket(Bucket):
    """A bucket of dense gradients. The sparsifier selects the part that is sent."""

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
        self._given: Sequence[Submitted] = ()  # gradients of the current step
        self._may_give_back = False  # the elements sent in the last step can still return to the residuals
        self._unused_before: dict[int, Owed] = {}  # state before the step, of parameters without a gradient here
        self._kept: dict[int, Owed] = {}  # the part of it that stays, whatever the step sent
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
        self.set_state({index: _zeros_like(self._unused_before[index]) for index in frozen})  # frozen parameters send nothing
        self._given = given
        self._kept = {index: self._unused_before[index] for index in frozen}
        if self._sparsifying.corrects_momentum:  # velocities decay here too: other workers may have gradients
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
        """Restores the residuals from before the step, for frozen parameters and for those that no worker used."""
        self._unused = {each.index for each in self.planned.members if each.index in unused}
        kept = {*self._unused, *self._frozen()}
        self._kept = {index: owed for index, owed in self._unused_before.items() if index in kept}
        self.set_state(self._kept)

    def _views(self) -> list[Any]:
        """Returns views of the gradients. They are made for each use, because a DLPack capsule can be consumed only once."""
        return [handed_over(each, self._device) for each in self._given]

    def give_back(self) -> None:
        """Returns the elements sent in the last step to the residuals."""
        if self._may_give_back:
            self.native.give_back()
            self.set_state(self._kept)
            self._may_give_back = False

    def give_back_lost(self) -> None:
        """Returns sent elements to the residuals if the session ended before the step's results arrived."""
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

    # ---- Residuals and velocities

    def state(self) -> dict[int, Owed]:
        """Returns copies of residuals and velocities, by the parameters' indices. They are independent of the loss scale."""
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
    """The norms of all chunks of some buckets. They are exchanged after the step, under the next forward pass."""

    def __init__(self, session: _native.Session, device: CpuDevice, buckets: Sequence[SparsifiedBucket]) -> None:
        ends = list(itertools.accumulate(each.native.chunks for each in buckets))
        self._ranges = list(zip(buckets, [0, *ends], ends, strict=False))  # index range of each bucket's chunks
        self._chunks = ends[-1]
        self._device = device
        self._sums = ScalarAllReduce(session, device, "(norms of chunks)", self._chunks, buckets[0].planned.device)
        self.number = self._sums.number
        self.release = self._sums.release
        self._is_chosen = True  # the last sums were already used
        self._chosen_by: torch.Tensor | None = None

    def submit(self) -> None:
        """Sends the norms. Call it once per step, after all buckets."""
        for each, begin, end in self._ranges:
            each.native.write_norms(self._sums.view(begin, end), self._device.stream())
            self._sums.own[begin:end].div_(each.native.scale)  # makes the norms independent of the loss scale
        self._sums.submit()
        self._is_chosen = False

    def forget(self) -> None:
        """Drops the norms of the last step: the next step uses the same chunks as the last one."""
        self._is_chosen = True

    def summed(self) -> torch.Tensor | None:
        """Returns the norms that select the next step's chunks; None before the first step.

        If the session ended before the sums of the last step arrived, they are the norms of the step before.
        """
        if self._is_chosen:
            return self._chosen_by
        try:
            return self._sums.sums()
        except _native.Error:
            return self._chosen_by

    def choose(self, share: float, known: torch.Tensor | None) -> None:
        """Selects each bucket's chunks for the next step. known: norms to use instead of the last sums."""
        if known is None and self._is_chosen:
            return
        self._is_chosen = True
        try:
            norms = self._sums.sums() if known is None else known
        except OF_ONE_STEP:  # raised on all workers, which keep the chunks
            return
        self._chosen_by = norms
        if norms is None or len(norms) != self._chunks:  # the buckets changed: send all chunks once
            return
        chosen = _native.largest_chunks(norms.tolist(), _native.count_of_share(share, self._chunks))
        for each, begin, end in self._ranges:
            each.native.choose([chunk - begin for chunk in chosen if begin <= chunk < end])
