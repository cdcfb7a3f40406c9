"""Gradient operations between backward and the optimizer's step: norm, finite check, clipping and scaling.

If the schedule allows it, they run before gradients that are still in transit have arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from sparsesync.torch.gradients import Synchronized
from sparsesync.torch.schedule.pending_results import PendingResults
from sparsesync.torch.schedule.schedule import Schedule
from sparsesync.torch.sparsify.sparsifier_runtime import Wrapped

_EPSILON = 1e-6  # the value in torch.nn.utils.clip_grad_norm_


class Scaler(Protocol):
    """Scales losses, and has steps skipped whose gradients overflow."""

    skipped_steps: int

    def get_scale(self) -> float: ...

    def begin_step(self) -> None: ...


class GradientOps:
    """Gradient operations of a module. All workers must call them in the same order."""

    def __init__(
        self,
        named: Sequence[Synchronized],
        results: PendingResults,
    ) -> None:
        self._names = {id(member.parameter): member.name for member in named}
        self._parameters = [member.parameter for member in named]
        self._results = results
        self.wrapped: list[Wrapped] = []  # optimizers with deferred steps
        self.scaler: Scaler | None = None
        self.is_left_out = False  # the last step was refused, or the sparsifier found non-finite values
        self.unscaled_by = 1.0  # pending factor for gradients of parameters with master weights
        self._clipped_by: torch.Tensor | float = 1.0  # factor applied to all gradients of the step since they were sent

    def begin_step(self) -> float | None:
        """Resets the factors before the first gradients of a step are sent. Returns the loss scale, or None without a LossScaler."""
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
        """Returns whether the summed gradients are finite on all workers. schedule: provides their norm while they are in transit."""
        total = self._norm_of_crossing(schedule)
        if total is not None:
            return bool(torch.isfinite(total))
        told = [torch.isfinite(values_of(each)).all() for each in self._gradients()]
        return all(bool(each) for each in told)

    def cannot_unscale(self, held: torch.nn.Parameter) -> str:
        """Returns the reason why a parameter of an optimizer cannot be unscaled; empty if it can."""
        if any(each.parameter_of(held) is not held for each in self.wrapped):
            return ""
        name = self._names.get(id(held))
        if name is None:
            return f"the optimizer has a parameter, {list(held.shape)}, that is not one of the module's"
        if held.dtype is torch.float16:
            return f"parameter '{name}' is f16, where small gradients become 0 once unscaled: pass master_weights=True to wrap_optimizer()"
        return ""

    def unscale(self, factor: float) -> None:
        """Multiplies all gradients by a factor.

        Gradients of parameters with master weights are multiplied when the optimizer reads them.
        """

        def multiply(parameters: Sequence[torch.nn.Parameter]) -> None:
            for each in parameters:
                if each.grad is not None and not self._has_master(each):
                    each.grad.mul_(factor)

        self.unscaled_by *= factor
        self._results.once_there(self._parameters, multiply)

    def clip(self, most: float, norm_type: float, error_if_nonfinite: bool, schedule: Schedule | None) -> torch.Tensor:
        """Scales all gradients so that their norm is at most ``most``. Returns the norm from before. schedule: as for are_finite()."""
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
        """Returns the norm of all gradients while they are in transit.

        If it is not available, waits for all gradients and returns None. From the next step on the norm is then
        collected, if the schedule gathers under the forward pass.
        """
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
        """Yields all gradients, as the optimizers will see them."""
        for each in self._parameters:
            if each.grad is not None:
                yield each.grad.float() * self.unscaled_by if self._has_master(each) else each.grad


def norm_of(gradients: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor:
    """Returns the norm of all gradients together, sparse ones included. Gradients without elements count as zeros."""
    values = [each for each in map(values_of, gradients) if each.numel() > 0]
    if not values:
        return torch.tensor(0.0)
    # In f16 the norm could overflow although every gradient is finite.
    norms = [torch.linalg.vector_norm(each, norm_type, dtype=wide(each.dtype)) for each in values]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack([each.to(norms[0]) for each in norms]), norm_type)
    return norm


def scale(gradients: Iterable[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiplies gradients by a factor, in place."""
    for each in gradients:
        values = values_of(each)
        values.mul_(factor.to(values))


def factor_of(most: float, norm: torch.Tensor) -> torch.Tensor:
    """Returns the factor that scales gradients of this norm down to a norm of at most ``most``."""
    return torch.clamp(most / (norm + _EPSILON), max=1.0)


def values_of(gradient: torch.Tensor) -> Any:
    """Returns the elements of a dense gradient, or the stored values of a sparse one."""
    return gradient._values() if gradient.is_sparse else gradient.detach()


def wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype that norms of a gradient are computed in: f32 or wider."""
    return torch.promote_types(dtype, torch.float32)
