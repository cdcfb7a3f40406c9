"""Models as users have them with torch's DistributedDataParallel, trained with sparsesync and by one process that averages by hand.

As a program it belongs to drop_in_test.py: drop_in_cases.py FOLDER HALF trains the cases of `usage_cases` and writes FOLDER/RANK.json.
"""

from __future__ import annotations

import copy
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sparsesync.torch
import torch
from sparsesync.torch import DistributedDataParallel, wrap_optimizer
from workers import seeded

ROWS = 2000
WIDTH = 16
STEPS = 6
KINDS = ("sparse", "rows", "dense", "sparsified")
HOWS = ("unused", "late", "alternate", "frozen", "one", "zero")
SCHEDULES = ("lazy", "sequential", "dear")


class Net(torch.nn.Module):
    """A table, and a layer that is used in all steps. `uses` is the factor of the table's output in a step, or None if the table is
    unused.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.rows = {"dense": 20, "sparsified": 300}.get(kind, ROWS)
        self.table = torch.nn.Embedding(self.rows, WIDTH, sparse=kind == "sparse")
        self.out = torch.nn.Linear(WIDTH, 3)

    def forward(self, ids: torch.Tensor, uses: float | None) -> torch.Tensor:
        hidden = torch.ones(len(ids), WIDTH) if uses is None else self.table(ids % self.rows).mean(1) * uses
        result: torch.Tensor = self.out(hidden)
        if self.kind == "sparsified" and uses is not None:  # every row gets a gradient
            result = result + self.table.weight.mean() * uses
        return result


def use_of(how: str, rank: int, step: int) -> float | None:
    """Returns the factor of the table's gradient on a worker in a step, or None if the worker does not use the table."""
    if how == "zero":  # all workers use it, and its gradient is zero
        return 1.0 if step < 3 else 0.0
    is_used = {
        "unused": step < 3,
        "late": step >= 2,
        "alternate": step % 2 == 0,
        "frozen": True,
        "one": step % 2 == 0 or rank == step % 3,
    }[how]
    return 1.0 if is_used else None


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda given: torch.optim.SGD(given, 0.1, momentum=0.9),
    "adagrad": lambda given: torch.optim.Adagrad(given, 0.1, lr_decay=0.1),
    "adam": lambda given: torch.optim.Adam(given, 0.05),
    "decay": lambda given: torch.optim.SGD(given, 0.1, weight_decay=0.1),
    "sparse_adam": lambda given: torch.optim.SparseAdam(given, 0.05),
}


def optimizers_of(net: Net, name: str) -> list[torch.optim.Optimizer]:
    if name == "sparse_adam":
        return [OPTIMIZERS[name](list(net.table.parameters())), torch.optim.SGD(net.out.parameters(), 0.1)]
    return [OPTIMIZERS[name](net.parameters())]


def is_case(kind: str, optimizer: str) -> bool:
    if kind == "sparse":
        return optimizer in ("momentum", "adagrad", "sparse_adam")
    return optimizer != "sparse_adam"


def usage_cases(half: int) -> Iterator[tuple[str, str, str, str]]:
    """Yields every second case: each launcher runs one half of them."""
    axes = (KINDS, tuple(OPTIMIZERS), HOWS, SCHEDULES)
    for places in itertools.product(*(range(len(axis)) for axis in axes)):
        kind, optimizer, how, schedule = (axis[place] for axis, place in zip(axes, places, strict=True))
        if is_case(kind, optimizer) and sum(places) % 2 == half:
            yield kind, optimizer, how, schedule


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randint(0, ROWS, (4, 3), generator=torch.Generator().manual_seed(100 * rank + step))


def averaged(parameters: list[torch.nn.Parameter], losses: Iterator[torch.Tensor], workers: int) -> None:
    """Sets each parameter's gradient to the mean over workers, or to None if no worker has one."""
    sums: list[torch.Tensor | None] = [None] * len(parameters)
    sparse = [False] * len(parameters)
    for loss in losses:
        loss.backward()
        for place, each in enumerate(parameters):
            if each.grad is None:
                continue
            sparse[place] = each.grad.is_sparse
            total = sums[place]
            sums[place] = each.grad.to_dense() if total is None else total + each.grad.to_dense()
            each.grad = None
    for place, each in enumerate(parameters):
        total = sums[place]
        if total is not None:
            each.grad = (total / workers).to_sparse(1) if sparse[place] else total / workers


def loss_of(module: torch.nn.Module, how: str, rank: int, step: int) -> torch.Tensor:
    result: torch.Tensor = module(batch(rank, step), use_of(how, rank, step)).square().mean()
    return result


def train(net: Net, optimizers: list[torch.optim.Optimizer], how: str, backward: Callable[[int], None]) -> list[bool]:
    """Runs all steps; `backward` computes a step's gradients. Returns for each step whether the table had a gradient."""
    found = []
    for step in range(STEPS):
        for each in optimizers:
            each.zero_grad()
        if how == "frozen" and step == 3:
            net.table.requires_grad_(False)
        backward(step)
        found.append(net.table.weight.grad is not None)
        for each in optimizers:
            each.step()
    return found


def by_hand(net: Net, optimizer: str, how: str, workers: int) -> list[bool]:
    """Trains the model in one process for all workers."""

    def backward(step: int) -> None:
        averaged(list(net.parameters()), (loss_of(net, how, rank, step) for rank in range(workers)), workers)

    return train(net, optimizers_of(net, optimizer), how, backward)


def by_ours(net: Net, group: Any, kind: str, optimizer: str, how: str, schedule: str, **options: Any) -> list[bool]:
    if kind == "sparsified":  # all elements are sent, so that the residual stays zero
        options["sparsifier"] = sparsesync.torch.TopK(density=1.0, parameters=["table.weight"])
    ddp = DistributedDataParallel(net, process_group=group, schedule=schedule, deadline=30, **{"scheme": "balanced", **options})
    optimizers = optimizers_of(net, optimizer)
    if schedule != "lazy":
        for each in optimizers:
            wrap_optimizer(each, ddp)

    def backward(step: int) -> None:
        loss_of(ddp, how, ddp.rank, step).backward()

    found = train(net, optimizers, how, backward)
    ddp.close()
    return found


def usage(group: Any, workers: int, case: tuple[str, str, str, str], **options: Any) -> str:
    """Trains one case. Returns a description of the difference; empty if there is none."""
    kind, optimizer, how, schedule = case
    with seeded(1):
        ours = Net(kind)
    expected = copy.deepcopy(ours)
    used = by_hand(expected, optimizer, how, workers)
    found = by_ours(ours, group, kind, optimizer, how, schedule, **options)
    problems = []
    if found != used:
        problems.append(f"the table has a gradient in steps {found}, by hand {used}")
    for (name, ours_now), expected_now in zip(ours.named_parameters(), expected.parameters(), strict=True):
        gap = float((ours_now - expected_now).detach().abs().max())
        if not gap < 1e-5:
            problems.append(f"{name} differs by {gap}")
    return "; ".join(problems)


def main() -> None:
    folder, half = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    alone = DistributedDataParallel(torch.nn.Linear(1, 1), scheme="balanced")
    rank, workers = alone.rank, alone.world_size
    alone.close()
    found = {" ".join(case): usage(None, workers, case) for case in usage_cases(half)}
    (folder / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
