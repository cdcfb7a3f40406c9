"""Ray Train configuration for the torch.distributed backend ``sparsesync``."""

from __future__ import annotations

import dataclasses
from typing import Any

import sparsesync.torch  # noqa: F401  # registers the backend, in Ray's workers, too

try:
    from ray.train import torch as ray_torch
except ImportError as error:
    if (error.name or "ray").partition(".")[0] != "ray":
        raise
    raise ImportError("sparsesync.ray needs Ray Train: pip install 'ray[train]>=2.60'", name="ray") from None

__all__ = ["TorchConfig"]


@dataclasses.dataclass
class TorchConfig(ray_torch.TorchConfig):  # type: ignore[misc]  # Ray is optional, so it has no types here
    """Configuration of a ``TorchTrainer`` whose process group uses the backend ``sparsesync``.

    Ray's own class with ``backend="sparsesync"`` fails. Ray's workers create the process group before they import the modules of
    the training function, so the backend is unknown to them.

    Args:
        backend: The backend, or backends of devices such as ``"cpu:sparsesync,cuda:nccl"``.
        init_method: As in Ray.
        timeout_s: As in Ray.

    Example:
        >>> import sparsesync.ray
        >>> sparsesync.ray.TorchConfig().backend
        'sparsesync'
    """

    backend: str | None = "sparsesync"

    @property
    def backend_cls(self) -> Any:
        """The class with which Ray sets up the workers."""
        return _Backend


class _Backend(ray_torch.TorchConfig().backend_cls):  # type: ignore[misc]
    """Sets up the workers like Ray, after they have registered the backend."""

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        worker_group.execute(_register)
        super().on_start(worker_group, backend_config)


def _register() -> None:
    """Does nothing. A worker that calls it has imported this module, which registers the backend."""
