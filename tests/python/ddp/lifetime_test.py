"""Tests wrapping a module again, dropping and closing wrappers, and gradients that bypass a wrapper."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync.torch  # noqa: E402 (needs torch)
from bindings_support import expect_tasks, tasks  # noqa: E402 (needs torch)
from sparsesync.torch import DistributedDataParallel, TopK, wrap_optimizer  # noqa: E402 (needs torch)
from sparsesync.torch.schedule.deferred_params import Pending  # noqa: E402 (needs torch)
from torch.utils.checkpoint import checkpoint  # noqa: E402 (needs torch)
from workers import good, run_workers, seeded  # noqa: E402 (needs torch)

SCHEDULES = ("lazy", "dear")
OPTIONS: dict[str, dict[str, Any]] = {
    "lazy": {},
    "dear": {"schedule": "dear"},
    "announce": {"announce": True},
    "sparsifier": {"sparsifier": TopK(density=1.0, least_elements=1, parameters=["2.weight"])},
}


def model() -> torch.nn.Sequential:
    with seeded(3):
        return torch.nn.Sequential(torch.nn.Embedding(50, 8, sparse=True), torch.nn.Flatten(), torch.nn.Linear(24, 4))


def ids(rank: int, step: int) -> torch.Tensor:
    return torch.randint(0, 50, (6, 3), generator=torch.Generator().manual_seed(100 * rank + step))


def train(ddp: torch.nn.Module, rank: int, steps: range, optimizer: torch.optim.Optimizer | None = None) -> None:
    optimizer = optimizer or torch.optim.SGD(ddp.parameters(), 0.1)
    for step in steps:
        optimizer.zero_grad()
        ddp(ids(rank, step)).square().mean().backward()
        optimizer.step()


def by_hand(module: torch.nn.Module, steps: range) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for step in steps:
        optimizer.zero_grad()
        for rank in range(2):
            (module(ids(rank, step)).square().mean() / 2).backward()
        optimizer.step()
    return {name: each.clone() for name, each in module.state_dict().items()}


def expect_as_by_hand(found: list[dict[str, torch.Tensor]], expected: dict[str, torch.Tensor]) -> None:
    for name, value in expected.items():
        assert all(torch.equal(each[name], found[0][name]) for each in found), name
        assert torch.allclose(found[0][name], value, atol=1e-6), name


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.clone() for name, each in module.state_dict().items()}


# ---- Wrapping again.


@pytest.mark.parametrize("how", ["dropped", "beside", "closed", "within a block", "closed twice"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_module_is_wrapped_again(options: dict[str, Any], how: str) -> None:
    groups = [sparsesync.torch.local_group(2) for _ in range(2)]

    def work(rank: int, _: Any) -> dict[str, torch.Tensor]:
        module = model()
        first: Any = DistributedDataParallel(module, process_group=groups[0][rank], scheme="balanced", **options)
        with first if how == "within a block" else contextlib.nullcontext():
            train(first, rank, range(2))
        if how in ("closed", "closed twice"):
            first.close()
        if how == "closed twice":
            first.close()
        if how == "dropped":
            del first
        second = DistributedDataParallel(module, process_group=groups[1][rank], scheme="balanced", **options)
        train(second, rank, range(2, 4))
        second.close()
        return state_of(module)

    expect_as_by_hand(good(run_workers(2, work)), by_hand(model(), range(4)))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_module_trains_alone_once_its_wrapper_is_dropped(options: dict[str, Any]) -> None:
    """The wrapped optimizer also continues. A transfer that the last forward pass started has completed."""

    def work(rank: int, member: Any) -> dict[str, torch.Tensor]:
        module = model()
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", **options)
        optimizer = wrap_optimizer(torch.optim.SGD(module.parameters(), 0.1), ddp)
        train(ddp, rank, range(2), optimizer)
        del ddp
        found = state_of(module)
        train(module, rank, range(2, 4), optimizer)
        alone = model()
        alone.load_state_dict(found)
        train(alone, rank, range(2, 4))
        assert all(torch.equal(state_of(alone)[name], each) for name, each in module.state_dict().items())
        return found

    expect_as_by_hand(good(run_workers(2, work)), by_hand(model(), range(2)))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_dropped_wrapper_frees_all_it_has(options: dict[str, Any]) -> None:
    def one() -> Any:
        module = model()
        ddp = DistributedDataParallel(module, process_group="alone", scheme="balanced", **options)
        optimizer = wrap_optimizer(torch.optim.SGD(module.parameters(), 0.1), ddp)
        train(ddp, 0, range(3), optimizer)
        return weakref.ref(module[0].weight), weakref.ref(ddp), weakref.ref(ddp.synchronizer)

    one()
    gc.collect()
    threads, descriptors = tasks(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        references = one()
        gc.collect()
        assert [each() for each in references] == [None] * 3
    expect_tasks(threads)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        return given.clone()

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("of the program")


@pytest.mark.parametrize("who", ["all", "one"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_module_is_wrapped_again_after_backward_failed(options: dict[str, Any], who: str) -> None:
    """Follows the error message, also if the other workers still wait in that pass."""
    groups = [sparsesync.torch.local_group(2) for _ in range(2)]

    class Failing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()
            self.inner.append(torch.nn.Linear(4, 4))

        def forward(self, given: torch.Tensor, fails: bool) -> torch.Tensor:
            hidden = self.inner[:3](given)
            result: torch.Tensor = self.inner[3](_Fails.apply(hidden) if fails else hidden)
            return result

    def work(rank: int, _: Any) -> dict[str, torch.Tensor]:
        module = Failing()
        with seeded(5):
            module.inner[3].reset_parameters()
        more = {**options}
        if "sparsifier" in more:
            more["sparsifier"] = TopK(density=1.0, least_elements=1, parameters=["inner.2.weight"])
        ddp = DistributedDataParallel(module, process_group=groups[0][rank], scheme="balanced", deadline=20, **more)
        for _ in range(2):
            module.zero_grad()
            ddp(ids(rank, 0), False).sum().backward()
        module.zero_grad()
        with pytest.raises((ZeroDivisionError, sparsesync.Error)):
            ddp(ids(rank, 1), who == "all" or rank == 1).sum().backward()
            ddp.synchronize()  # with "dear", backward may end before the other worker fails
        if (who, rank) == ("one", 0):
            assert not any(isinstance(each, Pending) for each in module.parameters()), "nothing waits for the lost worker"
        if who == "all":
            with pytest.raises(sparsesync.OrderError, match="wrap the module again"):
                ddp(ids(rank, 1), False)
        ddp = DistributedDataParallel(module, process_group=groups[1][rank], scheme="balanced", deadline=20, **more)
        module.zero_grad()
        ddp(ids(rank, 2), False).sum().backward()
        found = {name: each.grad.to_dense().clone() for name, each in module.named_parameters()}
        ddp.close()
        return found

    first, second = good(run_workers(2, work))
    assert all(torch.equal(first[name], second[name]) for name in first)


# ---- Gradients that bypass the wrapper.


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("how", ["module", "module within no_sync", "method"])
def test_gradients_that_bypass_the_wrapper_stay_local(how: str, schedule: str) -> None:
    """Gradients that bypass the wrapper stay local, as in torch's DDP: for example those of a discriminator in the generator's step."""

    def work(rank: int, member: Any) -> dict[str, torch.Tensor]:
        module = model()
        expected = model()
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", schedule=schedule)
        optimizer = wrap_optimizer(torch.optim.SGD(module.parameters(), 0.1), ddp)
        for step in range(4):
            optimizer.zero_grad()
            ddp(ids(rank, step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            expected.load_state_dict(module.state_dict())
            expected.zero_grad()
            context = ddp.no_sync() if how == "module within no_sync" else contextlib.nullcontext()
            with context:
                output = module[2](module[1](module[0](ids(rank, step)))) if how == "method" else ddp.module(ids(rank, step))
                output.sum().backward()
            expected(ids(rank, step)).sum().backward()
            for ours, theirs in zip(module.parameters(), expected.parameters(), strict=True):
                assert torch.allclose(ours.grad.to_dense(), theirs.grad.to_dense())
        found = state_of(module)
        ddp.close()
        return found

    expect_as_by_hand(good(run_workers(2, work)), by_hand(model(), range(4)))


@pytest.mark.parametrize("how", ["both forwards first", "once more"])
def test_backward_of_a_step_that_is_over_is_an_error(how: str) -> None:
    def work(rank: int, member: Any) -> None:
        ddp = DistributedDataParallel(model(), process_group=member, scheme="balanced", deadline=10)
        for step in range(3):
            one, two = ddp(ids(rank, step)).sum(), ddp(ids(rank, step + 1)).sum()
            if step == 2:
                (one if how == "both forwards first" else two).backward(retain_graph=True)
                with pytest.raises(sparsesync.OrderError, match=r"within no_sync\(\)"):
                    two.backward()
            else:
                (one + two).backward()
        ddp.zero_grad()
        with ddp.no_sync():  # advised by the error message
            ddp(ids(rank, 0)).sum().backward()
        ddp(ids(rank, 1)).sum().backward()
        ddp.close()

    good(run_workers(2, work))


class Pair(torch.nn.Module):
    def __init__(self, shared: torch.nn.Module, seed: int) -> None:
        super().__init__()
        self.shared = shared
        with seeded(seed):
            self.head = torch.nn.Linear(4, 3)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.shared(given))
        return result


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("gradient", ["mean", "sum"])
@pytest.mark.parametrize("how", ["in turn", "both forwards first", "summed"])
def test_a_layer_in_two_wrapped_models(how: str, gradient: str, schedule: str) -> None:
    groups = [sparsesync.torch.local_group(2) for _ in range(2)]

    def losses(a: Any, b: Any, rank: int, step: int) -> Iterator[Callable[[], torch.Tensor]]:
        yield lambda: a(ids(rank, step)).square().mean()
        yield lambda: b(ids(rank, step + 10)).square().mean()

    def pair() -> tuple[Pair, Pair]:
        shared = model()
        return Pair(shared, 1), Pair(shared, 2)

    def all_of(a: Pair, b: Pair) -> list[torch.nn.Parameter]:
        return [*a.parameters(), *b.head.parameters()]

    def work(rank: int, _: Any) -> dict[str, torch.Tensor]:
        a, b = pair()
        ddp_a, ddp_b = (
            DistributedDataParallel(each, process_group=group[rank], scheme="balanced", gradient=gradient, schedule=schedule)
            for each, group in zip((a, b), groups, strict=True)
        )
        optimizer = torch.optim.SGD(all_of(a, b), 0.02)
        if schedule == "dear":
            wrap_optimizer(optimizer, ddp_a)
        for step in range(4):
            optimizer.zero_grad()
            made = losses(ddp_a, ddp_b, rank, step)
            if how == "in turn":
                for each in made:
                    each().backward()
                    if gradient == "sum":  # an existing gradient would be summed again
                        optimizer.step()
                        optimizer.zero_grad()
            elif how == "summed":
                sum(each() for each in made).backward()
            else:
                one, two = (each() for each in made)
                one.backward()
                if gradient == "sum":
                    optimizer.step()
                    optimizer.zero_grad()
                    continue
                two.backward()
            optimizer.step()
        found = {str(place): each.detach().clone() for place, each in enumerate(all_of(a, b))}
        ddp_a.close()
        ddp_b.close()
        return found

    a, b = pair()
    optimizer = torch.optim.SGD(all_of(a, b), 0.02)
    scale = 2 if gradient == "mean" else 1
    for step in range(4):
        optimizer.zero_grad()
        parts = [losses(a, b, rank, step) for rank in range(2)]
        for place in range(2):
            if how == "both forwards first" and gradient == "sum" and place == 1:
                continue
            for part in parts:
                (next(part)() / scale).backward()
            if gradient == "sum" and how != "summed":
                optimizer.step()
                optimizer.zero_grad()
        optimizer.step()
    expected = {str(place): each.detach().clone() for place, each in enumerate(all_of(a, b))}
    expect_as_by_hand(good(run_workers(2, work)), expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("how", ["last", "all", "twice", "within"])
def test_reentrant_checkpoints(how: str, schedule: str) -> None:
    class Blocks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with seeded(1):
                self.table = torch.nn.Embedding(50, 8)
                self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(3))
                self.out = torch.nn.Linear(8, 2)

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            hidden = self.table(given).mean(1)
            a, b, c = self.blocks
            if how == "last":
                return checkpoint(lambda h: self.out(c(h)), b(a(hidden)), use_reentrant=True)
            if how == "all":
                return checkpoint(lambda h: self.out(c(h)), checkpoint(lambda h: b(a(h)), hidden, use_reentrant=True), use_reentrant=True)
            for block in (a, b, c, *((a, a) if how == "twice" else ())):
                hidden = checkpoint(block, hidden, use_reentrant=True)
            return self.out(hidden)

    def work(rank: int, member: Any) -> dict[str, torch.Tensor]:
        module = Blocks()
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", schedule=schedule, bucket_cap_mb=1e-4)
        train(ddp, rank, range(5), wrap_optimizer(torch.optim.SGD(module.parameters(), 0.1), ddp))
        found = state_of(module)
        ddp.close()
        return found

    # torch has one CPU thread for the backward passes of each calling thread.
    expect_as_by_hand(good(run_workers(2, work)), by_hand(Blocks(), range(5)))


def test_join_within_join_is_an_error() -> None:
    groups = [sparsesync.torch.local_group(2) for _ in range(2)]

    def work(rank: int, _: Any) -> None:
        a, b = (DistributedDataParallel(model(), process_group=group[rank], scheme="balanced", deadline=10) for group in groups)
        with a.join(), pytest.raises(sparsesync.OrderError, match="wrap one torch.nn.Module that holds both"), b.join():
            pass
        with a.join(), pytest.raises(sparsesync.OrderError, match="within another join"), a.join():
            pass
        both = torch.nn.ModuleDict({"a": a.module, "b": b.module})
        a.close()
        b.close()
        both.forward = lambda given: both["a"](given).sum() + both["b"](given).sum()  # type: ignore[method-assign]
        return copy.copy(both)

    modules = good(run_workers(2, work))

    def follow(rank: int, member: Any) -> dict[str, torch.Tensor]:  # follows the error message
        ddp = DistributedDataParallel(modules[rank], process_group=member, scheme="balanced", deadline=10)
        with ddp.join():
            for step in range(1 + rank):
                ddp.zero_grad()
                ddp(ids(rank, step)).backward()
        ddp.close()
        return state_of(modules[rank])

    first, second = good(run_workers(2, follow))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert threading.active_count() < 50


# ---- Copies of a wrapper.


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "averaged"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_copy_has_the_module_and_is_not_connected(options: dict[str, Any], how: str) -> None:
    groups = [sparsesync.torch.local_group(2) for _ in range(2)]

    def work(rank: int, _: Any) -> dict[str, torch.Tensor]:
        ddp = DistributedDataParallel(model(), process_group=groups[0][rank], scheme="balanced", **options)
        train(ddp, rank, range(2))
        made: Any
        if how == "averaged":
            averaged = torch.optim.swa_utils.AveragedModel(ddp)
            averaged.update_parameters(ddp)
            made = averaged.module
        else:
            made = copy.deepcopy(ddp) if how == "deepcopy" else pickle.loads(pickle.dumps(ddp))
        ddp.close()
        assert isinstance(made, DistributedDataParallel)
        assert all(torch.equal(each, state_of(made.module)[name]) for name, each in state_of(ddp.module).items())
        with torch.no_grad():
            assert torch.equal(made.eval()(ids(rank, 9)), ddp.module.eval()(ids(rank, 9)))
        made.train().zero_grad()
        made.load_state_dict(made.state_dict())
        with pytest.raises(sparsesync.OrderError, match="wrap its `module`"):
            made(ids(rank, 9))
        with pytest.raises(sparsesync.OrderError, match="is a copy"):
            made.statistics()
        made.close()
        again = DistributedDataParallel(made.module, process_group=groups[1][rank], scheme="balanced", **options)
        train(again, rank, range(2, 4))
        again.close()
        return state_of(made.module)

    expect_as_by_hand(good(run_workers(2, work)), by_hand(model(), range(4)))
