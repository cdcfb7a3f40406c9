"""A bucket: parameters whose gradients are sent together, the progress of their step, and its costs."""

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

# Smaller dense gradients use dense_direct instead of dense_ring: it has fewer steps in sequence, but twice the workspace.
_DIRECT_BYTES = 1 << 20


@dataclasses.dataclass
class MemberUse:
    """The members of a bucket that have gradients in the step."""

    here: list[bool]
    all_here: torch.Tensor  # flags that a bucket of dense gradients sends if all members have gradients
    # Returns whether any worker used parameters, by their indices; for gradients that are sent as rows. If None, `undecided` lists the
    # members whose result does not show that, once results are written.
    ask: Callable[[Sequence[int]], Sequence[bool]] | None = None
    anywhere: Sequence[bool] | None = None  # result of `ask` in this step
    undecided: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Totals:
    """Costs of a bucket so far."""

    steps: int = 0
    waited_s: float = 0.0  # seconds that the program waited for the bucket
    non_finite: int = 0


class Bucket:
    """A bucket that is registered with a session. All workers make it between the same steps.

    Raises AgreementError if workers differ, and the errors of Session.register_bucket.
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
        self._versions: list[tuple[torch.Tensor, int] | None] = []  # versions of the submitted gradients
        self._tickets: tuple[_native.Ticket, _native.Ticket] | None = None  # reduce and gather
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
        """Returns the tensors to register, their scheme, and the type of their values in messages."""
        tensors = [each.spec(self.planned.kind) for each in self.planned.members]
        dtype = tensors[0].dtype
        wire = options.wire if dtype in ("f32", "f64") else None
        scheme = options.scheme
        if self.planned.kind is Kind.DENSE:
            if not scheme.startswith("dense_"):
                scheme = dense_scheme if wire in (None, dtype) else "dense_ring"  # dense_native ignores the wire type
                if scheme == "dense_ring" and sum(each.parameter.nbytes for each in self.planned.members) < _DIRECT_BYTES:
                    scheme = "dense_direct"
            # Their width differs from that of the gradients, so the flags get a separate row space and are not part of a norm. The
            # network's all-reduce (dense_native) does not need this.
            alone = scheme != "dense_native"
            rows, width = (1, 1 + len(tensors)) if alone else (len(tensors), 1)
            self.use.all_here = self.use.all_here.new_ones(rows, width)
            tensors.append(_native.TensorSpec("(which of them are used)", rows, width, dtype))
        return tensors, scheme, wire

    @property
    def gradient_tensors(self) -> int:
        """The number of leading tensors that are gradients."""
        return len(self.planned.members)

    @property
    def submitted(self) -> bool:
        """Whether a step of the bucket is running."""
        return self._tickets is not None

    def submit(self, streams: Iterable[int] = (), copies: Mapping[int, torch.Tensor] = types.MappingProxyType({})) -> list[Submitted]:
        """Starts the step with the current gradients of the parameters. Returns the gradients as they are sent.

        streams: streams that wrote them, besides torch's current one. copies: gradients to send instead of the current
        ones, by the index of the parameter.
        """
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
        """Starts the reduce phase of a step."""
        crossing = [handed_over(gradient, self._device) for gradient in given]
        if self.planned.kind is Kind.DENSE:
            crossing.append(handed_over(self._flags(), self._device))
        return self._session.reduce(self.number, crossing, streams)

    def _flags(self) -> torch.Tensor:
        """Returns which parameters have gradients here. The tensor is made on the device, because a copy from the host would block."""
        if all(self.use.here):
            return self.use.all_here
        flags = self.use.all_here.clone()
        of_members = flags.view(-1)
        for place, used in enumerate(self.use.here):
            if not used:
                of_members[place].zero_()
        return flags

    def keep_squares(self, place: torch.Tensor) -> None:
        """Adds this worker's squares to ``place`` once sums are made, from now on. Call it between steps."""
        if self._scheme != "dense_native":
            self._session.keep_squares(self.number, self.gradient_tensors, self._device.view(place))

    def has_squares(self) -> bool:
        """Returns whether the squares of the last step are available, which may wait for it. The result is the same on all workers."""
        if self._tickets is not None:
            with self._naming():
                self._session.wait(self._tickets[0])
        return self._session.has_squares(self.number)

    def wait(self) -> None:
        """Waits for the step, and raises its error. Only here are refusals raised, which all workers know of.

        An exception from a signal handler ends the wait, which may be repeated.
        """
        self._wait()
        if self.use.ask is not None:
            # Asked even if all are used here: every worker must wait for the same results, which decide whether the step counts.
            self.use.anywhere = self.use.ask([member.index for member in self.planned.members])

    def finish(self, scale: float = 1.0) -> None:
        """Writes the result of the step, times ``scale``, to the gradients of the parameters. Call it after wait()."""
        self._expect_unchanged()
        with torch.profiler.record_function(f"sparsesync::write {self.planned.name()}"), torch.no_grad():
            self._write(scale)
        self._totals.non_finite += self._session.non_finite(self.number)

    def drop(self, stays_owed: bool) -> None:
        """Skips the step: waits if results are not taken yet, and leaves the parameters without gradients.

        stays_owed: elements that a sparsifier sent return to its residual. False: even its gradients are dropped, and
        results must not be taken.
        """
        try:
            self._wait()
        finally:
            self.use.undecided = []
            for member in self.planned.members:
                member.parameter.grad = None

    def _wait(self) -> None:
        if self._tickets is None:
            return  # already waited for
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
        """Raises OrderError if the program changed a gradient after it was submitted: part of the change may have been sent."""
        versions, self._versions = self._versions, []  # checked once, because writing results changes gradients, too
        for member, held in zip(self.planned.members, versions, strict=False):
            if held is not None and held[0]._version != held[1]:
                raise _native.OrderError(
                    f"parameter '{member.name}': its gradient was changed in place while workers exchanged it, for example by a hook of "
                    "another parameter: change it in a hook of this parameter, or after backward()"
                )

    def _write(self, scale: float) -> None:
        used = self._used_by_any()
        self.use.undecided = [place for place, is_used in enumerate(used) if is_used is None]
        for place, is_used in enumerate(used):
            if is_used:  # otherwise the gradient stays as it is
                self.write_result(place, scale)

    def write_result(self, place: int, scale: float) -> None:
        """Writes the result, times ``scale``, to the gradient of one member."""
        member = self.planned.members[place]
        write_back(Result(self._session, self.number, place, self._device), member, self.planned.kind)
        if scale != 1 and member.parameter.grad is not None:
            member.parameter.grad.mul_(scale)

    def _used_by_any(self) -> Sequence[bool | None]:
        """Returns whether any worker used each member; None if the result does not show it.

        A parameter whose result has rows was used. If it has none, the parameter was not used, or its gradients were
        zero.
        """
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
        """Releases the bucket at the session. All workers call it between steps, after its results were taken."""
        self._session.release_bucket(self.number)

    def statistics(self) -> dict[str, Any]:
        """Returns the statistics entry of each of its parameters. Bytes and seconds are those of the whole bucket."""
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
        return reason_of(choice)

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """Adds the names of the parameters to errors raised within the context."""
        try:
            yield
        except _native.Error as error:
            names = ", ".join(member.name for member in self.planned.members[:4])
            more = f" and {len(self.planned.members) - 4} more" if len(self.planned.members) > 4 else ""
            error.args = (f"{error} (while synchronizing {names}{more})", *error.args[1:])
            raise


def reason_of(choice: dict[str, Any]) -> str:
    """Returns why ``auto`` uses a scheme. choice: the result of Session.choice()."""
    expected: dict[str, float] = {}
    for candidate in choice["expected"]:  # best first; a scheme may be listed in several variants
        expected.setdefault(candidate["scheme"], candidate["seconds"])
    if not expected:
        return "auto has not chosen yet"
    listed = ", ".join(f"{name} {seconds * 1e3:.3g} ms" for name, seconds in list(expected.items())[:3])
    return f"{'expected to be the fastest' if choice['settled'] else 'on trial'}: {listed}"
