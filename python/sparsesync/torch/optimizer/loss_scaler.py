"""Loss scaling for f16: small gradients do not underflow, and all workers skip a step whose gradients overflow."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch.distributed import DistributedDataParallel

_LARGEST = 2.0**24


@dataclasses.dataclass(frozen=True)
class ScalePolicy:
    """The rules by which the scale changes; the arguments of LossScaler."""

    dynamic: bool
    growth_factor: float
    backoff_factor: float
    growth_interval: int


class LossScaler:
    """Scales losses, in place of ``torch.amp.GradScaler``, whose methods it has.

    Gradients are checked after they are summed over workers. All workers skip a step, or none does. From the second
    step on, ``step()`` checks them before gradients that a schedule gathers under the next forward pass have arrived,
    as ``clip_grad_norm_()`` does, and unscales each on arrival. Residuals of a sparsifier follow the scale.
    A skipped step returns the sent elements to them.

    All ranks must create it and call its methods in the same order.

    Args:
        ddp: The wrapped module.
        scale: Initial loss scale. A power of two changes no bit of values that do not underflow.
        dynamic: Adapt the scale: multiply it by ``backoff_factor`` after a skipped step, and by ``growth_factor`` after
            ``growth_interval`` good steps in a row. The scale does not grow beyond 2**24.
        growth_factor: More than 1.
        backoff_factor: Between 0 and 1.
        growth_interval: Number of steps, at least 1.

    Attributes:
        skipped_steps: Number of steps that were skipped so far.

    Raises:
        InputError: An argument is out of range.
        AgreementError: Workers passed different arguments.
        OrderError: The module already has a scaler.

    Example:
        >>> import sparsesync.torch
        >>> import torch
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with sparsesync.torch.DistributedDataParallel(model) as ddp:
        ...     scaler = sparsesync.torch.LossScaler(ddp, scale=1024.0)
        ...     loss = ddp(torch.ones(8, 4)).sum()
        ...     scaler.scale(loss).backward()
        ...     scaler.step(optimizer)
        ...     scaler.update()
        >>> scaler.get_scale(), scaler.skipped_steps
        (1024.0, 0)
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        *,
        scale: float = 2.0**16,
        dynamic: bool = True,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        if not (scale > 0 and math.isfinite(scale)):
            raise _native.InputError(f"scale {scale}: more than 0, and finite")
        if not (growth_factor > 1 and 0 < backoff_factor < 1 and growth_interval >= 1):
            raise _native.InputError("growth_factor: more than 1; backoff_factor: between 0 and 1; growth_interval: 1 step or more")
        self._synchronizer = ddp.synchronizer
        self._scale = float(scale)
        self._policy = ScalePolicy(dynamic, growth_factor, backoff_factor, growth_interval)
        self._good_steps = 0  # since the scale changed
        self._is_good: bool | None = None  # whether the current step is finite; None: not checked yet
        self._is_unscaled = False
        # Since update(): whether gradients were checked, and whether an earlier step was skipped.
        self._was_asked = False
        self._was_skipped = False
        self.skipped_steps = 0
        stated = {"scale": self._scale, **dataclasses.asdict(self._policy)}
        self._synchronizer.session.agree("the LossScaler", [(name, repr(value)) for name, value in stated.items()])
        self._synchronizer.scaled(self)

    def get_scale(self) -> float:
        """Returns the current loss scale."""
        return self._scale

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss times the current scale; call ``backward()`` on the result.

        Args:
            loss: The loss, of any shape and floating-point dtype.
        """
        return loss * self._scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides all gradients by the scale, for example to clip them before ``step()``.

        The first call unscales the gradients of all optimizers. Gradients of parameters with master weights stay scaled
        until their optimizer reads them. Waits until the check for infinite and NaN gradients is done. All ranks must
        call it in the same order.

        Args:
            optimizer: An optimizer of the module's parameters.

        Raises:
            InputError: The optimizer has parameters of another module, or f16 parameters without master weights.
        """
        self._check(optimizer)
        if self._good() and not self._is_unscaled:
            self._is_unscaled = True
            self._synchronizer.gradient_ops.unscale(1 / self._scale)

    def step(self, optimizer: torch.optim.Optimizer) -> Any:
        """Calls ``optimizer.step()``, unless the step is skipped. All ranks must call it in the same order.

        Args:
            optimizer: An optimizer of the module's parameters.

        Returns:
            The result of ``optimizer.step()``, or None if the step is skipped.

        Raises:
            InputError: As ``unscale_()``.
        """
        self.unscale_(optimizer)
        return optimizer.step() if self._good() else None

    def update(self) -> None:
        """Adapts the scale. Call it once per step, after ``step()`` of all optimizers, on all ranks.

        Raises:
            OrderError: There was no ``step()`` since the last call.
        """
        if not self._was_asked:
            raise _native.OrderError("LossScaler.update(): call the scaler's step() first")
        if not self._policy.dynamic:
            pass
        elif self._is_good is False or self._was_skipped:
            self._scale *= self._policy.backoff_factor
            self._good_steps = 0
        else:
            self._good_steps += 1
            if self._good_steps >= self._policy.growth_interval:
                self._scale = max(self._scale, min(self._scale * self._policy.growth_factor, _LARGEST))
                self._good_steps = 0
        self._is_good, self._is_unscaled = None, False
        self._was_asked = self._was_skipped = False

    def begin_step(self) -> None:
        """Forgets the result of the last check, before the first gradients of a step are sent.

        The wrapper calls it. A skipped step still counts until ``update()``.
        """
        self._was_skipped = self._was_skipped or self._is_good is False
        self._is_good, self._is_unscaled = None, False

    def state_dict(self) -> dict[str, Any]:
        """Returns the scale, the number of good steps since it changed, and the number of skipped steps."""
        return {"scale": self._scale, "good_steps": self._good_steps, "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a state. Call it between steps, with the same state on all ranks.

        Args:
            state: A result of ``state_dict()``.

        Raises:
            InputError: The state is damaged or incomplete. Nothing was changed.
        """
        for name in ("scale", "good_steps", "skipped_steps"):
            value: Any = state.get(name)
            is_number = isinstance(value, int | float) and math.isfinite(value)
            if not is_number or value < 0 or (value == 0 if name == "scale" else value != int(value)):
                raise _native.InputError(f"the state of a LossScaler: '{name}' is {value!r}")
        self._scale, self._good_steps = float(state["scale"]), int(state["good_steps"])
        self.skipped_steps = int(state["skipped_steps"])
        self._was_asked = self._was_skipped = False

    def _good(self) -> bool:
        """Returns whether the gradients of the step are finite. If not, they are dropped on all workers."""
        self._was_asked = True
        if self._is_good is None:
            self._is_good = self._synchronizer.keep_finite()
            self.skipped_steps += not self._is_good
        return self._is_good

    def _check(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for held in group["params"]:
                problem = self._synchronizer.gradient_ops.cannot_unscale(held)
                if problem:
                    raise _native.InputError(f"LossScaler: {problem}")
