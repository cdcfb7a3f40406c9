"""Sparsifiers: which of a module's dense gradients are made sparse, and how."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from sparsesync import _native

_KEPT_IN_F32 = (torch.float32, torch.float16, torch.bfloat16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sparsifier:
    """What all of them have.

    parameters: names of those whose gradients are made sparse, in which * stands for anything; if not given, all whose gradients
    are dense and of `least_elements` or more.
    warmup_steps: in the first steps more crosses: all of it in the first one, then in each step a constant share of the one before.
    on_not_finite: where a gradient of some worker is infinite or not a number, all of them "raise" FloatingPointError, or "skip" the
    step: parameters are left without gradients, so that optimizers do nothing, and nothing of it is kept.
    error_feedback: what does not cross is kept, and added to the next gradient; without it it is lost, and so is the training.
    """

    warmup_steps: int = 0
    parameters: Sequence[str] | None = None
    least_elements: int = 4096
    error_feedback: bool = True
    on_not_finite: str = "raise"

    def __post_init__(self) -> None:
        if self.on_not_finite not in ("raise", "skip"):
            raise _native.InputError(f"on_not_finite '{self.on_not_finite}': raise or skip")
        if self.warmup_steps < 0 or self.least_elements < 1:
            raise _native.InputError("warmup_steps: 0 or more; least_elements: 1 or more")
        if isinstance(self.parameters, str):
            raise _native.InputError(f"parameters: a list of names, such as ['{self.parameters}']")

    @property
    def selecting(self) -> str:
        """As the library names it."""
        raise NotImplementedError

    @property
    def final_share(self) -> float:
        """Of elements, or of chunks, that cross once the warm-up is over."""
        return 1.0

    @property
    def corrects_momentum(self) -> bool:
        """Whether it takes the momentum of SGD out of a wrapped optimizer."""
        return False

    def share_of(self, step: int) -> float:
        """Of a step, counted from 0."""
        if step >= self.warmup_steps:
            return self.final_share
        return float(self.final_share ** (step / self.warmup_steps))

    def native_options(self) -> dict[str, Any]:
        """Of the library's sparsifier."""
        return {"selecting": self.selecting, "keeps_rest": self.error_feedback}

    def names(self, name: str) -> bool:
        """Whether a parameter is one of those that are named."""
        return self.parameters is not None and any(fnmatch.fnmatchcase(name, each) for each in self.parameters)

    def takes(self, name: str, parameter: torch.Tensor) -> bool:
        """Whether a parameter's gradient is made sparse, if it is dense. Raises UnsupportedError for a named one of f64."""
        if self.parameters is not None and not self.names(name):
            return False
        if parameter.dtype not in _KEPT_IN_F32:
            if self.parameters is None:
                return False
            raise _native.UnsupportedError(
                f"parameter '{name}' is {parameter.dtype}: what sparsifiers owe is kept in f32; leave it out of `parameters`"
            )
        return self.parameters is not None or parameter.numel() >= self.least_elements

    def check(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Raises InputError where it has nothing to do in a module, or not what it is told to."""
        taken = [(name, each) for name, each in named if self.takes(name, each)]
        if not taken:
            raise _native.InputError(
                f"{type(self).__name__}: no parameter is named by {list(self.parameters)}: give names, or patterns of names, of "
                "named_parameters()"
                if self.parameters is not None
                else f"{type(self).__name__}: no parameter of f32, f16 or bf16 has {self.least_elements} elements or more: give a smaller "
                "least_elements, or another dtype, such as by module.float()"
            )


def _expect_share(what: str, share: float) -> None:
    if not 0 < share <= 1:
        raise _native.InputError(f"{what} {share}: more than 0, and 1 at most")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopK(Sparsifier):
    """Of each gradient the elements of the largest magnitudes cross: a share `density` of them, rounded up."""

    density: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        _expect_share("density", self.density)

    @property
    def selecting(self) -> str:
        return "top_k"

    @property
    def final_share(self) -> float:
        return self.density


@dataclasses.dataclass(frozen=True, kw_only=True)
class DGC(TopK):
    """Deep Gradient Compression (Lin et al., ICLR 2018): TopK, with what keeps SGD with momentum from suffering by it.

    momentum_correction: where wrap_optimizer() finds SGD with momentum it takes the momentum out of the optimizer: each worker
    adds up velocities, and these cross in the place of gradients. momentum_masking: the velocity of what crosses becomes 0.
    clip: the largest L2 norm of each parameter's gradient on each worker, before it is added to what is kept.
    """

    momentum_correction: bool = True
    momentum_masking: bool = True
    clip: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None and not self.clip > 0:
            raise _native.InputError(f"clip {self.clip}: more than 0")

    @property
    def corrects_momentum(self) -> bool:
        return self.momentum_correction

    def native_options(self) -> dict[str, Any]:
        return {**super().native_options(), "masks_momentum": self.momentum_masking, "clip": self.clip}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Threshold(Sparsifier):
    """The elements whose magnitude is `level` or more cross."""

    level: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.level > 0:
            raise _native.InputError(f"level {self.level}: more than 0")
        if self.warmup_steps:
            raise _native.InputError("a Threshold has no share that a warm-up could begin with: leave warmup_steps out")

    @property
    def selecting(self) -> str:
        return "threshold"

    def native_options(self) -> dict[str, Any]:
        return {**super().native_options(), "level": self.level}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoarseGrained(Sparsifier):
    """GradientFlow's coarse-grained sparse communication (Sun et al., 2019): the parameters of a bucket lie end to end in chunks of
    `chunk` elements, and of all buckets' chunks the share with the largest L1 norms crosses, the same ones on all workers. It is
    chosen by the norms of the step before, which cross behind its gradients and hide under the next forward pass.

    momentum_correction: as of DGC, without masking.
    """

    share: float = 0.1
    chunk: int = 32768
    momentum_correction: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _expect_share("share", self.share)
        if self.chunk < 1:
            raise _native.InputError(f"chunks of {self.chunk} elements: 1 or more")

    @property
    def selecting(self) -> str:
        return "chunks"

    @property
    def final_share(self) -> float:
        return self.share

    @property
    def corrects_momentum(self) -> bool:
        return self.momentum_correction

    def native_options(self) -> dict[str, Any]:
        return {**super().native_options(), "masks_momentum": False}

    def check(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        named = list(named)
        super().check(named)
        elements = sum(each.numel() for name, each in named if self.takes(name, each))
        if self.chunk > elements:
            raise _native.InputError(
                f"CoarseGrained: chunks of {self.chunk} elements, and all parameters that it takes have {elements} together: "
                "give a smaller chunk"
            )
