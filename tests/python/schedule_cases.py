"""Shared by the tests of schedules in training: a model, and its training with workers and with torch alone."""

from __future__ import annotations

import copy

import sparsesync
import torch
from sparsesync.torch import DistributedDataParallel
from workers import good, run_workers, seeded

WORKERS = 3
SCHEDULES = [name for name, _ in sparsesync.schedules()]


class Model(torch.nn.Module):
    """A sparse table, a dense one, and layers. Layers are used twice, in another order than they are named, or not in every step."""

    def __init__(self):
        super().__init__()
        with seeded(7):
            self.last = torch.nn.Linear(8, 3)
            self.table = torch.nn.Embedding(500, 8, sparse=True)
            self.other = torch.nn.Embedding(4000, 8)
            self.twice = torch.nn.Linear(8, 8)
            self.norm = torch.nn.BatchNorm1d(8)
            self.sometimes = torch.nn.Linear(8, 8)
            self.never = torch.nn.Linear(2, 2)

    def forward(self, ids, step=0):
        x = self.table(ids) + self.other(ids)
        x = self.norm(self.twice(torch.relu(self.twice(x))))
        if step % 3 != 1:
            x = self.sometimes(x)
        return self.last(x)


class Turning(torch.nn.Module):
    """Uses its layers in another order from the fourth step on."""

    def __init__(self):
        super().__init__()
        with seeded(7):
            self.table = torch.nn.Embedding(500, 8)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
            self.last = torch.nn.Linear(8, 3)

    def forward(self, ids, step=0):
        x = self.table(ids)
        for each in self.layers if step < 4 else reversed(self.layers):
            x = torch.relu(each(x))
        return self.last(x)


def batch(rank, step, size=12):
    source = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randint(0, 500, (size,), generator=source)


def loss_of(module, ids, step):
    return torch.nn.functional.cross_entropy(module(ids, step), ids % 3)


def dense_groups(module):
    """Returns several parameter groups with different learning rates. The sparse table belongs to another optimizer."""
    others = [each for name, each in module.named_parameters() if name != "table.weight"]
    return [{"params": others[:3]}, {"params": others[3:5], "lr": 0.02}, {"params": others[5:]}]


def optimizers_of(module, make):
    return [make(dense_groups(module)), torch.optim.SparseAdam([module.table.weight], lr=0.01)]


def sgd(groups):
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01)


def train(ddp, rank, optimizers, steps=5, schedulers=()):
    for step in range(steps):
        for each in optimizers:
            each.zero_grad()
        loss_of(ddp, batch(rank, step), step).backward()
        for each in optimizers:
            each.step()
        for each in schedulers:
            each.step()


def weights(module):
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def expect_equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def run(work, schedule, **options):
    """Runs work(rank, ddp, module) on each worker, with identical modules. Returns the results."""

    def on_worker(rank, member):
        module = Model()
        ddp = DistributedDataParallel(module, process_group=member, schedule=schedule, **{"scheme": "balanced", **options})
        result = work(rank, ddp, module)
        ddp.close()
        return result

    return good(run_workers(WORKERS, on_worker))


EACH_BY_ITSELF = 1e-9  # MiB, for one parameter per bucket: the bits of sums depend on their bucket


def expect_as_sequential(work, others=("dear", "auto"), **options):
    """Compares each worker's results with those of the schedule "sequential". They have the same bits if buckets are equal; otherwise
    they are equal except for rounding.
    """
    expected = run(work, "sequential", **options)
    for schedule, cap in [("sequential", None), ("dear", EACH_BY_ITSELF)]:
        for rank, result in enumerate(run(work, schedule, bucket_cap_mb=cap, **options)):
            expect_equal(result, expected[rank])
    for schedule in others:
        for rank, result in enumerate(run(work, schedule, **options)):
            for name, value in expected[rank].items():
                assert torch.allclose(result[name], value, rtol=1e-3, atol=1e-5), name


def train_by_torch(module, optimizers, steps, before_step=lambda: None):
    """Trains with torch alone. Gradients are means over the workers' batches, added one by one."""
    for step in range(steps):
        for each in optimizers:
            each.zero_grad()
        buffers = copy.deepcopy(dict(module.named_buffers()))
        for rank in range(WORKERS):
            with torch.no_grad():  # each worker has the buffers of worker 0
                for name, each in module.named_buffers():
                    each.copy_(buffers[name])
            (loss_of(module, batch(rank, step), step) / WORKERS).backward()
            if rank == 0:
                kept = copy.deepcopy(dict(module.named_buffers()))
        with torch.no_grad():
            for name, each in module.named_buffers():
                each.copy_(kept[name])
        before_step()
        for each in optimizers:
            each.step()


def reference(optimizers_of_module, steps=5):
    module = Model()
    train_by_torch(module, optimizers_of_module(module), steps)
    return weights(module)
