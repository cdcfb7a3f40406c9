"""The program of ray_test.py: ray_cases.py FOLDER RAY_FOLDER. Each worker writes its results to FOLDER/RANK.json."""

from __future__ import annotations

import sys
from typing import Any

import framework_support as support
import ray
import ray.train
import ray.train.torch
import sparsesync.ray
import torch
import torch.distributed as dist


def trained(clip: float | None = None) -> dict[str, Any]:
    model = support.Model()
    ddp = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(ddp.parameters(), support.RATE)
    loader = ray.train.torch.prepare_data_loader(torch.utils.data.DataLoader(support.all_ids(), support.BATCH))
    before = support.sent_by_backend()
    for ids in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(ids), ids % support.CLASSES).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), clip)
        optimizer.step()
    return {
        "bits": support.bits(model),
        "error": support.distance(model, support.alone(clip=clip)),
        "moved": support.distance(model, support.Model()),
        "sent": support.sent_by_backend() - before,
        "wrapper": type(ddp).__module__,
    }


def work(given: dict[str, str]) -> None:
    found: dict[str, Any] = {"backend": dist.get_backend(), "workers": dist.get_world_size()}
    found["trained"] = trained()
    found["clipped"] = trained(clip=0.05)
    support.report(given["folder"], found, ray.train.get_context().get_world_rank())


def main() -> None:
    folder, ray_folder = sys.argv[1:]
    ray.init(address="local", num_cpus=4, include_dashboard=False, _temp_dir=ray_folder, _node_ip_address="127.0.0.1")
    trainer = ray.train.torch.TorchTrainer(
        work,
        train_loop_config={"folder": folder},
        torch_config=sparsesync.ray.TorchConfig(),
        scaling_config=ray.train.ScalingConfig(num_workers=support.WORKERS),
        run_config=ray.train.RunConfig(storage_path=f"{ray_folder}/runs"),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
