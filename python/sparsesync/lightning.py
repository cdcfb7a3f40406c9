"""Lightning strategy with this library's ``DistributedDataParallel``. Importing it registers the name ``sparsesync``."""

from __future__ import annotations

from typing import Any

import torch

import sparsesync.torch

try:
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "lightning":
        raise
    raise ModuleNotFoundError("sparsesync.lightning needs the package lightning: pip install 'lightning>=2.6'", name=error.name) from None

__all__ = ["SparseSyncStrategy"]

NAME = "sparsesync"


class SparseSyncStrategy(DDPStrategy):  # type: ignore[misc]  # Lightning is optional, so it has no types here
    """Trains like Lightning's ``DDPStrategy``, with ``sparsesync.torch.DistributedDataParallel`` as the wrapper.

    ``Trainer(strategy="sparsesync")`` creates it without arguments, once this module is imported. ``trainer.strategy.model`` is the
    wrapper while ``fit()`` runs; the end of ``fit()`` closes it. Checkpoints do not contain the residual of a sparsifier.

    Args:
        options: Arguments of ``DDPStrategy``, such as ``timeout``, and of the wrapper, such as ``scheme`` and ``wire``. Arguments
            for torch's communication hooks raise UnsupportedError.

    Example:
        >>> import lightning
        >>> from sparsesync.lightning import SparseSyncStrategy
        >>> trainer = lightning.Trainer(strategy=SparseSyncStrategy(scheme="balanced"), accelerator="cpu", devices=2)
        >>> type(trainer.strategy).__name__
        'SparseSyncStrategy'
    """

    model: Any  # the wrapper while training, otherwise the LightningModule

    def __init__(self, **options: Any) -> None:
        hooks = sorted(name for name, value in options.items() if name.startswith(("ddp_comm_", "model_averaging")) and value is not None)
        if hooks:
            raise sparsesync.UnsupportedError(
                f"SparseSyncStrategy: {', '.join(hooks)}: these are for torch's wrapper; use wire or sparsifier instead"
            )
        super().__init__(**options)

    def _setup_model(self, model: torch.nn.Module) -> sparsesync.torch.DistributedDataParallel:
        """Wraps the module. Lightning calls it in ``fit()``, on all ranks."""
        return sparsesync.torch.DistributedDataParallel(model, device_ids=self.determine_ddp_device_ids(), **self._ddp_kwargs)

    def pre_backward(self, closure_loss: torch.Tensor) -> None:
        """Does nothing. Lightning would prepare torch's reducer, which the wrapper does not have."""

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        """Does nothing, for the same reason."""

    def teardown(self) -> None:
        """Closes the wrapper. Lightning calls it on all ranks at the end of ``fit()``, after an error, too."""
        wrapper = self.model
        if isinstance(wrapper, sparsesync.torch.DistributedDataParallel):
            self.model = self.lightning_module
            wrapper.close()
        super().teardown()

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Adds the name ``sparsesync`` to Lightning's registry."""
        strategy_registry.register(NAME, cls, description="DDP with sparse gradients by sparsesync", override=True)


SparseSyncStrategy.register_strategies(StrategyRegistry)
