"""If a worker rejects a step, all workers skip the same step, nothing of it remains, and the next step works."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sparsesync
import torch
from sparsesync import _native
from sparsesync.torch import DGC, CoarseGrained, DistributedDataParallel, LocalMember, module_state, wrap_optimizer
from sparsesync.torch.schedule.bucket import Bucket
from sparsesync.torch.schedule.scalar_allreduce import ScalarAllReduce, UsageCounts
from workers import good, run_workers, seeded

ROWS, WIDTH, STEPS, REFUSED = 50, 4, 6, 3


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with seeded(1):
            self.first = torch.nn.Embedding(ROWS, WIDTH, sparse=True)
            self.second = torch.nn.Embedding(ROWS, WIDTH, sparse=True)
            self.dense = torch.nn.Linear(WIDTH, 1)

    def forward(self, ids: torch.Tensor, uses_second: bool = True) -> torch.Tensor:
        rows = self.first(ids) + self.second(ids) if uses_second else self.first(ids)
        result: torch.Tensor = self.dense(rows).sum()
        return result


def refusal() -> Exception:
    error = sparsesync.RefusedError("worker 1 refuses: no memory")
    error.rank = 1
    return error


class Refusing:
    """Makes a method raise on all workers that call it while `now` is set. Each worker is a thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, of: type, name: str) -> None:
        self.calls = 0
        self._of_thread = threading.local()
        method = getattr(of, name)

        def call(held: Any, *given: Any) -> Any:
            result = method(held, *given)
            if self.now:
                self.calls += 1
                raise refusal()
            return result

        monkeypatch.setattr(of, name, call)

    @property
    def now(self) -> bool:
        return getattr(self._of_thread, "now", False)

    @now.setter
    def now(self, value: bool) -> None:
        self._of_thread.now = value


def batches(rank: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    while True:
        yield torch.randint(0, ROWS, (5,), generator=generator)


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [each.detach().clone() for each in model.parameters()]


def equal(results: list[Any]) -> None:
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            assert torch.equal(mine, theirs)


def test_refused_use_counts_are_refused_on_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Refusing(monkeypatch, UsageCounts, "are_used")

    def work(rank: int, member: LocalMember) -> Any:
        model, raised = Model(), 0
        with DistributedDataParallel(model, member, announce=True, scheme="balanced") as ddp:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step, ids in zip(range(STEPS), batches(rank), strict=False):
                refusing.now = step == REFUSED
                optimizer.zero_grad()
                try:
                    ddp(ids, uses_second=rank == 0 or step != REFUSED).backward()
                except sparsesync.RefusedError:
                    raised += 1
                    assert all(each.grad is None for each in model.parameters())
                optimizer.step()
        assert raised == 1
        return weights(model)

    equal(good(run_workers(2, work)))


def left_out(refusing: Refusing | None) -> list[list[torch.Tensor]]:
    """Returns the weights of two workers. One of their steps is rejected in the forward pass; without `refusing` it is not run."""

    def work(rank: int, member: LocalMember) -> Any:
        model = Model()
        with DistributedDataParallel(model, member, schedule="dear", scheme="balanced") as ddp:
            optimizer = wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), ddp)
            for step, ids in zip(range(STEPS), batches(rank), strict=False):
                for group in optimizer.param_groups:
                    group["lr"] = 0.1 / (1 + step)
                optimizer.zero_grad()
                loss = ddp(ids)
                if step == REFUSED and refusing is None:
                    continue
                loss.backward()
                ddp.clip_grad_norm_(0.5 if step == REFUSED else 5.0)
                optimizer.step()
                if step == REFUSED and refusing is not None:
                    refusing.now = True
                    while not ddp.synchronizer.all_there:  # each bucket is rejected separately
                        with pytest.raises(sparsesync.RefusedError):
                            ddp.synchronize()
                    refusing.now = False
        return weights(model)

    return good(run_workers(2, work))


def test_work_of_a_refused_step_is_not_done_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = left_out(None)
    found = left_out(Refusing(monkeypatch, Bucket, "wait"))
    equal(expected + found)


@pytest.mark.parametrize(
    "sparsifier",
    [DGC(density=0.2, least_elements=10), CoarseGrained(share=0.5, chunk=2, least_elements=10)],
    ids=["dgc", "coarse_grained"],
)
@pytest.mark.parametrize("step", [1, 2])
def test_a_step_whose_counts_are_refused_stays_in_the_residual(monkeypatch: pytest.MonkeyPatch, sparsifier: Any, step: int) -> None:
    refusing = Refusing(monkeypatch, ScalarAllReduce, "sums")

    def work(rank: int, member: LocalMember) -> Any:
        with seeded(3):
            model = torch.nn.Linear(8, 8)
        with DistributedDataParallel(model, member, sparsifier=sparsifier, scheme="balanced") as ddp:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for now in range(8):
                optimizer.zero_grad()
                x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * now + rank))
                refusing.now = now == step
                try:
                    ddp(x).square().mean().backward()
                    assert now != step
                except sparsesync.RefusedError:
                    assert now == step
                    assert all(each.grad is None for each in model.parameters())
                optimizer.step()
            told = ddp.statistics()["sparsifier"]
        assert (told["step"], told["skipped_steps"]) == (7, 1)
        return weights(model)

    equal(good(run_workers(2, work)))
    assert refusing.calls > 0


def test_a_worker_without_inputs_goes_on_as_the_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Refusing(monkeypatch, Bucket, "wait")

    def work(rank: int, member: LocalMember) -> Any:
        model = Model()
        refusing.now = False
        with DistributedDataParallel(model, member, scheme="balanced") as ddp:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            seen = ddp.synchronizer._synchronize_rest
            step = 0

            def counted() -> None:
                nonlocal step
                refusing.now = step == REFUSED
                step += 1
                seen()

            monkeypatch.setattr(ddp.synchronizer, "_synchronize_rest", counted)
            with ddp.join():
                for _, ids in zip(range(STEPS if rank == 0 else 2), batches(rank), strict=False):
                    optimizer.zero_grad()
                    try:
                        ddp(ids).backward()
                    except sparsesync.RefusedError:
                        continue
                    optimizer.step()
            assert step == STEPS
        return weights(model)

    equal(good(run_workers(2, work)))
    assert refusing.calls > 0


def test_buffers_whose_step_is_refused_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = threading.local()
    wait = module_state.wait_for_step

    def refusing(session: _native.Session, tickets: Any) -> None:
        wait(session, tickets)
        if getattr(refused, "now", False):
            refused.now = False
            raise refusal()

    monkeypatch.setattr(module_state, "wait_for_step", refusing)

    def work(rank: int, member: LocalMember) -> Any:
        with seeded(3):
            model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        with DistributedDataParallel(model, member, schedule="dear") as ddp:
            optimizer = wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), ddp)
            for step in range(STEPS):
                optimizer.zero_grad()
                x = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + rank))
                refused.now = step == REFUSED
                try:
                    ddp(x).sum().backward()
                    assert step != REFUSED
                except sparsesync.RefusedError:
                    continue
                optimizer.step()
            ddp.eval()
            ddp(torch.ones(1, 3))
            return [each.clone() for each in model.state_dict().values()]

    equal(good(run_workers(2, work)))


def test_missing_memory_is_an_error_of_sparsesync() -> None:
    with pytest.raises(sparsesync.BudgetError, match="out of memory"):
        _native.decode_indices("all", b"", 2**62, 2**62)
