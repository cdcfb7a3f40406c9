"""f32 master weights for f16 and bf16 parameters: the optimizer updates them, and the parameters are their rounded values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch.gradients import clear

_HALVES = (torch.float16, torch.bfloat16)
_KEY = "master_weights"


class MasterWeights:
    """The master weights of one optimizer. They replace the parameters in its groups, and its state_dict() includes them."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises InputError if no parameter needs them, and OrderError if the optimizer already made a step."""
        if optimizer.state:
            raise _native.OrderError("master_weights: the optimizer already made a step: wrap it before the first one")
        self._pairs: list[_Pair] = []
        for group in optimizer.param_groups:
            for place, each in enumerate(group["params"]):
                if each.dtype in _HALVES:
                    self._pairs.append(_Pair(each))
                    group["params"][place] = self._pairs[-1].master
        if not self._pairs:
            raise _native.InputError("master_weights: no parameter of the optimizer is f16 or bf16: leave it out")
        self._by_master = {id(each.master): each for each in self._pairs}
        self._by_parameter = {id(each.parameter): each for each in self._pairs}
        optimizer.register_state_dict_post_hook(self._add_to)
        self._given: list[torch.Tensor] = []  # master weights of the state that is being loaded
        optimizer.register_load_state_dict_pre_hook(self._check)
        optimizer.register_load_state_dict_post_hook(self._take)

    def parameter_of(self, held: torch.Tensor) -> Any:
        """Returns the parameter for a tensor that the optimizer holds: the tensor itself, if it is f32."""
        pair = self._by_master.get(id(held))
        return held if pair is None else pair.parameter

    def has(self, parameter: torch.nn.Parameter) -> bool:
        return id(parameter) in self._by_parameter

    def zero_grad(self, parameters: Iterable[torch.nn.Parameter], set_to_none: bool) -> None:
        """Clears the gradients of the parameters themselves, which the optimizer does not hold."""
        clear((each for each in parameters if self.has(each)), set_to_none)

    def begin(self, held: Iterable[torch.Tensor], factor: float) -> None:
        """Copies gradients from the parameters, times ``factor``, before the optimizer's step."""
        for pair in self._of(held):
            pair.begin(factor)

    def end(self, held: Iterable[torch.Tensor]) -> None:
        """Rounds the updated master weights to their parameters, after the optimizer's step."""
        for pair in self._of(held):
            pair.end()

    def _of(self, held: Iterable[torch.Tensor]) -> Iterable[_Pair]:
        return (self._by_master[id(each)] for each in held if id(each) in self._by_master)

    def _add_to(self, _: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        state[_KEY] = [each.current().clone() for each in self._pairs]

    def _check(self, _: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Checks a state before anything of the optimizer changes, because later checks may raise, too."""
        given: Any = state.get(_KEY)
        shapes = [each.master.shape for each in self._pairs]
        are_tensors = isinstance(given, list) and all(isinstance(each, torch.Tensor) for each in given)
        if not are_tensors or [each.shape for each in given] != shapes:
            raise _native.InputError(
                f"the optimizer's state has no '{_KEY}', or those of another model: it was saved by an optimizer without them"
            )
        wrong = next((each for each in given if each.dtype is not torch.float32 or each.is_meta or each.layout is not torch.strided), None)
        if wrong is not None:
            raise _native.InputError(f"the optimizer's state has '{_KEY}' of {wrong.dtype}, on {wrong.device}: give f32 ones with values")
        self._given = given

    def _take(self, _: torch.optim.Optimizer) -> None:
        given, self._given = self._given, []
        for pair, saved in zip(self._pairs, given, strict=True):
            pair.load(saved)


class _Pair:
    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self.parameter = parameter
        self.master = torch.nn.Parameter(parameter.detach().float(), requires_grad=parameter.requires_grad)
        self._version = parameter._version

    def current(self) -> torch.Tensor:
        """Returns the master weights.

        Elements that were written to the parameter since, for example by load_state_dict(), are taken from it.
        """
        parameter, master = self.parameter.detach(), self.master.detach()
        if parameter._version != self._version:
            master.copy_(torch.where(master.to(parameter.dtype) == parameter, master, parameter.float()))
            self._version = parameter._version
        return master

    def load(self, saved: torch.Tensor) -> None:
        """Takes the saved weights. Elements that do not round to the parameter are taken from the parameter at the next use."""
        self.master.detach().copy_(saved)
        self._version = -1

    def begin(self, factor: float) -> None:
        self.current()
        gradient = self.parameter.grad
        self.master.grad = None if gradient is None else gradient.detach().float() * factor

    def end(self) -> None:
        if self.master.grad is None:
            return
        self.master.grad = None
        with torch.no_grad():
            self.parameter.copy_(self.master)
        self._version = self.parameter._version
