"""Workers that are threads of the test: models in one process, over sparsesync.torch.local_group()."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import sparsesync.torch
import torch

Result = TypeVar("Result")
_random = threading.Lock()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Makes torch draw the same numbers on all workers within the block. Workers share torch's generator."""
    with _random:
        torch.manual_seed(seed)
        yield


def run_workers(workers: int, work: Callable[[int, sparsesync.torch.LocalMember], Result], timeout: float = 60) -> list[Any]:
    """Runs work(rank, member) on each worker, for at most `timeout` seconds. Returns the results or exceptions."""
    members = sparsesync.torch.local_group(workers)
    results: list[Any] = [None] * workers

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank, members[rank])
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(workers)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(timeout)
        assert not each.is_alive(), "a worker hangs"
    return results


def good(results: list[Any]) -> list[Any]:
    """Returns the results if no worker raised."""
    for each in results:
        if isinstance(each, Exception):
            raise each
    return results


class Table(torch.nn.Module):
    """A parameter of the given shape whose gradient is chosen by the caller: forward takes its rows and values."""

    def __init__(self, rows: int, width: int, sparse: bool = True, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(rows, width, sparse=sparse, dtype=dtype, _weight=torch.zeros(rows, width, dtype=dtype))

    def forward(self, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return (self.table(rows) * values).sum()

    @property
    def gradient(self) -> torch.Tensor:
        given = self.table.weight.grad
        assert given is not None
        return given.to_dense() if given.is_sparse else given


def gradients_of(
    given: Sequence[Sequence[tuple[Sequence[int], Any]]], rows: int, width: int, *, sparse: bool = True, **options: Any
) -> list[list[torch.Tensor]]:
    """Synchronizes gradients of one table. `given` has rows and values [rows, width] for each worker and step. Returns the result for
    each worker and step as a dense tensor.
    """

    def work(rank: int, member: sparsesync.torch.LocalMember) -> list[torch.Tensor]:
        ddp = sparsesync.torch.DistributedDataParallel(
            Table(rows, width, sparse), process_group=member, **{"scheme": "balanced", **options}
        )
        found = []
        for indices, values in given[rank]:
            ddp.zero_grad()
            index = torch.tensor(indices, dtype=torch.int64)
            ddp(index, torch.tensor(values, dtype=torch.float32).reshape(len(index), width)).backward()
            found.append(ddp.module.gradient.clone())
        ddp.close()
        return found

    results: list[list[torch.Tensor]] = good(run_workers(len(given), work))
    return results


def sums_of(given: Sequence[Sequence[tuple[Sequence[int], Any]]], rows: int, width: int) -> list[torch.Tensor]:
    """Returns the sums over workers for each step, added row by row."""
    sums = []
    for step in range(len(given[0])):
        total = torch.zeros(rows, width)
        for of_worker in given:
            indices, values = of_worker[step]
            for row, value in zip(indices, torch.tensor(values, dtype=torch.float32).reshape(len(indices), width), strict=True):
                total[row] += value
        sums.append(total)
    return sums
