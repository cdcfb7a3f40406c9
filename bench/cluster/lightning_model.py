"""The language model of python/examples, trained by Lightning: lightning_model.py backend|strategy [OPTION OF THE EXAMPLE...]

``backend`` uses Lightning's DDPStrategy with ``process_group_backend="sparsesync"``, ``strategy`` uses SparseSyncStrategy. Loggers,
checkpoints and the progress bar are off. bench/cluster/training.py starts it with torchrun.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python/examples"))

import common  # noqa: E402
import language_model  # noqa: E402
import lightning  # noqa: E402
import torch  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy  # noqa: E402
from sparsesync.lightning import SparseSyncStrategy  # noqa: E402


class Batches(torch.utils.data.IterableDataset):
    """The inputs of a rank, as the example computes them: words, targets, samples, log expected counts, and whether the text begins."""

    def __init__(self, text: language_model.Text, options: argparse.Namespace, world: common.World) -> None:
        super().__init__()
        self._streams = language_model.in_streams(text.training, world.size * options.batch)
        self._options, self._world = options, world

    def __iter__(self) -> Iterator[Any]:
        options, rank = self._options, self._world.rank
        sampler = language_model.Sampler(options.vocabulary, options.sampled, (options.seed, rank))
        own = self._streams[rank * options.batch : (rank + 1) * options.batch]
        for words, targets, begins in language_model.batches(own, options.length):
            samples, draws = sampler.draw()
            log_expected = [sampler.expected(each, draws).log().float() for each in (targets.flatten(), samples)]
            yield words, targets, samples, log_expected, begins


class Module(lightning.LightningModule):
    def __init__(self, text: language_model.Text, options: argparse.Namespace, world: common.World) -> None:
        super().__init__()
        sparse = options.gradients == "sparse"
        self.model = language_model.LanguageModel(options.vocabulary, options.embedding, options.hidden, sparse)
        self._text, self._options, self._world = text, options, world
        self._state: language_model.State | None = None

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(Batches(self._text, self._options, self._world), batch_size=None)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        (optimizer,) = common.optimizers(self.model, self._options)
        return optimizer

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        *inputs, begins = batch
        loss, self._state = self.model(*inputs, None if begins else self._state)
        return loss

    def on_train_start(self) -> None:
        self._run = common.Run(self.trainer.strategy.model, self._options, self._world)
        self._steps = self._run.steps()

    def on_train_batch_start(self, *_: Any) -> None:
        next(self._steps)

    def on_train_batch_end(self, outputs: Any, *_: Any) -> None:
        self._run.record(outputs["loss"])

    def on_train_end(self) -> None:
        next(self._steps, None)  # ends the last step
        self._run.finish(lambda: {"held_out_loss": self.model.full_loss(self._text.held_out, self._options.batch)})


def main(options: argparse.Namespace, world: common.World) -> None:
    text = language_model.Text(options.text, options.vocabulary)
    if options.ddp == "torch":
        strategy = DDPStrategy(process_group_backend="sparsesync")
    else:
        strategy = SparseSyncStrategy(scheme=options.scheme or "auto", wire=options.wire, transport=options.transport)
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = lightning.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=local,
        num_nodes=world.size // local,
        max_steps=options.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(Module(text, options, world))


if __name__ == "__main__":
    by = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if by not in ("backend", "strategy") or "LOCAL_WORLD_SIZE" not in os.environ:
        sys.exit("usage: torchrun ... lightning_model.py backend|strategy [OPTION OF THE EXAMPLE...]")
    parsed = language_model.options()
    parsed.ddp = "torch" if by == "backend" else "sparsesync"
    common.launch(main, parsed)
