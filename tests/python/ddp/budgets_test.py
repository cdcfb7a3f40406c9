"""Memory budgets in training: a step that is too large takes more rounds, or all workers skip it and continue."""

from __future__ import annotations

from typing import Any

import pytest
import sparsesync
import torch
from sparsesync.torch import DistributedDataParallel, LocalMember
from workers import good, run_workers, seeded

ROWS, WIDTH = 100_000, 16
STEPS, LARGE = 6, 3


def model() -> torch.nn.Sequential:
    with seeded(3):
        return torch.nn.Sequential(
            torch.nn.Embedding(ROWS, WIDTH, sparse=True), torch.nn.Flatten(), torch.nn.Linear(4 * WIDTH, 2, bias=False)
        )


def trained(scheme: str, budgets: tuple[int | None, int | None], leaves_out: bool = False, **options: Any) -> list[Any]:
    """Trains two workers. Returns for each its weights, the errors of its steps, and the memory that it needed. One step touches more
    rows than the others; with `leaves_out` it is not run.
    """

    def work(rank: int, member: LocalMember) -> Any:
        errors: dict[int, Exception] = {}
        module = model()
        with DistributedDataParallel(module, member, scheme=scheme, memory_bytes=budgets[rank], deadline=60, **options) as ddp:
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            generator = torch.Generator().manual_seed(rank)
            for step in range(STEPS):
                ids = torch.randint(0, ROWS, (4000 if step == LARGE else 16, 4), generator=generator)
                if step == LARGE and leaves_out:
                    continue
                try:
                    optimizer.zero_grad()
                    ddp(ids).square().mean().backward()
                except sparsesync.Error as error:
                    errors[step] = error
                    assert all(each.grad is None for each in module.parameters())
                optimizer.step()
            return [each.detach().clone() for each in module.parameters()], errors, ddp.statistics()["memory_high_water_bytes"]

    return good(run_workers(2, work))


@pytest.mark.parametrize("scheme", ["all_gather", "recursive_doubling"])  # the memory of `auto` depends on its measurements
def test_a_step_that_is_too_large_goes_in_more_rounds(scheme: str) -> None:
    freely = trained(scheme, (None, None))
    budget = int(0.88 * freely[0][2])  # one round needs 0.91 of that, because bounded memory is not reserved ahead
    bounded = trained(scheme, (budget, None))
    assert bounded[0][2] <= budget
    for weights, errors, _ in bounded:
        assert errors == {}
        for each, other, of_first in zip(weights, freely[0][0], bounded[0][0], strict=True):
            assert torch.equal(each, of_first), "the same bits on all workers"
            torch.testing.assert_close(each, other)


@pytest.mark.parametrize("poor", [0, 1])
@pytest.mark.parametrize("scheme", ["owned", "balanced", "all_gather", "recursive_doubling", "split_all_gather"])
def test_a_step_that_cannot_be_is_left_out_by_all_workers(scheme: str, poor: int) -> None:
    budgets = (1_500_000, None) if poor == 0 else (None, 1_500_000)
    found = trained(scheme, budgets)
    expected = trained(scheme, (None, None), leaves_out=True)
    for rank, (weights, errors, memory) in enumerate(found):
        assert list(errors) == [LARGE], errors
        assert isinstance(errors[LARGE], sparsesync.BudgetError if rank == poor else sparsesync.RefusedError)
        for each, other in zip(weights, expected[rank][0], strict=True):
            torch.testing.assert_close(each, other)
        if rank == poor:
            assert memory <= 1_500_000
