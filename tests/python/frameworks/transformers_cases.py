"""The program of transformers_test.py: transformers_cases.py FOLDER. Each process writes its results to FOLDER/RANK.json."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import framework_support as support
import sparsesync.torch  # noqa: F401 (registers the backend)
import torch
import torch.distributed as dist
import transformers

FOLDER = sys.argv[1]


class Module(torch.nn.Module):
    """support.Model with the interface that Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.model = support.Model()

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.model.loss(ids)}


def refused() -> str:
    """Returns the error of Trainer for the name of a backend that it does not know."""
    try:
        transformers.TrainingArguments(FOLDER, use_cpu=True, ddp_backend="sparsesync")
    except ValueError as error:
        return str(error)
    finally:
        transformers.training_args.AcceleratorState._reset_state(reset_partial_state=True)
    return "no error"


def trainer(**more: Any) -> transformers.Trainer:
    fixed: dict[str, Any] = {
        "use_cpu": True,
        "per_device_train_batch_size": support.BATCH,
        "num_train_epochs": 1,
        "max_grad_norm": 0,
        "train_sampling_strategy": "sequential",
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    model = Module()
    optimizer = torch.optim.SGD(model.parameters(), support.RATE)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    arguments = transformers.TrainingArguments(FOLDER, **{**fixed, **more})
    data = [{"ids": each} for each in support.all_ids()]
    return transformers.Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, constant))


def trained(reference: dict[str, Any] | None = None, resume: Path | None = None, **more: Any) -> dict[str, Any]:
    before = support.sent_by_backend()
    running = trainer(**more)
    running.train(resume_from_checkpoint=str(resume) if resume else None)
    model = running.model.model
    return {
        "bits": support.bits(model),
        "error": support.distance(model, support.alone(**reference or {})),
        "moved": support.distance(model, support.Model()),
        "sent": support.sent_by_backend() - before,
        "steps": running.state.global_step,
        "workers": running.args.world_size,
    }


def main() -> None:
    found: dict[str, Any] = {"refused": refused()}
    dist.init_process_group("sparsesync")
    found["trained"] = trained()
    found["clipped"] = trained({"clip": 0.05}, max_grad_norm=0.05)
    found["accumulated"] = trained({"accumulated": 2}, gradient_accumulation_steps=2)
    found["bf16"] = trained({"context": lambda: torch.autocast("cpu", torch.bfloat16)}, bf16=True)
    half = support.STEPS // 2
    found["saved"] = trained(save_strategy="steps", save_steps=half)
    found["resumed"] = trained(resume=Path(FOLDER, f"checkpoint-{half}"))
    dist.destroy_process_group()
    support.report(FOLDER, found, int(os.environ["RANK"]))


if __name__ == "__main__":
    main()
