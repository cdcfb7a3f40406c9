"""A bucket: parameters that cross together, where their step stands, and what they took."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.gradients import Kind, Result, Submitted, counts_changes, handed_over, submitted, wait_for_step, write_back
from sparsesync.torch.schedule.bucketing import Options, Planned


@dataclasses.dataclass
class MemberUse:
    """Which members of a bucket have gradients in the step."""

    here: list[bool]
    all_here: torch.Tensor  # what a bucket of dense gradients sends of them where all have some
    # Says whether any worker used parameters, by their indices, where rows of gradients are sent. None: once results are written,
    # `undecided` lists the members that the rows of the result say nothing of.
    ask: Callable[[Sequence[int]], Sequence[bool]] | None = None
    anywhere: Sequence[bool] | None = None  # what `ask` said of the step
    undecided: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Totals:
    """What a bucket took so far."""

    steps: int = 0
    waited_s: float = 0.0  # that the program stood still for it
    non_finite: int = 0


class Bucket:
    """Registered at a session, by all workers between the same steps.

    Raises AgreementError where workers differ; what Session.register_bucket raises.
    """

    def __init__(
        self,
        session: _native.Session,
        device: CpuDevice,
        planned: Planned,
        options: Options,
        dense_scheme: str,
        announces: bool,
    ) -> None:
        self.planned = planned
        self.announces = announces
        dtype = planned.members[0].parameter.dtype.to_real()
        ones = torch.ones(len(planned.members), dtype=dtype, device=planned.device)
        self.use = MemberUse([True] * len(planned.members), ones)
        self._session = session
        self._device = device
        self._versions: list[tuple[torch.Tensor, int] | None] = []  # of gradients, as they were submitted
        self._tickets: tuple[_native.Ticket, _native.Ticket] | None = None  # of reduce and gather
        self._totals = Totals()
        self._scheme_option = options.scheme
        tensors, scheme, wire = self._crossing(options, dense_scheme)
        self._scheme = scheme
        with self._naming():
            self.number = session.register_bucket(
                planned.name(),
                tensors,
                scheme,
                options.gradient,
                wire,
                announces,
            )

    def _crossing(self, options: Options, dense_scheme: str) -> tuple[list[_native.TensorSpec], str, str | None]:
        """What it is registered with: tensors, their scheme, and the type that their values cross as."""
        tensors = [each.spec(self.planned.kind) for each in self.planned.members]
        dtype = tensors[0].dtype
        wire = options.wire if dtype in ("f32", "f64") else None
        scheme = options.scheme
        if self.planned.kind is Kind.DENSE:
            if not scheme.startswith("dense_"):
                scheme = dense_scheme if wire in (None, dtype) else "dense_ring"  # a network's own sums are as wide as ever
            # Of a width that the others have not, a row space of its own: what it says is no part of a norm. But the network
            # would sum that by itself.
            alone = scheme != "dense_native"
            rows, width = (1, 1 + len(tensors)) if alone else (len(tensors), 1)
            self.use.all_here = self.use.all_here.new_ones(rows, width)
            tensors.append(_native.TensorSpec("(which of them are used)", rows, width, dtype))
        return tensors, scheme, wire

    @property
    def gradient_tensors(self) -> int:
        """How many of its first tensors are gradients."""
        return len(self.planned.members)

    @property
    def submitted(self) -> bool:
        """Whether a step of it is under way."""
        return self._tickets is not None

    def submit(self, streams: Iterable[int] = (), copies: Mapping[int, torch.Tensor] = types.MappingProxyType({})) -> list[Submitted]:
        """Starts the step with the gradients that its parameters have; returns them as they cross.

        streams: that wrote them, beside the one that torch works in. copies: gradients of parameters, by index, in the place of those
        that the parameters have by now."""
        kind, members = self.planned.kind, self.planned.members
        gradients = [copies.get(member.index, member.parameter.grad) for member in members]
        given = [submitted(gradient, kind) for gradient in gradients]
        self._versions = [(held, held._version) if held is not None and counts_changes(held) else None for held in gradients]
        self.use.here = [gradient is not None for gradient in given]
        with torch.profiler.record_function(f"sparsesync::submit {self.planned.name()}"), self._naming():
            reduced = self._start(given, sorted({*streams, self._device.stream()}))
            self._tickets = (reduced, self._session.gather(self.number))
        return given

    def _start(self, given: Sequence[Submitted], streams: Sequence[int]) -> _native.Ticket:
        """The reduce of a step."""
        crossing = [handed_over(gradient, self._device) for gradient in given]
        if self.planned.kind is Kind.DENSE:
            crossing.append(handed_over(self._flags(), self._device))
        return self._session.reduce(self.number, crossing, streams)

    def _flags(self) -> torch.Tensor:
        """Which parameters are used here. Made on the device: a copy from the host would wait for it."""
        if all(self.use.here):
            return self.use.all_here
        flags = self.use.all_here.clone()
        of_members = flags.view(-1)
        for place, used in enumerate(self.use.here):
            if not used:
                of_members[place].zero_()
        return flags

    def keep_squares(self, place: torch.Tensor) -> None:
        """Between steps: from now on this worker's squares are added up there, once sums are made."""
        if self._scheme != "dense_native":
            self._session.keep_squares(self.number, self.gradient_tensors, self._device.view(place))

    def has_squares(self) -> bool:
        """Whether they are there of the last step, which may be waited for. The same on all workers."""
        if self._tickets is not None:
            with self._naming():
                self._session.wait(self._tickets[0])
        return self._session.has_squares(self.number)

    def wait(self) -> None:
        """Waits for the step. Raises what it ended with: refusals, which all workers know of, are raised here alone. What a signal's
        handler raises ends the wait, which may be repeated."""
        self._wait()
        if self.use.ask is not None:
            # Also where all are used here: what is waited for decides whether the step counts, and is the same on all workers.
            self.use.anywhere = self.use.ask([member.index for member in self.planned.members])

    def finish(self, scale: float = 1.0) -> None:
        """Makes the result of the step that was waited for, times `scale`, the gradients of the parameters."""
        self._expect_unchanged()
        with torch.profiler.record_function(f"sparsesync::write {self.planned.name()}"), torch.no_grad():
            self._write(scale)
        self._totals.non_finite += self._session.non_finite(self.number)

    def drop(self, stays_owed: bool) -> None:
        """Waits, if results are not taken yet, and leaves the parameters without gradients: the step is skipped.

        stays_owed: what a sparsifier has sent is owed; else not even its gradients are, and results must not be taken."""
        try:
            self._wait()
        finally:
            self.use.undecided = []
            for member in self.planned.members:
                member.parameter.grad = None

    def _wait(self) -> None:
        if self._tickets is None:
            return  # it was waited for
        began = time.perf_counter()
        with torch.profiler.record_function(f"sparsesync::wait {self.planned.name()}"), self._naming():
            try:
                wait_for_step(self._session, self._tickets)
            except _native.Error:
                self._tickets = None
                raise
        self._tickets = None
        self._totals.waited_s += time.perf_counter() - began
        self._totals.steps += 1

    def _expect_unchanged(self) -> None:
        """Raises OrderError naming a parameter whose gradient the program changed once it was submitted: it is not known what of the
        change was sent."""
        versions, self._versions = self._versions, []  # looked at once: results that are written change gradients, too
        for member, held in zip(self.planned.members, versions, strict=False):
            if held is not None and held[0]._version != held[1]:
                raise _native.OrderError(
                    f"parameter '{member.name}': its gradient was changed in place while workers exchanged it, such as by a hook of "
                    "another parameter: change it in a hook of its own, or after backward()"
                )

    def _write(self, scale: float) -> None:
        used = self._used_by_any()
        self.use.undecided = [place for place, is_used in enumerate(used) if is_used is None]
        for place, is_used in enumerate(used):
            if is_used:  # else the gradient stays as it is
                self.write_result(place, scale)

    def write_result(self, place: int, scale: float) -> None:
        """Makes the result times `scale` the gradient of one member."""
        member = self.planned.members[place]
        write_back(Result(self._session, self.number, place, self._device), member, self.planned.kind)
        if scale != 1 and member.parameter.grad is not None:
            member.parameter.grad.mul_(scale)

    def _used_by_any(self) -> Sequence[bool | None]:
        """Returns whether some worker used each member; None where the result does not say. A result with rows is of a parameter that
        was used. One without rows is of a parameter that was not used, or whose gradients were zero."""
        if self.planned.kind is Kind.DENSE:
            return self.use.here if all(self.use.here) else self._flags_of_any()
        if self.use.anywhere is None:
            return [True if self._session.result_rows(self.number, place) else None for place in range(len(self.use.here))]
        return self.use.anywhere

    def _flags_of_any(self) -> list[bool]:
        flags = self._session.result(self.number, len(self.use.here))
        assert not isinstance(flags, tuple)
        return [bool(flag) for flag in flags.reshape(-1)[: len(self.use.here)]]

    def release(self) -> None:
        """Between steps, all workers: gives up what it has at the session. Its results were taken."""
        self._session.release_bucket(self.number)

    def statistics(self) -> dict[str, Any]:
        """What each of its parameters is told of; bytes and seconds are the bucket's."""
        use = self._session.use(self.number)
        choice = self._session.choice(self.number)
        return {
            "bucket": self.planned.name(),
            "gradient": str(self.planned.kind),
            "scheme": choice["scheme"],
            "why": self._reason(choice),
            "announced": self.announces,
            "steps": self._totals.steps,
            "bytes_sent": use["bytes_sent"],
            "bytes_received": use["bytes_received"],
            "index_bytes_sent": use["index_bytes_sent"],
            "seconds": use["seconds"],
            "seconds_exposed": self._totals.waited_s,
            "non_finite": self._totals.non_finite,
        }

    def _reason(self, choice: dict[str, Any]) -> str:
        if self.planned.kind is Kind.DENSE:
            return "at least half of its rows are not zero, or it is small"
        if self._scheme_option != "auto":
            return "given"
        expected: dict[str, float] = {}
        for candidate in choice["expected"]:  # best first; a scheme may stand there in several ways
            expected.setdefault(candidate["scheme"], candidate["seconds"])
        if not expected:
            return "auto has not chosen yet"
        listed = ", ".join(f"{name} {seconds * 1e3:.3g} ms" for name, seconds in list(expected.items())[:3])
        return f"{'expected to be the fastest' if choice['settled'] else 'on trial'}: {listed}"

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """Errors within name the parameters that they are about."""
        try:
            yield
        except _native.Error as error:
            names = ", ".join(member.name for member in self.planned.members[:4])
            more = f" and {len(self.planned.members) - 4} more" if len(self.planned.members) > 4 else ""
            error.args = (f"{error} (while synchronizing {names}{more})", *error.args[1:])
            raise
