"""Notices parameters that a module was not wrapped with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparsesync import _native
from sparsesync.torch.gradients import Synchronized
from sparsesync.torch.module_state import ModuleState

_WRAP_AGAIN = "its gradient would stay on each worker: call close() on the DistributedDataParallel, and wrap the module again"


class Membership:
    """Checks before each forward pass that the gradients of a module's parameters are those that are synchronized."""

    def __init__(self, state: ModuleState, synchronized: Sequence[Synchronized]) -> None:
        self._state = state
        self._synchronized = {id(each.parameter) for each in synchronized}
        self._first = synchronized[0]
        self._type = (self._first.parameter.dtype, self._first.parameter.device)
        self._look()

    def _look(self) -> None:
        # The modules are kept, so that no other object has the address of one of these.
        self._modules = list(self._state.module.modules())
        self._owned = [owned for each in self._modules for owned in (each._parameters, each._modules)]
        self._seen = self._identities()
        self._frozen = [each for _, each in self._state.parameters() if id(each) not in self._synchronized]

    def _identities(self) -> list[int]:
        return [id(each) for owned in self._owned for each in owned.values()]

    def check(self) -> None:
        """Raises OrderError for a parameter that requires a gradient, and did not when the module was wrapped, or was not there;
        and where the module has another type or device since."""
        first = self._first.parameter
        if (first.dtype, first.device) != self._type:
            raise _native.OrderError(
                f"parameter '{self._first.name}' was {self._type[0]} on {self._type[1]} when the module was wrapped, and is "
                f"{first.dtype} on {first.device}: call close() on the DistributedDataParallel, and wrap the module again"
            )
        if self._identities() == self._seen and not any(each.requires_grad for each in self._frozen):
            return
        frozen = {id(each) for each in self._frozen}
        for name, each in self._state.parameters():
            if id(each) in self._synchronized or not isinstance(each, torch.nn.Parameter) or each.numel() == 0:
                continue
            if each.requires_grad:
                was = "did not require a gradient" if id(each) in frozen else "was not part of the module"
                raise _native.OrderError(f"parameter '{name}' {was} when the module was wrapped, and {_WRAP_AGAIN}")
        self._look()
