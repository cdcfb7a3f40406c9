"""The program of lightning_test.py: lightning_cases.py FOLDER. Each process writes its results to FOLDER/RANK.json."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import framework_support as support
import lightning
import sparsesync.lightning
import sparsesync.torch
import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy

FOLDER = sys.argv[1]


class Module(lightning.LightningModule):
    """support.Model with the loop of Lightning."""

    def __init__(self, optimizer: Any = torch.optim.SGD, manual: bool = False) -> None:
        super().__init__()
        self.model = support.Model()
        self.optimizer = optimizer
        self.automatic_optimization = not manual
        self.sent_before = 0
        self.sent = 0
        self.wrapper = ""
        self.layouts: list[str] = []

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(support.all_ids()[self.global_rank :: self.trainer.world_size], support.BATCH)

    def val_dataloader(self) -> Any:
        return self.train_dataloader()

    def validation_step(self, ids: torch.Tensor, _: int) -> torch.Tensor:
        return self.model.loss(ids)

    def training_step(self, ids: torch.Tensor, _: int) -> torch.Tensor:
        loss = self.model.loss(ids)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def on_train_start(self) -> None:
        self.sent_before = support.sent_by_backend()

    def on_before_optimizer_step(self, _: Any) -> None:
        self.layouts = [str(each.grad.layout) for each in self.model.parameters()]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer(self.parameters(), support.RATE)

    def on_train_end(self) -> None:
        wrapper = self.trainer.strategy.model
        self.wrapper = f"{type(wrapper).__module__}.{type(wrapper).__name__}"
        ours = isinstance(wrapper, sparsesync.torch.DistributedDataParallel)
        self.sent = wrapper.statistics()["bytes_sent"] if ours else support.sent_by_backend() - self.sent_before


def trainer(strategy: Any, **more: Any) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "use_distributed_sampler": False}
    given = {"enable_checkpointing": False, "max_epochs": 1, **quiet, **more}
    return lightning.Trainer(strategy=strategy, accelerator="cpu", devices=support.WORKERS, **given)


def fitted(strategy: Any, module: Module | None = None, reference: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    module = module or Module()
    trainer(strategy, **more).fit(module)
    return result(module, support.alone(**reference or {}))


def result(module: Module, reference: torch.nn.Module) -> dict[str, Any]:
    return {
        "bits": support.bits(module.model),
        "error": support.distance(module.model, reference),
        "moved": support.distance(module.model, support.Model()),
        "sent": module.sent,
        "wrapper": module.wrapper,
        "layouts": module.layouts,
    }


def of_backend() -> Any:
    return DDPStrategy(process_group_backend="sparsesync")


def of_wrapper() -> Any:
    return sparsesync.lightning.SparseSyncStrategy(scheme="balanced")


def under_bf16() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def under_f16() -> Any:
    return torch.autocast("cpu", dtype=torch.float16)


def resumed(strategy: Callable[[], Any]) -> dict[str, Any]:
    """Trains for an epoch, saves, and trains another one in a new trainer. The optimizer has a state."""
    path = Path(FOLDER) / f"{strategy.__name__}.ckpt"
    first = trainer(strategy())
    first.fit(Module(torch.optim.Adagrad))
    first.save_checkpoint(path)
    module = Module(torch.optim.Adagrad)
    second = trainer(strategy(), max_epochs=2)
    second.fit(module, ckpt_path=path, weights_only=True)
    names = list(torch.load(path, weights_only=True)["state_dict"])
    reference = support.alone(epochs=2, optimizer=torch.optim.Adagrad)
    return {**result(module, reference), "steps": [first.global_step, second.global_step], "names": names}


def clipped_by_value(strategy: Any) -> str:
    """Returns the error of torch, which cannot clip sparse gradients by value."""
    try:
        trainer(strategy, gradient_clip_val=0.05, gradient_clip_algorithm="value").fit(Module())
    except NotImplementedError as error:
        return str(error)
    return "no error"


def scaled() -> Any:
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))


def main() -> None:
    clip, accumulated = {"clip": 0.05}, {"accumulated": 2}
    bf16 = {"context": under_bf16}
    found: dict[str, Any] = {}
    strategies = {"backend": of_backend, "strategy": of_wrapper}
    for name, strategy in strategies.items():
        found[name] = fitted(strategy())
        found[f"{name}, clipped"] = fitted(strategy(), reference=clip, gradient_clip_val=0.05)
        found[f"{name}, accumulated"] = fitted(strategy(), reference=accumulated, accumulate_grad_batches=2)
        found[f"{name}, bf16"] = fitted(strategy(), reference=bf16, precision="bf16-mixed")
        found[f"{name}, 16-mixed"] = fitted(strategy(), reference=bf16, precision="16-mixed")
        found[f"{name}, f16 with a scaled loss"] = fitted(strategy(), reference={"context": under_f16}, plugins=[scaled()])
        found[f"{name}, manual"] = fitted(strategy(), Module(manual=True))
        found[f"{name}, resumed"] = resumed(strategy)
        found[f"{name}, clipped by value"] = clipped_by_value(strategy())
    found["by name"] = fitted("sparsesync")
    torch.distributed.destroy_process_group()
    support.report(FOLDER, found, int(os.environ["RANK"]))


if __name__ == "__main__":
    main()
