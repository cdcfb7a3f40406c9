"""The programs of gpu_test.py: gpu_cases.py CASE FOLDER. All processes use cuda:0, and each writes its results to FOLDER/RANK.json."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import parity_cases
import sparsesync.torch
import torch
import torch.distributed as dist
from sparsesync.torch import DGC, CoarseGrained, DistributedDataParallel, LossScaler, wrap_optimizer

GPU = "cuda:0"
ROWS, WIDTH = 200_000, 64
MODELS = ("plain", "bag", "severaltables", "recurrent", "tied", "buffers", "frozen", "unused")


class Three(torch.nn.Module):
    """Gradients that are sent as sparse rows, as rows of a dense gradient, and whole."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse = torch.nn.Embedding(ROWS, WIDTH, sparse=True)
        self.rows = torch.nn.Embedding(ROWS, WIDTH)
        self.dense = torch.nn.Linear(WIDTH, 8, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.dense(self.sparse(ids) + self.rows(ids))
        return result


def model() -> Three:
    torch.manual_seed(0)
    return Three().to(GPU)


def batch(rank: int, step: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randint(0, ROWS, (2048,), generator=source).to(GPU)


def loss_of(module: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(module(ids), ids % 8)


def expected(module: Three, workers: int, step: int) -> list[torch.Tensor]:
    """Returns the mean gradients, from one process that has all batches."""
    alone = copy.deepcopy(module)
    alone.zero_grad()
    for rank in range(workers):
        (loss_of(alone, batch(rank, step)) / workers).backward()
    return [each.grad.to_dense() for each in alone.parameters() if each.grad is not None]


def error_of(module: Three, right: list[torch.Tensor]) -> float:
    found = [each.grad.to_dense() for each in module.parameters() if each.grad is not None]
    return max(float((ours - theirs).abs().max()) for ours, theirs in zip(found, right, strict=True))


def cases() -> Iterator[tuple[str, str, str, str]]:
    for each in parity_cases.cases():
        if each[0] in MODELS and each[2] in ("sgd", "adam") and each[3] != "autocast":
            yield each


def parity() -> dict[str, Any]:
    """Compares sparsesync on the GPU with torch's DDP on the CPU: every kind of gradient, accumulated and clipped."""
    group = parity_cases.common.gloo_group(threads=1)
    found: dict[str, Any] = {}
    for number, (name, kind, optimizer, regime) in enumerate(cases()):
        torch.manual_seed(number)
        first = parity_cases.MODELS[name](40 if kind == "dense" else 2000, kind == "sparse")
        of_torch = parity_cases.torchs_own(group, name)
        theirs = parity_cases.train(copy.deepcopy(first), of_torch, optimizer, regime, kind, number)
        made: list[DistributedDataParallel] = []

        def wrap(module: torch.nn.Module, made: list[DistributedDataParallel] = made) -> DistributedDataParallel:
            made.append(DistributedDataParallel(module, scheme="balanced", deadline=60))
            return made[0]

        ours = parity_cases.train(first.to(GPU), wrap, optimizer, regime, kind, number, GPU)
        told = made[0].statistics()
        found[f"{name} {kind} {optimizer} {regime}"] = {"torch": theirs, "ours": ours, "device": told["device"]}
        found["payloads"] = told["payloads"]
        made[0].close()
    return found


def autocast() -> dict[str, Any]:
    """Trains with AMP and a scaler. All workers have the same weights, and losses fall."""
    module = model()
    ddp = DistributedDataParallel(module, scheme="balanced", device_ids=[0])
    optimizer = torch.optim.SGD(ddp.parameters(), 0.5)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_of(ddp, batch(ddp.rank, 0))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss))
    bits = [each.detach().cpu().numpy().tobytes().hex()[-64:] for each in module.parameters()]
    ddp.close()
    return {"losses": losses, "bits": bits}


def sparsified() -> dict[str, Any]:
    """Trains with sparsifiers, f16 with master weights, and a scaled loss that overflows on worker 1 once. Returns for each case the
    values of autocast(), and the skipped steps.
    """
    found = {}
    for sparsifier in (DGC(density=0.1, least_elements=1), CoarseGrained(share=0.5, chunk=64, least_elements=1)):
        for schedule in ("lazy", "dear"):
            module = model().half()
            ddp = DistributedDataParallel(module, scheme="balanced", sparsifier=sparsifier, schedule=schedule)
            optimizer = wrap_optimizer(torch.optim.SGD(ddp.parameters(), 0.5, momentum=0.5), ddp, master_weights=True)
            scaler = LossScaler(ddp, scale=2.0**8)
            losses = []
            for step in range(8):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(ddp(batch(ddp.rank, 0)).float(), batch(ddp.rank, 0) % 8)
                scaler.scale(loss * (float("inf") if (ddp.rank, step) == (1, 3) else 1)).backward()
                scaler.step(optimizer)
                scaler.update()
                losses.append(float(loss.detach()))
            bits = [each.detach().cpu().numpy().tobytes().hex()[-64:] for each in module.parameters()]
            skipped = scaler.skipped_steps
            ddp.close()
            found[f"{type(sparsifier).__name__}, {schedule}"] = {"losses": losses, "bits": bits, "skipped": skipped}
    return found


def announced() -> dict[str, Any]:
    module = model()
    ddp = DistributedDataParallel(module, scheme="owned", announce=True)
    errors = []
    for step in range(4):
        ddp.zero_grad()
        loss_of(ddp, batch(ddp.rank, step)).backward()
        errors.append(error_of(module, expected(module, ddp.world_size, step)))
    told = ddp.statistics()["parameters"]["sparse.weight"]["announced"]
    ddp.close()
    return {"errors": errors, "announced": told}


def memory() -> dict[str, Any]:
    """Workspaces come from torch's allocator, and the driver allocates nothing besides."""
    module = model()

    def used() -> int:
        available, total = torch.cuda.mem_get_info(0)
        return int(total - available)

    def steps(ddp: DistributedDataParallel, count: int) -> None:
        for step in range(count):
            ddp.zero_grad()
            loss_of(ddp, batch(ddp.rank, step)).backward()
        torch.cuda.synchronize()

    first = DistributedDataParallel(copy.deepcopy(module), scheme="balanced")  # loads kernels
    steps(first, 2)
    first.close()
    del first
    torch.cuda.empty_cache()
    dist.barrier()
    before = {"allocated": torch.cuda.memory_allocated(0), "reserved": torch.cuda.memory_reserved(0), "used": used()}
    ddp = DistributedDataParallel(module, scheme="balanced")
    steps(ddp, 4)
    ddp.zero_grad()
    dist.barrier()
    told = ddp.statistics()
    during = {"allocated": torch.cuda.memory_allocated(0), "reserved": torch.cuda.memory_reserved(0), "used": used()}
    allocations = ddp.synchronizer.session.allocations
    steps(ddp, 4)
    again = ddp.synchronizer.session.allocations
    dist.barrier()
    ddp.zero_grad()
    ddp.close()
    del ddp
    after = torch.cuda.memory_allocated(0)
    return {
        "before": before, "during": during, "after": after, "told": told["memory_bytes"],
        "high_water": told["memory_high_water_bytes"], "allocations": [allocations, again],
    }  # fmt: skip


def synchronizations() -> dict[str, Any]:
    """After the first step no torch call of a step waits for the GPU, and the host does not wait until results are written."""
    module = model()
    # torch's backward pass does not wait.
    loss = loss_of(module, batch(0, 0))
    torch.cuda.set_sync_debug_mode("error")
    loss.backward()
    torch.cuda.set_sync_debug_mode("default")
    ddp = DistributedDataParallel(module, scheme="balanced")
    batches = [batch(ddp.rank, step) for step in range(5)]
    errors = []
    for step, ids in enumerate(batches):
        ddp.zero_grad()
        loss = loss_of(ddp, ids)
        torch.cuda.set_sync_debug_mode("error" if step > 0 else "default")
        try:
            loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        errors.append(error_of(module, expected(module, ddp.world_size, step)))
    # Negative test: torch finds a call that waits.
    torch.cuda.set_sync_debug_mode("error")
    try:
        batches[0].cpu()
        found = False
    except RuntimeError:
        found = True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    ddp.close()
    return {"errors": errors, "found": found}


def side_stream() -> dict[str, Any]:
    """Gradients are written late in a stream other than the default one, and the optimizer's stream reads them."""
    module = model()
    ddp = DistributedDataParallel(module, scheme="balanced")
    side = torch.cuda.Stream()
    heavy = torch.randn(4096, 4096, device=GPU)
    errors = []
    for step in range(5):
        ddp.zero_grad()
        ids = batch(ddp.rank, step)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(20):
                heavy = heavy @ heavy / 64
            loss_of(ddp, ids + (heavy[0, 0] * 0).nan_to_num(0).long()).backward()
        torch.cuda.current_stream().wait_stream(side)
        errors.append(error_of(module, expected(module, ddp.world_size, step)))
    ddp.close()
    return {"errors": errors}


def capture() -> dict[str, Any]:
    """Captures CUDA graphs while gather phases are running. Also tries to capture a step."""
    module = model()
    ddp = DistributedDataParallel(module, scheme="balanced", schedule="dear")
    optimizer = wrap_optimizer(torch.optim.SGD(module.parameters(), lr=0.0), ddp)
    matrix = torch.randn(512, 512, device=GPU)
    torch.cuda.synchronize()
    captured = 0
    for step in range(20):
        optimizer.zero_grad()
        loss_of(ddp, batch(ddp.rank, step)).backward()
        optimizer.step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # in global mode, the default of torch
            product = matrix @ matrix
        graph.replay()
        captured += int(torch.equal(product, matrix @ matrix))
    ddp.close()

    ddp = DistributedDataParallel(model(), scheme="balanced")
    loss_of(ddp, batch(ddp.rank, 0)).backward()  # registers the buckets
    loss = loss_of(ddp, batch(ddp.rank, 1))
    refused = ""
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            ddp.synchronizer.session.reduce(0, [None], streams=(torch.cuda.current_stream().cuda_stream,))
    except sparsesync.UnsupportedError as error:
        refused = str(error)
    loss.backward()  # the step itself works
    ddp.close()
    return {"captured": captured, "refused": refused}


def two_devices() -> dict[str, Any]:
    """Invalid devices are rejected early."""
    mixed = torch.nn.Sequential(torch.nn.Linear(2, 2).to(GPU), torch.nn.Linear(2, 2))
    says = []
    for wrong in (
        lambda: DistributedDataParallel(mixed),
        lambda: DistributedDataParallel(torch.nn.Linear(2, 2).to(GPU), device_ids=[7]),
    ):
        try:
            wrong()
        except sparsesync.UnsupportedError as error:
            says.append(str(error))
    ddp = DistributedDataParallel(model(), scheme="balanced")
    loss_of(ddp, batch(ddp.rank, 0)).backward()  # registers the buckets
    session = ddp.synchronizer.session
    try:
        session.reduce(0, [torch.zeros(1)])
    except sparsesync.InputError as error:
        says.append(str(error))
    ddp.close()
    return {"says": says}


def main() -> None:
    case, folder = sys.argv[1:3]
    torch.cuda.set_device(0)
    dist.init_process_group("gloo")
    named = (parity, autocast, sparsified, announced, memory, synchronizations, side_stream, capture, two_devices)
    found = {each.__name__: each for each in named}[case]()
    (Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
