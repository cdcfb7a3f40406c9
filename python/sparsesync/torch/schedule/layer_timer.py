"""What the passes of each layer take: noted as modules and gradients come by, without waiting for a device."""

from __future__ import annotations

from typing import Any

from sparsesync.torch.device import CpuDevice


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
