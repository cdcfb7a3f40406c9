"""What is done with gradients between backward and the optimizer's step, before those that still cross are there where that can be:
their norm, whether they are finite, and what they are multiplied by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from sparsesync.torch.gradients import Synchronized
from sparsesync.torch.schedule.pending_results import PendingResults
from sparsesync.torch.schedule.schedule import Schedule
from sparsesync.torch.sparsify.sparsifier_runtime import Wrapped

_EPSILON = 1e-6  # as torch's own has it


class Scaler(Protocol):
    """Scales losses, and has steps skipped that overflow."""

    skipped_steps: int

    def get_scale(self) -> float: ...

    def begin_step(self) -> None: ...


class GradientOps:
    """All workers ask alike."""

    def __init__(
        self,
        named: Sequence[Synchronized],
        results: PendingResults,
    ) -> None:
        self._names = {id(member.parameter): member.name for member in named}
        self._parameters = [member.parameter for member in named]
        self._results = results
        self.wrapped: list[Wrapped] = []  # optimizers that wait for each gradient apart
        self.scaler: Scaler | None = None
        self.is_left_out = False  # the last step: refused, or the sparsifier found what is not finite
        self.unscaled_by = 1.0  # what gradients of parameters with master weights are still to be multiplied by
        self._clipped_by: torch.Tensor | float = 1.0  # what all gradients of the step are multiplied by since they crossed

    def begin_step(self) -> float | None:
        """Before the first gradients of a step cross. Returns what the loss is multiplied by, where there is a LossScaler."""
        self.is_left_out = False
        self.unscaled_by = 1.0
        self._clipped_by = 1.0
        if self.scaler is None:
            return None
        self.scaler.begin_step()
        return self.scaler.get_scale()

    def statistics(self) -> dict[str, Any]:
        return {"loss_scale": self.scaler.get_scale(), "skipped_steps": self.scaler.skipped_steps} if self.scaler else {}

    def are_finite(self, schedule: Schedule | None) -> bool:
        """Whether all gradients of all workers are, as they are summed. schedule: that may know their norm while they cross."""
        total = self._norm_of_crossing(schedule)
        if total is not None:
            return bool(torch.isfinite(total))
        told = [torch.isfinite(values_of(each)).all() for each in self._gradients()]
        return all(bool(each) for each in told)

    def cannot_unscale(self, held: torch.nn.Parameter) -> str:
        """What speaks against it of what an optimizer holds; empty if nothing does."""
        if any(each.parameter_of(held) is not held for each in self.wrapped):
            return ""
        name = self._names.get(id(held))
        if name is None:
            return f"the optimizer has a parameter, {list(held.shape)}, that is not one of the module's"
        if held.dtype is torch.float16:
            return f"parameter '{name}' is f16, and what is small becomes 0 once it is unscaled: wrap_optimizer(..., master_weights=True)"
        return ""

    def unscale(self, factor: float) -> None:
        """Multiplies all gradients; those of parameters with master weights as these take them."""

        def multiply(parameters: Sequence[torch.nn.Parameter]) -> None:
            for each in parameters:
                if each.grad is not None and not self._has_master(each):
                    each.grad.mul_(factor)

        self.unscaled_by *= factor
        self._results.once_there(self._parameters, multiply)

    def clip(self, most: float, norm_type: float, error_if_nonfinite: bool, schedule: Schedule | None) -> torch.Tensor:
        """Makes the norm of all gradients `most` at most. Returns the norm that they had. schedule: as for are_finite()."""
        total = self._norm_of_crossing(schedule) if norm_type == 2 else None
        if total is None:
            self._results.take_all()
            total = norm_of(list(self._gradients()), norm_type)
        else:
            total = total * self.unscaled_by * self._clipped_by
        first = self._parameters[0]
        norm = total.to(device=first.device, dtype=wide(first.dtype).to_real())
        if error_if_nonfinite and not torch.isfinite(norm):
            raise RuntimeError(f"the norm of order {norm_type} of the gradients is {float(norm)}: they cannot be clipped")
        factor = factor_of(most, norm)

        def clip(parameters: Sequence[torch.nn.Parameter]) -> None:
            scale([each.grad for each in parameters if each.grad is not None], factor)

        self._results.once_there(self._parameters, clip)
        self._clipped_by = self._clipped_by * factor
        return norm

    def _has_master(self, parameter: torch.nn.Parameter) -> bool:
        return any(each.has_master(parameter) for each in self.wrapped)

    def _norm_of_crossing(self, schedule: Schedule | None) -> torch.Tensor | None:
        """Of all gradients, as they cross. If it cannot be told, all of them are there: from the next step on it can, where that is
        worth it."""
        early = schedule if schedule and schedule.under_forward else None
        total = None
        if early and self._results.are_unchanged(self._parameters):
            total = early.norm()
        if total is None:
            self._results.take_all()
            if early:
                early.watch_norm()
                self._results.watch()
        return total

    def _gradients(self) -> Iterable[torch.Tensor]:
        """All gradients, as optimizers will have them."""
        for each in self._parameters:
            if each.grad is not None:
                yield each.grad.float() * self.unscaled_by if self._has_master(each) else each.grad


def norm_of(gradients: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor:
    """Returns the norm of all gradients together, sparse ones too. Gradients without elements count as zeros."""
    values = [each for each in map(values_of, gradients) if each.numel() > 0]
    if not values:
        return torch.tensor(0.0)
    # In f16 a norm would overflow where none of the gradients does.
    norms = [torch.linalg.vector_norm(each, norm_type, dtype=wide(each.dtype)) for each in values]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack([each.to(norms[0]) for each in norms]), norm_type)
    return norm


def scale(gradients: Iterable[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiplies gradients by a factor, in place."""
    for each in gradients:
        values = values_of(each)
        values.mul_(factor.to(values))


def factor_of(most: float, norm: torch.Tensor) -> torch.Tensor:
    """Returns the factor that makes gradients of this norm no longer than `most`."""
    return torch.clamp(most / (norm + _EPSILON), max=1.0)


def values_of(gradient: torch.Tensor) -> Any:
    """Its elements, or those that a sparse one has."""
    return gradient._values() if gradient.is_sparse else gradient.detach()


def wide(dtype: torch.dtype) -> torch.dtype:
    """What its norms are told in."""
    return torch.promote_types(dtype, torch.float32)
