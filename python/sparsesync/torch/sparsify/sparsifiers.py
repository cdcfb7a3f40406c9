"""Sparsifier options: which dense gradients of a module are sent in part, and which elements are selected."""

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
    """Options that all sparsifiers share. Pass a subclass as ``sparsifier`` to ``DistributedDataParallel``.

    A sparsifier sends a part of each dense gradient. Unsent elements accumulate in a residual on each worker, which is
    added to the next gradient (error feedback). All workers must pass equal options.

    Args:
        warmup_steps: Number of steps before the final share. Step 0 sends everything; each step then sends a constant
            fraction of the one before.
        parameters: Names of the parameters to sparsify, as in ``named_parameters()``. ``*`` matches any text. Without
            names, dense gradients of f32, f16 and bf16 parameters with at least ``least_elements`` elements are
            sparsified.
        least_elements: Smallest size of a sparsified gradient, in elements, if ``parameters`` is not given.
        error_feedback: Keep unsent elements. Without error feedback they are lost, and training suffers.
        on_not_finite: Reaction to an infinite or NaN gradient on any worker: ``"raise"`` raises FloatingPointError on
            all workers, ``"skip"`` skips the step on all workers. A skipped step leaves parameters without gradients
            and residuals unchanged.

    Raises:
        InputError: An option is out of range.

    Example:
        >>> import sparsesync.torch
        >>> sparsifier = sparsesync.torch.TopK(density=0.01, warmup_steps=2)
        >>> isinstance(sparsifier, sparsesync.torch.Sparsifier)
        True
        >>> [round(sparsifier.share_of(step), 3) for step in range(4)]
        [1.0, 0.1, 0.01, 0.01]
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
        """The name of the selection rule in ``sparsesync.Sparsifier``."""
        raise NotImplementedError

    @property
    def final_share(self) -> float:
        """The share of elements, or of chunks, that is sent after the warm-up, between 0 and 1."""
        return 1.0

    @property
    def corrects_momentum(self) -> bool:
        """Whether SGD's momentum is applied on each worker before sending, instead of in a wrapped optimizer."""
        return False

    def share_of(self, step: int) -> float:
        """Returns the share of elements, or of chunks, that one step sends.

        Args:
            step: Index of the step, from 0.

        Returns:
            A share between 0 and 1. It decreases during the warm-up.
        """
        if step >= self.warmup_steps:
            return self.final_share
        return float(self.final_share ** (step / self.warmup_steps))

    def native_options(self) -> dict[str, Any]:
        """Returns the keyword arguments for ``sparsesync.Sparsifier``."""
        return {"selecting": self.selecting, "keeps_rest": self.error_feedback}

    def names(self, name: str) -> bool:
        """Returns whether ``parameters`` lists or matches a name.

        Args:
            name: Name of a parameter, as in ``named_parameters()``.
        """
        return self.parameters is not None and any(fnmatch.fnmatchcase(name, each) for each in self.parameters)

    def takes(self, name: str, parameter: torch.Tensor) -> bool:
        """Returns whether a parameter's gradient is sparsified if it is dense.

        Args:
            name: Name of the parameter, as in ``named_parameters()``.
            parameter: The parameter, of any shape.

        Raises:
            UnsupportedError: ``parameters`` names a parameter whose dtype is not f32, f16 or bf16.
        """
        if self.parameters is not None and not self.names(name):
            return False
        if parameter.dtype not in _KEPT_IN_F32:
            if self.parameters is None:
                return False
            raise _native.UnsupportedError(
                f"parameter '{name}' is {parameter.dtype}: sparsifiers keep residuals in f32; leave it out of `parameters`"
            )
        return self.parameters is not None or parameter.numel() >= self.least_elements

    def check(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Checks the options against the parameters of a module.

        Args:
            named: Names and parameters, as ``named_parameters()`` yields them.

        Raises:
            InputError: No parameter is sparsified.
            UnsupportedError: ``parameters`` names a parameter whose dtype is not f32, f16 or bf16.
        """
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
    """Sends the elements of the largest magnitudes of each gradient.

    Args:
        density: Share of elements to send, in (0, 1]; the number of elements is rounded up.

    The other arguments are those of ``Sparsifier``.

    Example:
        >>> import sparsesync.torch
        >>> import torch
        >>> model = torch.nn.Linear(100, 50)
        >>> sparsifier = sparsesync.torch.TopK(density=0.01, parameters=["weight"])
        >>> with sparsesync.torch.DistributedDataParallel(model, sparsifier=sparsifier) as ddp:
        ...     ddp(torch.ones(8, 100)).sum().backward()
        >>> int(torch.count_nonzero(model.weight.grad))  # 1% of 5,000 elements
        50
    """

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
    """Deep Gradient Compression (Lin et al., ICLR 2018): top-k with momentum correction, momentum masking and clipping.

    Args:
        momentum_correction: Apply SGD's momentum on each worker before sending, instead of in the optimizer. Each
            worker accumulates velocities and sends those instead of gradients. It takes effect if the optimizer is
            wrapped by ``wrap_optimizer()``.
        momentum_masking: Set the velocity of sent elements to 0.
        clip: Largest L2 norm of each parameter's gradient on each worker, applied before the residual is added; no
            limit if not given.

    The other arguments are those of ``TopK`` and ``Sparsifier``.

    Example:
        >>> import sparsesync.torch
        >>> import torch
        >>> model = torch.nn.Linear(100, 50)
        >>> sparsifier = sparsesync.torch.DGC(density=0.01)
        >>> with sparsesync.torch.DistributedDataParallel(model, sparsifier=sparsifier) as ddp:
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        ...     optimizer = sparsesync.torch.wrap_optimizer(optimizer, ddp)
        ...     ddp(torch.ones(8, 100)).sum().backward()
        ...     optimizer.step()
        ...     ddp.statistics()["sparsifier"]["corrects_momentum"]
        True
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
    """Sends the elements whose magnitude is at least ``level``.

    Args:
        level: Smallest magnitude to send, more than 0, in units of the gradient.

    The other arguments are those of ``Sparsifier``; ``warmup_steps`` must stay 0.

    Example:
        >>> import sparsesync.torch
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> sparsifier = sparsesync.torch.Threshold(level=1.0, parameters=["weight"])
        >>> with sparsesync.torch.DistributedDataParallel(model, sparsifier=sparsifier) as ddp:
        ...     ddp(torch.tensor([[0.5, 3.0]])).sum().backward()
        >>> model.weight.grad  # 0.5 stays in the residual
        tensor([[0., 3.]])
    """

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
    """Sends whole chunks of elements: GradientFlow's coarse-grained sparse communication (Sun et al., 2019).

    The parameters of a bucket are concatenated and divided into chunks. All workers send the same chunks: those with
    the largest L1 norms over all buckets. The norms are those of the step before. They are exchanged after its
    gradients, which hides them under the next forward pass.

    Args:
        share: Share of chunks to send, in (0, 1].
        chunk: Elements per chunk, at most the number of all sparsified elements.
        momentum_correction: As in ``DGC``, without masking.

    The other arguments are those of ``Sparsifier``.

    Example:
        >>> import sparsesync.torch
        >>> import torch
        >>> model = torch.nn.Linear(100, 50, bias=False)
        >>> sparsifier = sparsesync.torch.CoarseGrained(share=0.25, chunk=500, parameters=["weight"])
        >>> with sparsesync.torch.DistributedDataParallel(model, sparsifier=sparsifier) as ddp:
        ...     for step in range(2):  # step 0 has no norms yet and sends all chunks
        ...         model.zero_grad()
        ...         ddp(torch.ones(8, 100)).sum().backward()
        >>> int(torch.count_nonzero(model.weight.grad.view(-1, 500).sum(dim=1)))  # of 10 chunks
        3
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
