"""Times of passes and steps, recorded as modules run and gradients arrive, without waiting for a device."""

from __future__ import annotations

import collections
import statistics
from typing import Any

from sparsesync.torch.device import CpuDevice

_KEPT = 32  # steps


class LayerTimer:
    """Times of one step after another, by the layers of the schedule."""

    def __init__(self, layers: int, device: CpuDevice) -> None:
        self._layers = layers
        self._device = device
        self._begin()

    def _begin(self) -> None:
        self._forward: list[tuple[int | None, Any]] = []  # layer that the forward pass reached, and the time
        self._backward: list[tuple[int | None, Any]] = []  # layer whose gradient became ready, and the time

    def enter(self, layer: int) -> None:
        """Records that the forward pass reached a layer and has its inputs."""
        self._forward.append((layer, self._device.stamp()))

    def leave(self) -> None:
        """Records that the forward pass waits for something, or is over."""
        self._forward.append((None, self._device.stamp()))

    def begin_backward(self) -> None:
        self._backward = [(None, self._device.stamp())]

    def ready(self, layer: int) -> None:
        """Records that the gradient of a layer is ready."""
        self._backward.append((layer, self._device.stamp()))

    def end_step(self) -> tuple[list[float], list[float]]:
        """Returns the seconds of the forward and of the backward pass of each layer, and begins the next step."""
        forward = [0.0] * self._layers
        for (layer, began), (_, ended) in zip(self._forward, self._forward[1:], strict=False):
            if layer is not None:
                forward[layer] += self._device.seconds(began, ended)
        backward = [0.0] * self._layers
        for (_, began), (layer, ended) in zip(self._backward, self._backward[1:], strict=False):
            if layer is not None:
                backward[layer] += self._device.seconds(began, ended)
        self._begin()
        return forward, backward


class StepTimer:
    """Times of the last steps, and of their passes by layer once they are measured."""

    def __init__(self, device: CpuDevice) -> None:
        self._device = device
        self.layers: LayerTimer | None = None  # None: passes are not measured
        self.passes: tuple[list[float], list[float]] | None = None  # seconds of each layer in the last step, forward and backward
        self._steps: collections.deque[tuple[float, float]] = collections.deque(maxlen=_KEPT)  # seconds of each step, and of its passes
        self._ended: float | None = None

    def measure(self, layers: int) -> None:
        """Measures passes by layer from the next step on. layers: number of layers."""
        self.layers = LayerTimer(layers, self._device)

    def end_step(self, now: float) -> None:
        """Ends a step at the time ``now``, if passes are measured."""
        if self.layers is None:
            return
        forward, backward = self.passes = self.layers.end_step()
        if self._ended is not None:
            self._steps.append((now - self._ended, sum(forward) + sum(backward)))
        self._ended = now

    def pause(self) -> None:
        """Excludes the next step, which is not typical."""
        self._ended = None

    def medians(self) -> tuple[float, float] | None:
        """Returns the median seconds of a step and of its passes; None if nothing was measured."""
        if not self._steps:
            return None
        iteration, compute = (statistics.median(seconds) for seconds in zip(*self._steps, strict=True))
        return iteration, compute
