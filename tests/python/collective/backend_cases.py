"""The programs of backend_test.py: backend_cases.py CASE FOLDER. Each process writes its results to FOLDER/RANK.json."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sparsesync.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

ROWS = 3000
SHAPES = (((ROWS, 8), 1), ((ROWS,), 1), ((50, 60, 3), 2), ((20, 4, 5), 3), ((ROWS, 2, 3), 1), ((0, 8), 1), ((ROWS, 0), 1))
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)


def sparse(rank: int, shape: tuple[int, ...], sparse_dims: int, dtype: torch.dtype, entries: int = 40) -> torch.Tensor:
    """Makes a rank's tensor. Its values are small integers, so that sums are exact in every dtype. Some entries are repeated."""
    source = torch.Generator().manual_seed(1000 * rank + len(shape) + entries)
    indices = torch.stack([torch.randint(0, max(size, 1), (entries,), generator=source) for size in shape[:sparse_dims]])
    values = torch.randint(-4, 5, (entries, *shape[sparse_dims:]), generator=source).to(dtype)
    return torch.sparse_coo_tensor(indices, values, shape)


def expected(workers: int, shape: tuple[int, ...], sparse_dims: int, dtype: torch.dtype, entries: int = 40) -> torch.Tensor:
    return sum((sparse(rank, shape, sparse_dims, dtype, entries).to_dense() for rank in range(workers)), torch.zeros(shape, dtype=dtype))


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def sums() -> dict[str, Any]:
    """Sums tensors of every dtype and several shapes."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    wrong = []
    for dtype in DTYPES:
        for shape, sparse_dims in SHAPES:
            entries = 0 if 0 in shape[:sparse_dims] else 40
            given = sparse(rank, shape, sparse_dims, dtype, entries)
            dist.all_reduce(given)
            right = expected(workers, shape, sparse_dims, dtype, entries)
            if not given.is_coalesced() or given.shape != right.shape or not torch.equal(given.to_dense(), right):
                wrong.append([str(dtype), shape, sparse_dims])
    mean = sparse(rank, (ROWS, 8), 1, torch.float64)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    right = expected(workers, (ROWS, 8), 1, torch.float64) / workers
    if not torch.allclose(mean.to_dense(), right, rtol=1e-15):
        wrong.append(["mean"])
    empty = torch.sparse_coo_tensor(torch.empty((1, 0), dtype=torch.int64), torch.empty((0, 4)), (ROWS, 4))
    dist.all_reduce(empty)
    return {"wrong": wrong, "rows of an empty sum": empty._nnz()}


def in_flight() -> dict[str, Any]:
    """Starts many operations before it waits, the last one first. They have more shapes than a group keeps buckets for."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    shapes = [(500 + i % 70, 2) for i in range(300)]
    given = [sparse(rank, shape, 1, torch.float32, 5 + i % 3) for i, shape in enumerate(shapes)]
    works = [dist.all_reduce(each, async_op=True) for each in given]
    for work in reversed(works):
        work.wait()
    right = [expected(workers, shape, 1, torch.float32, 5 + i % 3) for i, shape in enumerate(shapes)]
    wrong = [i for i, (ours, theirs) in enumerate(zip(given, right, strict=True)) if not torch.equal(ours.to_dense(), theirs)]

    return {"wrong": wrong}


def delegated() -> dict[str, Any]:
    """Calls the collectives that Gloo runs."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    found: dict[str, bool] = {}

    def check(name: str, result: torch.Tensor, right: list[float]) -> None:
        found[name] = result.tolist() == right

    own = torch.tensor([float(rank), 1.0])
    total = own.clone()
    dist.all_reduce(total)
    check("all_reduce", total, [workers * (workers - 1) / 2, workers])
    several = [own.clone(), own.clone()]
    dist.all_reduce_coalesced(several)
    check("all_reduce_coalesced", torch.cat(several), 2 * total.tolist())
    sent = torch.full((2,), float(rank))
    dist.broadcast(sent, 1)
    check("broadcast", sent, [1.0, 1.0])
    reduced = own.clone()
    dist.reduce(reduced, 0)
    found["reduce"] = rank != 0 or reduced.tolist() == total.tolist()
    parts = [torch.empty(2) for _ in range(workers)]
    dist.all_gather(parts, own)
    check("all_gather", torch.stack(parts)[:, 0], [float(each) for each in range(workers)])
    whole = torch.empty(2 * workers)
    dist.all_gather_into_tensor(whole, own)
    check("all_gather_into_tensor", whole[::2], [float(each) for each in range(workers)])
    gathered = [torch.empty(2) for _ in range(workers)] if rank == 0 else None
    dist.gather(own, gathered)
    found["gather"] = gathered is None or torch.stack(gathered)[:, 0].tolist() == list(range(workers))
    part = torch.empty(1)
    dist.scatter(part, [torch.tensor([float(each)]) for each in range(workers)] if rank == 0 else None)
    check("scatter", part, [float(rank)])
    dist.reduce_scatter_tensor(part, torch.arange(float(workers)))
    check("reduce_scatter_tensor", part, [float(rank * workers)])
    swapped = torch.empty(workers)
    dist.all_to_all_single(swapped, torch.full((workers,), float(rank)))
    check("all_to_all_single", swapped, [float(each) for each in range(workers)])
    received = torch.empty(2)
    if rank == 0:
        dist.send(own + 5, 1, tag=3)
    elif rank == 1:
        dist.recv(received, 0, tag=3)
        check("send", received, [5.0, 6.0])
    dist.barrier()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=30))
    objects: list[Any] = [None] * workers
    dist.all_gather_object(objects, {"rank": rank})
    found["all_gather_object"] = objects == [{"rank": each} for each in range(workers)]
    return {"found": found}


def groups() -> dict[str, Any]:
    """Sums on all ranks, and on a group of some of them."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    some = dist.new_group([0, workers - 1], backend="sparsesync")
    given = sparse(rank, (ROWS, 4), 1, torch.float32)
    dist.all_reduce(given)
    wrong = not torch.equal(given.to_dense(), expected(workers, (ROWS, 4), 1, torch.float32))
    if rank in (0, workers - 1):
        own = sparse(rank, (ROWS, 4), 1, torch.float32)
        dist.all_reduce(own, group=some)
        right = sparse(0, (ROWS, 4), 1, torch.float32).to_dense() + sparse(workers - 1, (ROWS, 4), 1, torch.float32).to_dense()
        wrong = wrong or not torch.equal(own.to_dense(), right)
        dist.destroy_process_group(some)
    return {"wrong": wrong, "threads": _threads()}


def _threads() -> list[str]:
    import threading

    return sorted(each.name for each in threading.enumerate() if each.name.startswith("sparsesync"))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(ROWS, 8, sparse=True)
        self.others = torch.nn.EmbeddingBag(ROWS, 8, sparse=True, mode="sum")
        self.out = torch.nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.words(ids) + self.others(ids.unsqueeze(1)))
        return result


def trained(module: torch.nn.Module, ranks: list[int], scale: float) -> None:
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    for step in range(4):
        optimizer.zero_grad()
        for rank in ranks:
            source = torch.Generator().manual_seed(100 * rank + step)
            ids = torch.randint(0, ROWS, (32,), generator=source)
            (torch.nn.functional.cross_entropy(module(ids), ids % 3) * scale).backward()
        optimizer.step()


def ddp() -> dict[str, Any]:
    """Trains with torch's own DistributedDataParallel."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    reference = Model()
    trained(reference, list(range(workers)), 1 / workers)
    variants: list[dict[str, Any]] = [{}, *({name: True} for name in ("gradient_as_bucket_view", "static_graph", "find_unused_parameters"))]
    errors, bits = [], []
    for options in variants:
        model = Model()
        trained(torch.nn.parallel.DistributedDataParallel(model, **options), [rank], 1)
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            errors.append(float((ours - theirs).detach().abs().max()))
            bits.append(hash(ours.detach().numpy().tobytes()))
    return {"error": max(errors), "bits": bits}


def checkpoint() -> dict[str, Any]:
    """Saves a model with torch.distributed.checkpoint, and loads it into another one."""
    saved, loaded = Model(), Model()
    trained(torch.nn.parallel.DistributedDataParallel(saved), [dist.get_rank()], 1)
    folder = Path(sys.argv[2]) / "checkpoint"
    dcp.save(saved.state_dict(), checkpoint_id=folder)
    state = loaded.state_dict()
    dcp.load(state, checkpoint_id=folder)
    loaded.load_state_dict(state)
    return {"equal": all(torch.equal(a, b) for a, b in zip(saved.parameters(), loaded.parameters(), strict=True))}


def errors() -> dict[str, Any]:
    """Makes mistakes, each of which leaves the group usable."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    good = sparse(rank, (ROWS, 4), 1, torch.float32)
    found = {
        "dtype": error_of(lambda: dist.all_reduce(sparse(rank, (ROWS, 4), 1, torch.int8))),
        "operation": error_of(lambda: dist.all_reduce(good.clone(), op=dist.ReduceOp.MAX)),
        "shapes": error_of(lambda: dist.all_reduce(sparse(rank, (ROWS + rank, 4), 1, torch.float32))),
        "index": error_of(lambda: dist.all_reduce(_with_index(ROWS + 5 if rank == 1 else 5))),
    }
    dist.all_reduce(good)
    right = torch.equal(good.to_dense(), expected(workers, (ROWS, 4), 1, torch.float32))
    return {"found": found, "right": right}


def _with_index(index: int) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[index]]), torch.ones(1, 4), (ROWS, 4), check_invariants=False)


def lost() -> dict[str, Any]:
    """Rank 1 ends before an operation."""
    rank = dist.get_rank()
    dist.all_reduce(sparse(rank, (ROWS, 4), 1, torch.float32))
    if rank == 1:
        _write({"rank": rank})
        os._exit(0)
    began = time.monotonic()
    says = error_of(lambda: dist.all_reduce(sparse(rank, (ROWS, 4), 1, torch.float32)))
    again = error_of(lambda: dist.all_reduce(sparse(rank, (ROWS, 4), 1, torch.float32)))
    return {"says": says, "seconds": time.monotonic() - began, "again": again}


def starts() -> dict[str, Any]:
    """Fails to start, because ranks differ as SPARSESYNC_TEST_DIFFERS says."""
    differs, rank = os.environ["SPARSESYNC_TEST_DIFFERS"], int(os.environ["RANK"])
    backend, options = "sparsesync", sparsesync.torch.BackendOptions(scheme="balanced")
    if differs == "scheme" and rank == 1:
        options = sparsesync.torch.BackendOptions(scheme="owned")
    if differs == "backend" and rank == 1:
        backend, options = "gloo", None

    def start() -> None:
        dist.init_process_group(backend, pg_options=options, timeout=datetime.timedelta(seconds=20))

    said = error_of(start)
    return {"says": said, "rank": rank}


def _write(found: dict[str, Any]) -> None:
    (Path(sys.argv[2]) / f"{found['rank']}.json").write_text(json.dumps(found), encoding="utf-8")


def main() -> None:
    case = sys.argv[1]
    cases = {each.__name__: each for each in (sums, in_flight, delegated, groups, ddp, checkpoint, errors, lost)}
    if case == "starts":
        found = starts()
    else:
        dist.init_process_group(os.environ.get("SPARSESYNC_TEST_BACKEND", "sparsesync"))
        found = {"rank": dist.get_rank(), **cases[case]()}
        dist.destroy_process_group()
        found["threads left"] = _threads()
    _write(found)


if __name__ == "__main__":
    main()
