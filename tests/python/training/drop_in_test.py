"""Programs for torch's DistributedDataParallel train with equal values with sparsesync, and no difference is silent."""
# ctest: COST 25 SLOW launched

from __future__ import annotations

import collections
import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import drop_in_cases  # noqa: E402 (needs torch)
import launching  # noqa: E402 (needs nothing, but what it starts does)
import sparsesync.torch  # noqa: E402 (needs torch)
from sparsesync.torch import (  # noqa: E402 (needs torch)
    DGC,
    CoarseGrained,
    DistributedDataParallel,
    TopK,
    wrap_optimizer,
)
from workers import good, run_workers, seeded  # noqa: E402 (needs torch)

LAUNCHERS = {"torchrun": launching.torchrun, "mpirun": launching.mpirun}


# ---- Parameters that no worker uses.


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_unused_parameters_stay_as_they_are_launched(launcher: str, tmp_path: Path) -> None:
    half = list(LAUNCHERS).index(launcher)
    found = launching.outcomes(LAUNCHERS[launcher](2, Path(drop_in_cases.__file__), tmp_path, half), tmp_path, 2)
    assert len(found[0]) == len(list(drop_in_cases.usage_cases(half))) > 100
    for of_worker in found:
        assert {case: wrong for case, wrong in of_worker.items() if wrong} == {}


@pytest.mark.parametrize("announce", [False, True])
@pytest.mark.parametrize("schedule", drop_in_cases.SCHEDULES)
@pytest.mark.parametrize("scheme", ["owned", "all_gather", "dense_ring"])
def test_unused_tables_by_every_kind_of_scheme(scheme: str, schedule: str, announce: bool) -> None:
    if announce and scheme != "owned":
        pytest.skip("this scheme does not prefetch indices")
    kinds = (("sparse", "adagrad"), ("rows", "momentum"))
    cases = [(*kind, how, schedule) for kind in kinds for how in drop_in_cases.HOWS]
    groups = [sparsesync.torch.local_group(3) for _ in cases]

    def work(rank: int, _: object) -> list[str]:
        return [
            drop_in_cases.usage(group[rank], 3, case, scheme=scheme, announce=announce)
            for group, case in zip(groups, cases, strict=True)
        ]

    for found in good(run_workers(3, work)):
        assert found == [""] * len(found)


@pytest.mark.parametrize("schedule", ["lazy", "dear"])
@pytest.mark.parametrize("how", drop_in_cases.HOWS)
def test_momentum_of_a_sparsifier_waits_with_its_parameter(how: str, schedule: str) -> None:
    """All elements are sent, so only velocities are kept. They equal SGD's momentum."""
    expected = drop_in_cases.Net("sparsified")
    start = copy.deepcopy(expected)
    drop_in_cases.by_hand(expected, "momentum", how, 2)

    def work(rank: int, member: Any) -> dict[str, Any]:
        net = copy.deepcopy(start)
        sparsifier = DGC(density=1.0, momentum_masking=False)
        ddp = DistributedDataParallel(net, process_group=member, scheme="balanced", schedule=schedule, sparsifier=sparsifier)
        (optimizer,) = drop_in_cases.optimizers_of(net, "momentum")
        wrap_optimizer(optimizer, ddp)
        for step in range(drop_in_cases.STEPS):
            optimizer.zero_grad()
            if how == "frozen" and step == 3:
                net.table.requires_grad_(False)
            drop_in_cases.loss_of(ddp, how, rank, step).backward()
            optimizer.step()
        ddp.close()
        return dict(net.state_dict())

    for found in good(run_workers(2, work)):
        for name, value in expected.state_dict().items():
            assert torch.allclose(found[name], value, atol=1e-5), name


@pytest.mark.parametrize("schedule", ["lazy", "dear"])
@pytest.mark.parametrize("sparsifier", [TopK(density=0.02), CoarseGrained(share=0.2, chunk=64)], ids=["elements", "chunks"])
@pytest.mark.parametrize("how", ["frozen", "unused"])
def test_the_residual_of_an_unused_parameter_waits(how: str, sparsifier: Any, schedule: str) -> None:
    """The residual is neither applied nor lost while no worker uses the parameter. It is sent when a worker uses it again."""

    def work(rank: int, member: Any) -> None:
        with seeded(1):
            net = drop_in_cases.Net("sparsified")
        start = net.table.weight.detach().clone()
        ddp = DistributedDataParallel(
            net, process_group=member, scheme="balanced", schedule=schedule, gradient="sum", sparsifier=sparsifier
        )
        optimizer = wrap_optimizer(torch.optim.SGD(net.parameters(), 1.0), ddp)
        total = torch.zeros_like(start)
        moved = []
        for step in range(9):
            optimizer.zero_grad()
            rests = step in (3, 4, 5)
            if how == "frozen":
                net.table.requires_grad_(not rests)
            loss = ddp(drop_in_cases.batch(rank, step), None if rests and how == "unused" else 1.0).square().mean()
            handle = None if rests else net.table.weight.register_hook(lambda gradient: (total.add_(gradient), None)[1])
            loss.backward()
            if handle:
                handle.remove()
            assert (net.table.weight.grad is None) == rests
            before = net.table.weight.detach().clone()
            optimizer.step()
            moved.append(not torch.equal(net.table.weight, before))
        assert moved == [step not in (3, 4, 5) for step in range(9)]
        owed = ddp.state_dict()["sparsesync.residual.table.weight"].view_as(total)
        ddp.close()
        return total, owed, start - net.table.weight.detach()

    found = good(run_workers(2, work))
    total, owed = (sum(each[place] for each in found) for place in (0, 1))
    assert owed.count_nonzero() > 0
    for _, _, applied in found:
        assert torch.allclose(applied + owed, total, atol=1e-5)


# ---- Parameters and buffers that differ between workers.


class Sharded(torch.nn.Module):
    """A shard of a table beside a layer that workers share."""

    def __init__(self, rank: int, rows: int) -> None:
        super().__init__()
        self.shard = torch.nn.Embedding(rows, 4, sparse=True, _weight=torch.full((rows, 4), float(rank)))
        self.register_buffer("offset", torch.full((rank + 1,), float(rank)))
        self.register_buffer("shared", torch.full((2,), float(rank)))
        self.out = torch.nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.shard(ids))
        return result


@pytest.mark.parametrize("schedule", ["lazy", "dear"])
@pytest.mark.parametrize("of", [DistributedDataParallel, torch.nn.parallel.DistributedDataParallel])
@pytest.mark.parametrize("shapes", ["alike", "other"])
def test_ignored_parameters_and_buffers_stay_each_workers_own(shapes: str, of: Any, schedule: str) -> None:
    def work(rank: int, member: Any) -> None:
        module = Sharded(rank, 10 if shapes == "alike" else 10 + rank)
        of._set_params_and_buffers_to_ignore_for_model(module, ["shard.weight", "offset"])
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", schedule=schedule)
        for _ in range(3):
            ddp.zero_grad()
            ddp(torch.arange(3)).sum().backward()
            gradient = module.shard.weight.grad
            assert gradient is not None
            assert torch.equal(gradient.to_dense()[0], module.out.weight.detach().sum(0)), "the worker's value, not a mean"
        assert torch.equal(module.shard.weight, torch.full_like(module.shard.weight, rank))
        assert module.offset.tolist() == [rank] * (rank + 1)
        assert module.shared.tolist() == [0, 0]
        assert "shard.weight" not in ddp.statistics()["parameters"]
        with ddp.join():
            pass
        assert module.offset.tolist() == [rank] * (rank + 1)
        ddp.close()

    good(run_workers(2, work))


def test_buffers_of_any_layout_without_broadcast_buffers() -> None:
    def work(rank: int, member: Any) -> None:
        module = torch.nn.Linear(3, 2)
        module.register_buffer("sparse", torch.eye(3).to_sparse() * (rank + 1))
        module.register_buffer("rows", torch.eye(3).to_sparse_csr())
        module.register_buffer("conjugate", torch.tensor([1 + 1j * rank]).conj())
        module.register_buffer("expanded", torch.zeros(1, 3).add(rank).expand(4, 3))
        module.register_buffer("cache", torch.full((rank + 1,), float(rank)))
        module.register_buffer("meta", torch.empty(3, device="meta"))
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", broadcast_buffers=False)
        ddp(torch.ones(1, 3)).sum().backward()
        assert module.cache.tolist() == [rank] * (rank + 1)
        assert float(module.sparse.to_dense()[0, 0]) == rank + 1
        ddp.close()

    good(run_workers(2, work))


@pytest.mark.parametrize(
    ("buffer", "says"),
    [
        (torch.eye(3).to_sparse(), "buffer 'b' is torch.sparse_coo"),
        (torch.eye(3).to_sparse_csr(), "buffer 'b' is torch.sparse_csr"),
        (torch.zeros(1, 3).expand(4, 3), "buffer 'b' is expanded"),
        (torch.empty(3, device="meta"), "buffer 'b' is on the meta device"),
    ],
)
def test_buffers_that_cannot_be_broadcast_are_named(buffer: Any, says: str) -> None:
    def work(_: int, member: Any) -> None:
        module = torch.nn.Linear(3, 2)
        module.register_buffer("b", buffer)
        DistributedDataParallel(module, process_group=member, scheme="balanced", deadline=5)

    for each in run_workers(2, work):
        assert isinstance(each, sparsesync.UnsupportedError)
        assert says in str(each)
        assert "broadcast_buffers=False" in str(each)


# ---- Complex parameters.


class _Rows(torch.autograd.Function):
    """Looks up rows of a table with a sparse gradient: torch's embedding does not support complex types."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        ctx.ids, ctx.shape = ids, table.shape
        return table[ids]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return torch.sparse_coo_tensor(ctx.ids.unsqueeze(0), gradients[0].resolve_conj(), ctx.shape), None


@pytest.mark.parametrize("scheme", ["balanced", "block_ps", "dense_ring"])
@pytest.mark.parametrize("schedule", ["lazy", "dear"])
def test_complex_gradients_are_summed_as_pairs(schedule: str, scheme: str) -> None:
    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with seeded(1):
                self.table = torch.nn.Parameter(torch.randn(2000, 4, dtype=torch.complex64))
                self.rows = torch.nn.Parameter(torch.randn(2000, 4, dtype=torch.complex64))
                self.wide = torch.nn.Linear(4, 3, dtype=torch.complex128)
                self.real = torch.nn.Linear(3, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            hidden = (self.table[ids] * _Rows.apply(self.rows, ids).conj()).to(torch.complex128)
            result: torch.Tensor = self.real(self.wide(hidden).abs().float())
            return result

    def ids(rank: int, step: int) -> torch.Tensor:
        return torch.tensor([step, 7, 100 * rank + step])

    def work(rank: int, member: Any) -> dict[str, torch.Tensor]:
        module = Mixed()
        ddp = DistributedDataParallel(module, process_group=member, scheme=scheme, schedule=schedule)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for step in range(4):
            optimizer.zero_grad()
            ddp(ids(rank, step)).square().sum().backward()
            ddp.clip_grad_norm_(100.0)
            optimizer.step()
        found = {name: each.detach().clone() for name, each in module.named_parameters()}
        ddp.close()
        return found

    expected = Mixed()
    optimizer = torch.optim.SGD(expected.parameters(), 0.1)
    for step in range(4):
        optimizer.zero_grad()
        for rank in range(2):
            (expected(ids(rank, step)).square().sum() / 2).backward()
        squares = [each.grad.to_dense().abs().square().sum() for each in expected.parameters() if each.grad is not None]
        norm = float(sum(squares)) ** 0.5
        for each in expected.parameters():
            assert each.grad is not None
            each.grad.mul_(min(1.0, 100.0 / (norm + 1e-6)))
        optimizer.step()
    first, second = good(run_workers(2, work))
    for name, each in expected.named_parameters():
        assert torch.equal(first[name], second[name]), name
        assert torch.allclose(first[name], each, rtol=1e-4, atol=1e-5), name


# ---- Buffers as passes see them.


@pytest.mark.parametrize("schedule", drop_in_cases.SCHEDULES)
def test_evaluation_sees_the_buffers_of_worker_0(schedule: str) -> None:
    """Also holds if workers evaluate at different times, or only one of them does."""

    def work(rank: int, member: Any) -> list[torch.Tensor]:
        with seeded(1):
            module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", schedule=schedule, deadline=10)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        if schedule != "lazy":
            wrap_optimizer(optimizer, ddp)
        source = torch.Generator().manual_seed(rank)
        seen = []
        for step in range(5):
            optimizer.zero_grad()
            ddp(torch.randn(6, 4, generator=source) * (1 + rank)).square().mean().backward()
            optimizer.step()
            if step == 1 and rank != 1:
                continue  # worker 1 evaluates without the others
            ddp.eval()
            with torch.no_grad():
                for _ in range(1 + rank):
                    seen.append(ddp(torch.ones(1, 4)).clone())
                if step == 3:  # running means of passes without a backward pass
                    ddp.train()
                    ddp(torch.randn(6, 4, generator=source) * (1 + rank))
                    ddp.eval()
                    seen.append(ddp(torch.ones(1, 4)).clone())
            ddp.train()
        ddp.close()
        return seen

    first, second = good(run_workers(2, work))
    assert len({tuple(each.flatten().tolist()) for each in first}) == 5
    assert {tuple(each.flatten().tolist()) for each in first} <= {tuple(each.flatten().tolist()) for each in second}
    assert torch.equal(first[-1], second[-1])


@pytest.mark.parametrize("schedule", drop_in_cases.SCHEDULES)
def test_reassigned_buffers_are_those_of_worker_0(schedule: str) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = torch.nn.Linear(4, 2)
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.seen = self.seen * 0.5 + inputs.detach().mean(0)
            result: torch.Tensor = self.out(inputs + self.seen)
            return result

    def work(rank: int, member: Any) -> list[torch.Tensor]:
        module = Counting()
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", schedule=schedule)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        if schedule != "lazy":
            wrap_optimizer(optimizer, ddp)
        found = []
        for step in range(4):
            optimizer.zero_grad()
            ddp(torch.full((2, 4), float(10 * rank + step))).sum().backward()
            optimizer.step()
            ddp.eval()
            ddp.train()
        before = module.seen.clone()
        with torch.no_grad():
            ddp(torch.zeros(1, 4))
        found.append(module.seen.clone())
        if schedule != "lazy":  # loaded buffers stay
            ddp(torch.ones(2, 4)).sum().backward()
            module.load_state_dict({**module.state_dict(), "seen": torch.full((4,), 7.0)})
            with torch.no_grad():
                ddp(torch.zeros(1, 4))
            assert module.seen.tolist() == [3.5] * 4
        ddp.close()
        return [*found, before]

    first, second = good(run_workers(2, work))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[0], first[1] * 0.5)


class Statistics(torch.nn.Module):
    """Has a running mean that torch writes without raising its version, and a buffer that is replaced by assignment."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(1, affine=False)
        self.out = torch.nn.Linear(1, 1)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen * 0.5 + inputs.detach().mean(0)
        result: torch.Tensor = self.out(self.norm(inputs) + self.seen)
        return result

    def values(self) -> list[float]:
        return [float(self.norm.running_mean), float(self.norm.num_batches_tracked), float(self.seen)]


@pytest.mark.parametrize("reads", [(), (0,), (0, 1)], ids=["", "worker 0 reads", "all read"])
@pytest.mark.parametrize("schedule", ["lazy", "wrapped", "dear", "dear wrapped"])
def test_buffers_become_those_of_worker_0_before_the_first_pass_of_a_step(schedule: str, reads: tuple[int, ...]) -> None:
    """This also holds within no_sync(), and for no other pass of that step. `reads`: workers that call state_dict() between steps."""

    def of(rank: int, step: int, part: int) -> torch.Tensor:
        return torch.tensor([[0.0], [10.0 * step + 3 * part + rank]])

    def by_hand() -> list[list[list[float]]]:
        modules = [Statistics() for _ in range(2)]
        found: list[list[list[float]]] = [[], []]
        for step in range(4):
            modules[1].load_state_dict({**modules[0].state_dict()})
            for rank, each in enumerate(modules):
                for part in range(1 + step):
                    each(of(rank, step, part))
                    found[rank].append(each.values())
        return found

    def work(rank: int, member: Any) -> list[list[float]]:
        module = Statistics()
        ddp = DistributedDataParallel(
            module, process_group=member, scheme="balanced", schedule=schedule.split()[0].replace("wrapped", "lazy")
        )
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        if "wrapped" in schedule:
            wrap_optimizer(optimizer, ddp)
        found = []
        for step in range(4):
            optimizer.zero_grad()
            for part in range(1 + step):
                with contextlib.nullcontext() if part == step else ddp.no_sync():
                    result = ddp(of(rank, step, part))
                    found.append(module.values())
                    result.sum().backward()
            optimizer.step()
            if rank in reads:
                ddp.state_dict()
        ddp.close()
        return found

    assert good(run_workers(2, work)) == by_hand()


@pytest.mark.parametrize("schedule", ["lazy", "wrapped", "dear"])
def test_a_pass_of_the_bare_module_after_a_step_is_kept(schedule: str) -> None:
    """For example the passes of torch.optim.swa_utils.update_bn()."""

    def work(rank: int, member: Any) -> None:
        module = Statistics()
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", schedule=schedule.replace("wrapped", "lazy"))
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        if schedule == "wrapped":
            wrap_optimizer(optimizer, ddp)
        for _ in range(2):
            ddp(torch.tensor([[0.0], [1.0]])).sum().backward()
            optimizer.step()
            before = module.values()
            with torch.no_grad():
                module(torch.tensor([[0.0], [100.0]]))
            expected = [0.9 * before[0] + 5.0, before[1] + 1, 0.5 * before[2] + 50.0]
            assert module.values() == pytest.approx(expected)
            ddp.eval()
            with torch.no_grad():
                ddp(torch.zeros(1, 1))
            ddp.train()
            assert module.values()[:2] == pytest.approx(expected[:2])
        ddp.close()

    good(run_workers(2, work))


def test_a_buffer_of_another_shape_is_named() -> None:
    def work(_: int, member: Any) -> None:
        module = torch.nn.Linear(3, 2)
        module.register_buffer("grows", torch.ones(1))
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", schedule="dear")
        for _ in range(3):
            ddp(torch.ones(1, 3)).sum().backward()
            module.grows = torch.ones(len(module.grows) + 1)

    for each in run_workers(2, work):
        assert isinstance(each, sparsesync.UnsupportedError)
        assert "buffer 'grows' is [2] torch.float32 now" in str(each)


# ---- Hooks of the program.


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["in place", "assigned"])
@pytest.mark.parametrize("schedule", drop_in_cases.SCHEDULES)
def test_hooks_that_change_gradients_come_before_they_are_sent(schedule: str, how: str, when: str) -> None:
    def change(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        if how == "in place" and not parameter.grad.is_sparse:
            parameter.grad.mul_(0.5)
        else:
            parameter.grad = parameter.grad * 0.5

    class Tables(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sparse = torch.nn.Embedding(50, 4, sparse=True)
            self.rows = torch.nn.Embedding(5000, 4)
            self.out = torch.nn.Linear(4, 2, bias=False)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.out(self.sparse(ids) + self.rows(ids))
            return result

    def work(rank: int, member: Any) -> None:
        with seeded(1):
            module = Tables()
        expected = copy.deepcopy(module)

        def register() -> None:
            for each in module.parameters():
                each.register_post_accumulate_grad_hook(change)  # type: ignore[no-untyped-call]

        if when == "before":
            register()
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", schedule=schedule)
        if when == "after":
            register()
        for step in range(3):
            ddp.zero_grad()
            expected.zero_grad()
            ddp(torch.tensor([step, rank + 5])).sum().backward()
            for other in range(2):
                (expected(torch.tensor([step, other + 5])).sum() / 4).backward()
            for ours, theirs in zip(module.parameters(), expected.parameters(), strict=True):
                assert ours.grad is not None
                assert theirs.grad is not None
                assert torch.allclose(ours.grad.to_dense(), theirs.grad.to_dense())
        ddp.close()

    good(run_workers(2, work))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("schedule", ["lazy", "dear"])
def test_optimizers_within_backward_step_with_equal_gradients(schedule: str, when: str) -> None:
    from torch.distributed.optim import _apply_optimizer_in_backward

    def work(rank: int, member: Any) -> dict[str, Any]:
        with seeded(1):
            module = torch.nn.Sequential(torch.nn.Embedding(40, 8), torch.nn.Flatten(), torch.nn.Linear(16, 2))
        expected = copy.deepcopy(module)
        if when == "before":
            _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", schedule=schedule)
        if when == "after":
            _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})
        optimizer = torch.optim.SGD(expected.parameters(), 0.1)
        for step in range(4):
            ddp(torch.tensor([[step, rank]])).square().mean().backward()
            optimizer.zero_grad()
            for other in range(2):
                (expected(torch.tensor([[step, other]])).square().mean() / 2).backward()
            optimizer.step()
        assert all(each.grad is None for each in module.parameters())
        for ours, theirs in zip(module.parameters(), expected.parameters(), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)
        ddp.close()
        return dict(module.state_dict())

    first, second = good(run_workers(2, work))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("sparse", [False, True])
# "sequential" sends no gradient before the end of the backward pass.
@pytest.mark.parametrize("schedule", [each for each in drop_in_cases.SCHEDULES if each != "sequential"])
def test_hooks_that_change_a_gradient_that_was_sent_are_an_error(schedule: str, sparse: bool) -> None:
    def work(rank: int, member: Any) -> int:
        with seeded(1):
            module = torch.nn.ModuleDict({"first": torch.nn.Embedding(50, 4), "last": torch.nn.Embedding(50, 4, sparse=sparse)})
            module.forward = lambda ids: module["last"](ids) + module["first"](ids)  # type: ignore[method-assign, assignment]
        first, last = module["first"].weight, module["last"].weight
        ddp = DistributedDataParallel(module, member, scheme="balanced", schedule=schedule, bucket_cap_mb=1e-9, deadline=10)
        changes = False

        def scale(parameter: torch.Tensor) -> None:
            other = last if parameter is first else first
            if changes and rank == 0 and other.grad is not None:
                other.grad.mul_(0.5)

        for each in (first, last):
            each.register_post_accumulate_grad_hook(scale)  # type: ignore[no-untyped-call]
        for step in range(5):
            changes = step == 3
            ddp.zero_grad()
            try:
                ddp(torch.tensor([1, 2])).sum().backward()
                ddp.synchronize()
            except sparsesync.OrderError as error:
                assert "its gradient was changed in place while workers exchanged it" in str(error)
                assert "'first.weight'" in str(error) or "'last.weight'" in str(error)
                return step
        return -1

    first, second = run_workers(2, work)
    assert first == 3
    assert isinstance(second, sparsesync.PeerLostError)


@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_that_take_gradients_are_an_error(when: str) -> None:
    def work(_: int, member: Any) -> None:
        module = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)

        def step(parameter: torch.Tensor) -> None:
            optimizer.step()
            parameter.grad = None

        def register() -> None:
            for each in module.parameters():
                each.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]

        if when == "before":
            register()
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", deadline=5)
        if when == "after":
            register()
        ddp(torch.ones(1, 2)).sum().backward()

    for each in run_workers(2, work):
        assert isinstance(each, sparsesync.OrderError)
        assert "a hook removed its gradient" in str(each)


# ---- Parameters that change.


def _unfreeze(module: Any) -> None:
    module[0].requires_grad_(True)


def _add(module: Any) -> None:
    module.append(torch.nn.Linear(2, 2))


def _add_deep(module: Any) -> None:
    module[2].extra = torch.nn.Parameter(torch.ones(1))


def _replace(module: Any) -> None:
    module[2].weight = torch.nn.Parameter(torch.ones(2, 3))


def _convert(module: Any) -> None:
    module.double()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_unfreeze, "parameter '0.weight' did not require a gradient"),
        (_add, "parameter '3.weight' was not part of the module"),
        (_add_deep, "parameter '2.extra' was not part of the module"),
        (_replace, "parameter '2.weight' was not part of the module"),
        (_convert, "parameter '2.bias' was torch.float32 on cpu"),
    ],
)
@pytest.mark.parametrize("schedule", ["lazy", "dear"])
def test_a_parameter_that_was_not_there_is_named_and_wrapping_again_helps(schedule: str, change: Any, says: str) -> None:
    groups = [sparsesync.torch.local_group(2) for _ in range(2)]

    def work(rank: int, _: Any) -> None:
        with seeded(1):
            module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
        module[0].requires_grad_(False)
        if change is _convert:
            module[2].weight.requires_grad_(False)
        inputs = torch.ones(1, 3) * (rank + 1)
        ddp = DistributedDataParallel(module, process_group=groups[0][rank], scheme="balanced", schedule=schedule)
        for _ in range(2):
            ddp(inputs).sum().backward()
        ddp.zero_grad()
        change(module)
        inputs = inputs.to(module[2].bias.dtype)
        with pytest.raises(sparsesync.OrderError, match=says):
            ddp(inputs)
        ddp.close()
        again = DistributedDataParallel(module, process_group=groups[1][rank], scheme="balanced", schedule=schedule)
        for _ in range(2):
            again.zero_grad()
            again(inputs).sum().backward()
        again.close()
        return [each.grad for each in module.parameters()]

    first, second = good(run_workers(2, work))
    for ours, theirs in zip(first, second, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)


def test_changes_that_leave_gradients_alone_are_no_error() -> None:
    from torch.nn.utils import prune

    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    ddp = DistributedDataParallel(module, process_group="alone", scheme="balanced")
    ddp(torch.ones(1, 3)).sum().backward()
    module.append(torch.nn.Tanh())
    module.append(torch.nn.Linear(2, 2).requires_grad_(False))
    prune.l1_unstructured(module[0], "weight", 0.5)
    module[1].weight.data = torch.ones(2, 3)
    for _ in range(2):
        ddp(torch.ones(1, 3)).sum().backward()
    ddp.close()


# ---- Optimizers whose steps are deferred.


def _moments(optimizer: torch.optim.Optimizer, _: Any) -> list[torch.Tensor]:
    return [value.clone() for state in optimizer.state.values() for value in state.values()]


def _cleared(optimizer: torch.optim.Optimizer, _: Any) -> list[torch.Tensor]:
    optimizer.state.clear()
    return []


def _replaced(optimizer: torch.optim.Optimizer, _: Any) -> list[torch.Tensor]:
    optimizer.state = collections.defaultdict(dict)
    return []


def _shortened(optimizer: torch.optim.Optimizer, step: int) -> list[torch.Tensor]:
    if step == 2:
        optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][:2]
    return []


def _copied(optimizer: torch.optim.Optimizer, _: Any) -> list[torch.Tensor]:
    made = copy.deepcopy(optimizer)
    assert type(made) is torch.optim.Adam
    return [value for state in made.state.values() for value in state.values()]


@pytest.mark.parametrize("look", [_moments, _cleared, _replaced, _shortened, _copied])
def test_the_state_of_an_optimizer_is_that_after_its_step(look: Any) -> None:
    def work(rank: int, member: Any, schedule: str) -> list[torch.Tensor]:
        with seeded(1):
            module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", schedule=schedule)
        optimizer = wrap_optimizer(torch.optim.Adam(module.parameters(), 0.1), ddp)
        assert type(optimizer).__name__ == "Adam"
        found = []
        source = torch.Generator().manual_seed(rank)
        for step in range(4):
            optimizer.zero_grad()
            ddp(torch.randn(4, 8, generator=source)).square().mean().backward()
            optimizer.step()
            found += look(optimizer, step)
        ddp.close()
        return [*found, *(each.detach() for each in module.parameters())]

    ours = good(run_workers(2, lambda *given: work(*given, "dear")))
    theirs = good(run_workers(2, lambda *given: work(*given, "sequential")))
    for of_ours, of_theirs in zip(ours, theirs, strict=True):
        assert len(of_ours) == len(of_theirs)
        assert all(torch.equal(a, b) for a, b in zip(of_ours, of_theirs, strict=True))


# ---- Processes of an unknown launcher.


@pytest.mark.parametrize(
    "started",
    [
        {"SLURM_NTASKS": "2", "SLURM_PROCID": "0"},
        {"PMI_SIZE": "2", "PMI_RANK": "0"},
        {"MV2_COMM_WORLD_SIZE": "2"},
        {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"},
        {"RANK": "1", "MASTER_PORT": "29500"},
        {"PMIX_RANK": "1"},
    ],
)
def test_one_of_several_processes_does_not_train_alone(started: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(sparsesync.InputError, match="is one of several") as told:
        DistributedDataParallel(torch.nn.Linear(2, 2))
    name = next(iter(started))
    assert f"{name}={started[name]}" in str(told.value)
    ddp = DistributedDataParallel(torch.nn.Linear(2, 2), process_group="alone")
    ddp(torch.ones(1, 2)).sum().backward()
    assert ddp.world_size == 1
    ddp.close()


def test_a_launcher_of_one_process_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "PMI_SIZE": "1", "WORLD_SIZE": "", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    ddp = DistributedDataParallel(torch.nn.Linear(2, 2))
    assert ddp.world_size == 1
    ddp.close()


class OfTypes(torch.nn.Module):
    """Has buffers whose types cannot be summed directly. Each training pass changes them, differently on each worker."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        with seeded(2):
            self.layer = torch.nn.Linear(3, 2)
        self.register_buffer("mask", torch.tensor([True, False, rank == 0]))
        self.register_buffer("phase", torch.full((3, 2), complex(rank, 1)).t())
        self.register_buffer("code", torch.full((5,), 10 * rank, dtype=torch.uint8))

    def forward(self, x: Any) -> Any:
        if self.training:
            self.mask.logical_not_()
            self.phase.mul_(1j + self.rank)
            self.code.add_(1 + self.rank)
        return self.layer(x * self.mask)


@pytest.mark.parametrize("schedule", ["lazy", "dear"])
def test_buffers_of_every_type_are_sent_after_gradients(schedule: str) -> None:
    def work(rank: int, member: Any) -> dict[str, Any]:
        module = OfTypes(rank)
        with DistributedDataParallel(module, member, schedule=schedule, scheme="balanced", init_sync=True) as ddp:
            optimizer = wrap_optimizer(torch.optim.SGD(module.parameters(), lr=0.1), ddp)
            for _ in range(5):
                optimizer.zero_grad()
                ddp(torch.ones(3)).sum().backward()
                optimizer.step()
            ddp.eval()
            with torch.no_grad():
                ddp(torch.ones(3))
            return {name: each.clone() for name, each in module.state_dict().items()}

    first, second = good(run_workers(2, work))
    for name, each in first.items():
        assert torch.equal(each, second[name]), name
    assert first["code"].tolist() == [5] * 5
    assert first["mask"].tolist() == [False, True, False]


def test_a_parameter_that_is_returned_keeps_no_hooks() -> None:
    class Returning(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2, 2))

        def forward(self, x: Any) -> Any:
            return x @ self.weight, self.weight

    def work(rank: int, member: Any) -> Any:
        module = Returning()
        with DistributedDataParallel(module, member) as ddp:
            for _ in range(4):
                module.zero_grad()
                result, weight = ddp(torch.full((2, 2), rank + 1.0))
                (result.sum() + weight.square().sum()).backward()
                assert module.weight.grad is not None
                assert torch.equal(module.weight.grad, torch.full((2, 2), 5.0))  # 2 from the square, and 2 or 4 from the rest
        return len(module.weight._backward_hooks or {})

    assert good(run_workers(2, work)) == [0, 0]


def test_optimizers_within_backward_step_again_once_the_wrapper_is_closed() -> None:
    from torch.distributed.optim import _apply_optimizer_in_backward

    def work(rank: int, member: Any) -> None:
        with seeded(1):
            module = torch.nn.Linear(2, 2)
        _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})
        ddp = DistributedDataParallel(module, process_group=member)
        ddp(torch.ones(1, 2)).sum().backward()
        ddp.close()
        ddp.close()
        before = module.bias.detach().clone()
        module(torch.ones(1, 2)).sum().backward()
        assert torch.allclose(module.bias, before - 0.1)
        assert module.bias.grad is None

    good(run_workers(2, work))
