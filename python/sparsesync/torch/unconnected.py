"""Stands where a copied or unpickled DistributedDataParallel had its synchronizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from sparsesync import _native

_SAYS = (
    "this DistributedDataParallel is a copy, which is not connected to other workers: wrap its `module` with a new one, on all workers, to "
    "train it; torch.no_grad() is enough to evaluate it"
)


class Unconnected:
    """Lets the module be evaluated, and raises OrderError where gradients would have to be exchanged. A copy is not connected by
    itself: all workers would have to copy at once, and programs copy on worker 0 alone."""

    broadcasts_buffers = False

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def begin_forward(self, _: bool) -> None:
        if any(each.requires_grad for each in self._module.parameters()):
            raise _native.OrderError(_SAYS)

    def end_forward(self, _: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def finish_all(self) -> None:
        pass

    def once_there(self, parameters: Iterable[torch.nn.Parameter], action: Callable[[Sequence[torch.nn.Parameter]], None]) -> None:
        action(list(parameters))

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _native.OrderError(_SAYS)
