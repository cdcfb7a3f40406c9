"""Times of passes and steps: recorded as modules and gradients come by, without waiting for a device."""

from __future__ import annotations

import collections
import statistics
from typing import Any

from sparsesync.torch.device import CpuDevice

_KEPT = 32  # steps


class LayerTimer:
    """Of one step after another. Layers are those of the schedule."""

    def __init__(self, layers: int, device: CpuDevice) -> None:
        self._layers = layers
        self._device = device
        self._begin()

    def _begin(self) -> None:
        self._forward: list[tuple[int | None, Any]] = []  # the layer that the forward pass came to, and when
        self._backward: list[tuple[int | None, Any]] = []  # the layer that was ready, and when

    def enter(self, layer: int) -> None:
        """The forward pass comes to a layer, and has what it needs."""
        self._forward.append((layer, self._device.stamp()))

    def leave(self) -> None:
        """The forward pass waits for something, or is over."""
        self._forward.append((None, self._device.stamp()))

    def begin_backward(self) -> None:
        self._backward = [(None, self._device.stamp())]

    def ready(self, layer: int) -> None:
        """The gradient of a layer is ready."""
        self._backward.append((layer, self._device.stamp()))

    def end_step(self) -> tuple[list[float], list[float]]:
        """Seconds of the forward and of the backward pass of each layer; the next step begins."""
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
    """Times of the last steps, and of their passes by layers once they are measured."""

    def __init__(self, device: CpuDevice) -> None:
        self._device = device
        self.layers: LayerTimer | None = None  # None: passes are not measured
        self.passes: tuple[list[float], list[float]] | None = None  # of the last step: seconds of each layer, forward and backward
        self._steps: collections.deque[tuple[float, float]] = collections.deque(maxlen=_KEPT)  # seconds of each, and of its passes
        self._ended: float | None = None

    def measure(self, layers: int) -> None:
        """From the next step on passes of so many layers are measured."""
        self.layers = LayerTimer(layers, self._device)

    def end_step(self, now: float) -> None:
        """Where passes are measured: a step ends now."""
        if self.layers is None:
            return
        forward, backward = self.passes = self.layers.end_step()
        if self._ended is not None:
            self._steps.append((now - self._ended, sum(forward) + sum(backward)))
        self._ended = now

    def pause(self) -> None:
        """The next step is like no other: it does not count."""
        self._ended = None

    def medians(self) -> tuple[float, float] | None:
        """Seconds of a step, and of its passes; None where nothing was measured."""
        if not self._steps:
            return None
        iteration, compute = (statistics.median(seconds) for seconds in zip(*self._steps, strict=True))
        return iteration, compute
