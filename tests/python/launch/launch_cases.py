"""The programs of launches_test.py: launch_cases.py CASE FOLDER. Each process writes its results to FOLDER/RANK.json."""

from __future__ import annotations

import ctypes
import datetime
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import sparsesync.torch
import torch
import torch.distributed as dist
from sparsesync.torch import DistributedDataParallel
from sparsesync.torch.process_group import transport_over

STEPS = 4
ROWS = 5000


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.sparse = torch.nn.Embedding(ROWS, 8, sparse=True)
        self.dense = torch.nn.Embedding(ROWS, 8)
        self.out = torch.nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.sparse(ids) + self.dense(ids))
        return result


def batch(rank: int, step: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(100 * rank + step)
    return torch.randint(0, ROWS, (32,), generator=source)


def loss_of(module: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(module(ids), ids % 3)


def train(ddp: DistributedDataParallel) -> None:
    optimizer = torch.optim.SGD(ddp.parameters(), 0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, batch(ddp.rank, step)).backward()
        optimizer.step()


def reference(workers: int) -> Model:
    """Runs the same training in one process that has all batches."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(workers):
            (loss_of(model, batch(rank, step)) / workers).backward()
        optimizer.step()
    return model


def compared(model: torch.nn.Module, expected: torch.nn.Module) -> dict[str, Any]:
    pairs = list(zip(model.parameters(), expected.parameters(), strict=True))
    return {
        "error": max(float((ours - theirs).detach().abs().max()) for ours, theirs in pairs),
        "bits": [hash(ours.detach().numpy().tobytes()) for ours, _ in pairs],
    }


def schemes() -> dict[str, Any]:
    """Trains with the most useful schemes, in the way the process was started."""
    found: dict[str, Any] = {}
    for scheme in ("dense_ring", "balanced", "owned", "all_gather", "recursive_doubling", "auto"):
        for announce in (False, True):
            if announce and scheme not in ("balanced", "owned"):
                continue
            ddp = DistributedDataParallel(Model(), scheme=scheme, announce=announce, deadline=60)
            train(ddp)
            expected = reference(ddp.world_size)
            found[f"{scheme} {announce}"] = compared(ddp.module, expected)
            told = ddp.statistics()
            found["transport"] = told["transport"]
            found["dense by"] = told["parameters"]["out.weight"]["scheme"]  # scheme of the last run
            found["rank"] = ddp.rank
            ddp.close()
    return found


def groups() -> dict[str, Any]:
    """Trains two models at once: one on all workers, one on two of them."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    everybody = DistributedDataParallel(Model(), scheme="balanced")
    pair = DistributedDataParallel(Model(), process_group=pairs[rank // 2], scheme="owned")
    optimizers = [torch.optim.SGD(each.parameters(), 0.5) for each in (everybody, pair)]
    for step in range(STEPS):
        for ddp, optimizer in zip((everybody, pair), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(ddp, batch(ddp.rank, step)).backward()
            optimizer.step()
    try:
        DistributedDataParallel(Model(), process_group=pairs[1 - rank // 2])
    except sparsesync.InputError as error:
        other = str(error)
    found = {
        "rank": rank,
        "sizes": [everybody.world_size, pair.world_size],
        "all": compared(everybody.module, reference(4)),
        "pair": compared(pair.module, reference(2)),
        "other": other,
    }
    everybody.close()
    pair.close()
    dist.destroy_process_group()
    return found


def groups_of_some() -> dict[str, Any]:
    """Trains models on some of three ranks beside one on all ranks. The program's groups are created in between, and one worker stays
    away.
    """
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    first, second = dist.new_group([0, 1]), dist.new_group([1, 2])
    found: dict[str, Any] = {"rank": rank}
    kept = []

    def trained(group: Any) -> dict[str, Any]:
        ddp = DistributedDataParallel(Model(), process_group=group, scheme="balanced", deadline=20)
        kept.append(ddp)
        train(ddp)
        return compared(ddp.module, reference(ddp.world_size))

    for group, ranks in ((first, (0, 1)), (second, (1, 2))):
        if rank in ranks:
            found[f"of {ranks[0]} and {ranks[1]}"] = trained(group)
    total = torch.ones(1)
    dist.all_reduce(total, group=dist.new_group([0, 1, 2], timeout=datetime.timedelta(seconds=20)))
    found["of the program's own group"] = float(total)
    if rank != 2:  # from here on torch's group names differ between ranks
        dist.new_group([0, 1], use_local_synchronization=True)
    found["all"] = trained(None)
    if rank != 2:
        began = time.monotonic()
        try:
            DistributedDataParallel(Model(), deadline=5)
        except sparsesync.DeadlineError as error:
            found["says"], found["seconds"] = str(error), time.monotonic() - began
    dist.barrier()
    for each in kept:
        each.close()
    dist.destroy_process_group()
    return found


def who() -> dict[str, Any]:
    """Runs in a torchrun that mpirun started."""
    ddp = DistributedDataParallel(torch.nn.Linear(2, 2), scheme="balanced", deadline=20)
    found = {"rank": ddp.rank, "workers": ddp.world_size, "transport": ddp.statistics()["transport"]}
    ddp(torch.ones(1, 2)).sum().backward()
    ddp.close()
    return found


def other_size() -> dict[str, Any]:
    """Each process has a torch.distributed group of size 1, but MPI has more processes."""
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        DistributedDataParallel(Model())
    except sparsesync.InputError as error:
        return {"rank": rank, "error": str(error)}
    return {"rank": rank}


def finalize() -> dict[str, Any]:
    """The program initializes and finalizes MPI itself."""
    mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
    multiple = 3
    mpi.MPI_Init_thread(None, None, multiple, ctypes.byref(ctypes.c_int()))
    ddp = DistributedDataParallel(Model())
    train(ddp)
    rank = ddp.rank
    time.sleep(rank)
    began = time.monotonic()
    ddp.close()
    status = mpi.MPI_Finalize()
    seconds = time.monotonic() - began
    try:
        DistributedDataParallel(Model())
    except sparsesync.Error as error:
        return {"rank": rank, "status": status, "says": str(error), "seconds": seconds}
    return {"rank": rank}


def hook() -> dict[str, Any]:
    """Uses torch's DistributedDataParallel with sparsesync's hook."""
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Embedding(ROWS, 8), torch.nn.Linear(8, 3))
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(0.01)
    expected = torch.nn.Sequential(torch.nn.Embedding(ROWS, 8), torch.nn.Linear(8, 3))
    expected.load_state_dict(model.state_dict())
    rank, workers = dist.get_rank(), dist.get_world_size()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    state = sparsesync.torch.CommHookState(model, scheme="balanced", deadline=60)
    ddp.register_comm_hook(None, sparsesync.torch.comm_hook(state))
    optimizers = [torch.optim.SGD(each.parameters(), 0.5) for each in (model, expected)]
    for step in range(STEPS + 2):
        for each in optimizers:
            each.zero_grad()
        loss_of(ddp, batch(rank, step)).backward()
        for other in range(workers):
            (loss_of(expected, batch(other, step)) / workers).backward()
        for each in optimizers:
            each.step()
    told = state.statistics()
    state.close()
    dist.destroy_process_group()
    return {"rank": rank, "all": compared(model, expected), "statistics": told}


def transports() -> dict[str, Any]:
    """Asks for each transport between hosts. Without UCX on worker 1 if SPARSESYNC_TEST_LACKS_UCX is set."""
    if "SPARSESYNC_TEST_LACKS_UCX" in os.environ and os.environ["RANK"] == "1":
        os.environ["SPARSESYNC_UCX_LIBRARY"] = "/missing/libucp.so.0"
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("sparsesync").addHandler(handler)
    found: dict[str, Any] = {}
    for asked in (None, "ucx", "gloo", "mpi"):
        try:
            ddp = DistributedDataParallel(Model(), scheme="balanced", deadline=60, transport=asked)
        except sparsesync.Error as error:
            found[str(asked)] = {"says": f"{type(error).__name__}: {error}"}
            continue
        train(ddp)
        told = ddp.statistics()
        result = compared(ddp.module, reference(ddp.world_size))
        dense = told["parameters"]["out.weight"]["scheme"]
        found[str(asked)] = {"kind": told["transport"], "dense by": dense, **result}
        found["rank"] = ddp.rank
        ddp.close()
    return {**found, "warnings": [line for line in lines if "Gloo" in line]}


def long_run() -> dict[str, Any]:
    """Runs SPARSESYNC_TEST_STEPS steps of changing sizes over UCX. Measures memory after the first tenth and at the end."""
    dist.init_process_group("gloo")
    world = dist.group.WORLD
    assert world is not None
    steps = int(os.environ["SPARSESYNC_TEST_STEPS"])
    random = np.random.default_rng(dist.get_rank())
    resident: list[int] = []
    with sparsesync.Session(sparsesync.ucx_over(transport_over(world, datetime.timedelta(seconds=60)), 60), deadline_s=60) as session:
        tensors = [sparsesync.TensorSpec("t", ROWS, 8, "f32")]
        plain = session.register_bucket("plain", tensors, "balanced")
        announced = session.register_bucket("announced", tensors, "owned", announce=True)
        for step in range(steps):
            rows = np.sort(random.choice(ROWS, int(random.integers(1, 400)), replace=False))
            gradient = [(rows, np.ones((len(rows), 8), np.float32))]
            work = [session.announce(announced, [rows])]
            for bucket in (plain, announced):
                work += [session.reduce(bucket, gradient), session.gather(bucket)]
            for each in work:
                session.wait(each)
            if step + 1 in (steps // 10, steps):
                ctypes.CDLL(None).malloc_trim(0)
                resident.append(int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        descriptors, threads = (len(os.listdir(f"/proc/self/{each}")) for each in ("fd", "task"))
    rank = dist.get_rank()
    dist.destroy_process_group()
    return {"rank": rank, "resident": resident, "descriptors": descriptors, "threads": threads}


def lost() -> dict[str, Any]:
    """Worker 1 dies during a step; the others get an error."""
    ddp = DistributedDataParallel(Model(), scheme="balanced", deadline=5)
    rank = ddp.rank
    train(ddp)
    if rank == 1:
        os._exit(0)
    began = time.monotonic()
    try:
        for _ in range(3):
            train(ddp)
    except sparsesync.Error as error:
        return {"rank": rank, "error": type(error).__name__, "says": str(error), "seconds": time.monotonic() - began}
    return {"rank": rank}


def main() -> None:
    if os.environ.get("SPARSESYNC_TEST_DEVICE") == "emulated":
        import emulated_device

        emulated_device.install()
    case, folder = sys.argv[1:3]
    cases = {
        "schemes": schemes,
        "groups": groups,
        "groups_of_some": groups_of_some,
        "other_size": other_size,
        "finalize": finalize,
        "who": who,
        "hook": hook,
        "transports": transports,
        "long_run": long_run,
        "lost": lost,
    }
    found = cases[case]()
    (Path(folder) / f"{found['rank']}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
