"""A loss that is scaled, so that small gradients of f16 do not become 0; and steps that are skipped by all workers where large ones
overflow."""

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
    """How the scale follows steps; the arguments of LossScaler."""

    dynamic: bool
    growth_factor: float
    backoff_factor: float
    growth_interval: int


class LossScaler:
    """Stands where torch's GradScaler stood, with its methods:

        scaler = sparsesync.torch.LossScaler(ddp)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Gradients of the same step overflow on all workers or on none, as sums over them: all skip the step, or none does. step() looks
    at them before those that a schedule gathers under the next forward pass are there, from the second step on (as
    clip_grad_norm_), and unscales each as it comes. What a sparsifier owes follows the scale; of a step that is skipped it keeps what
    was to cross.

    scale: at the beginning; powers of two change no bit of what does not underflow. dynamic: a step that is skipped multiplies the
    scale by `backoff_factor`, `growth_interval` steps in a row that are not by `growth_factor`; else it stays. Raises
    InputError where one of these has no meaning, OrderError once the module has another scaler.
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
        self._is_good: bool | None = None  # the step under way; nothing before somebody asks
        self._is_unscaled = False
        # Since update(): whether somebody has asked, and whether a step before it was skipped.
        self._was_asked = False
        self._was_skipped = False
        self.skipped_steps = 0
        stated = {"scale": self._scale, **dataclasses.asdict(self._policy)}
        self._synchronizer.session.agree("the LossScaler", [(name, repr(value)) for name, value in stated.items()])
        self._synchronizer.scaled(self)

    def get_scale(self) -> float:
        return self._scale

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss that is to be differentiated."""
        return loss * self._scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Between backward and step(), where gradients are to be clipped, say: they are as without a scale from here on. (But of
        parameters that have master weights, whose optimizer takes them unscaled.) Those of all optimizers, with the first one's.
        Raises InputError where the optimizer has parameters that are not the module's, or f16 ones without master weights."""
        self._check(optimizer)
        if self._good() and not self._is_unscaled:
            self._is_unscaled = True
            self._synchronizer.gradient_ops.unscale(1 / self._scale)

    def step(self, optimizer: torch.optim.Optimizer) -> Any:
        """optimizer.step(), or nothing where the step is skipped. Raises as unscale_()."""
        self.unscale_(optimizer)
        return optimizer.step() if self._good() else None

    def update(self) -> None:
        """Once a step, behind all optimizers'. Raises OrderError where there was none."""
        if not self._was_asked:
            raise _native.OrderError("LossScaler.update(): call step() of it before")
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
        """Before the first gradients of a step: what was found of the last one does not hold for it. A step that was skipped counts until
        update()."""
        self._was_skipped = self._was_skipped or self._is_good is False
        self._is_good, self._is_unscaled = None, False

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self._scale, "good_steps": self._good_steps, "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The same on all workers, between steps. Raises InputError, and changes nothing, where it is damaged or not whole."""
        for name in ("scale", "good_steps", "skipped_steps"):
            value: Any = state.get(name)
            is_number = isinstance(value, int | float) and math.isfinite(value)
            if not is_number or value < 0 or (value == 0 if name == "scale" else value != int(value)):
                raise _native.InputError(f"the state of a LossScaler: '{name}' is {value!r}")
        self._scale, self._good_steps = float(state["scale"]), int(state["good_steps"])
        self.skipped_steps = int(state["skipped_steps"])
        self._was_asked = self._was_skipped = False

    def _good(self) -> bool:
        """Whether the gradients of the step are finite. What is not is left out, of all workers."""
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
