"""The program of accelerate_test.py: accelerate_cases.py FOLDER. Each process writes its results to FOLDER/RANK.json."""

from __future__ import annotations

import os
import sys
from typing import Any

import framework_support as support
import sparsesync.torch
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs


def refused() -> str:
    """Returns the error of Accelerate for the name of a backend that it does not know."""
    try:
        Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="sparsesync")])
    except ValueError as error:
        return str(error)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    return "no error"


def trained(clip: float | None = None, accumulated: int = 1, wrapped: bool = False, **more: Any) -> dict[str, Any]:
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulated, **more)
    model = support.Model()
    optimizer = torch.optim.SGD(model.parameters(), support.RATE)
    loader = torch.utils.data.DataLoader(support.all_ids(), support.BATCH)
    before = support.sent_by_backend()
    if wrapped:
        ddp = sparsesync.torch.DistributedDataParallel(model, scheme="balanced")
        optimizer, loader = accelerator.prepare(optimizer, loader)
    else:
        ddp, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for ids in loader:
        with accelerator.accumulate(ddp):
            with accelerator.autocast():
                loss = torch.nn.functional.cross_entropy(ddp(ids).float(), ids % support.CLASSES)
            accelerator.backward(loss)
            if clip is not None and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(ddp.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    sent = ddp.statistics()["bytes_sent"] if wrapped else support.sent_by_backend() - before
    if wrapped:
        ddp.close()
    under_bf16 = {"context": lambda: torch.autocast("cpu", torch.bfloat16)} if more else {}
    reference = support.alone(clip=clip, accumulated=accumulated, **under_bf16)
    return {
        "bits": support.bits(model),
        "error": support.distance(model, reference),
        "moved": support.distance(model, support.Model()),
        "sent": sent,
        "wrapper": type(ddp).__module__,
        "unwraps": accelerator.unwrap_model(ddp) is model,
        "workers": accelerator.num_processes,
    }


def main() -> None:
    found: dict[str, Any] = {"refused": refused()}
    dist.init_process_group("sparsesync")
    for name, wrapped in (("backend", False), ("wrapper", True)):
        found[name] = trained(wrapped=wrapped)
        found[f"{name}, clipped"] = trained(wrapped=wrapped, clip=0.05)
        found[f"{name}, accumulated"] = trained(wrapped=wrapped, accumulated=2)
        found[f"{name}, bf16"] = trained(wrapped=wrapped, mixed_precision="bf16")
    dist.destroy_process_group()
    support.report(sys.argv[1], found, int(os.environ["RANK"]))


if __name__ == "__main__":
    main()
