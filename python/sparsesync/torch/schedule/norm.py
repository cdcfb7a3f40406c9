"""The norm of gradients: of those that still cross from each worker's part of the sums, before anything is gathered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.schedule.bucket import Bucket
from sparsesync.torch.schedule.scalar_allreduce import SmallSums

_EPSILON = 1e-6  # as torch's own has it


class Norm:
    """Sums of squares of what workers own once sums are made, a number for each bucket. They cross as one more bucket, behind the
    last sums. All workers make one, between the same steps."""

    def __init__(self, session: _native.Session, device: CpuDevice, where: torch.device, most: int) -> None:
        """most: buckets that there may be."""
        self._squares = SmallSums(session, device, "(sums of squares)", most, where)
        self.number = self._squares.number

    def watch(self, buckets: Sequence[Bucket]) -> None:
        """Between steps: there are these buckets now, without a step."""
        self._squares.forget()
        self._squares.own.zero_()
        for place, bucket in enumerate(buckets):
            bucket.keep_squares(self._squares.own[place : place + 1])

    def submit(self) -> None:
        """Once a step, behind all buckets."""
        self._squares.submit()

    def of(self, buckets: Iterable[Bucket]) -> torch.Tensor | None:
        """Of the gradients of the step under way, without their being gathered. Nothing, on all workers, where a scheme has no sums
        before that."""
        if not self._squares.submitted or not all(bucket.has_squares() for bucket in buckets):
            return None
        return self._squares.sums().sum().sqrt()


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
