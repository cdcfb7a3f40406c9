"""Programs that torch's DistributedDataParallel takes train the same with ours: with equal values, and no silent difference."""

from __future__ import annotations

import collections
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
        pytest.skip("announces nothing")
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
    """All elements are taken, so that velocities alone are kept: they are those of SGD's own momentum."""
    expected = drop_in_cases.Net("sparsified")
    start = copy.deepcopy(expected)
    drop_in_cases.by_hand(expected, "momentum", how, 2)

    def work(rank: int, member: Any) -> dict[str, Any]:
        net = copy.deepcopy(start)
        sparsifier = DGC(density=1.0, momentum_masking=False)
        ddp = DistributedDataParallel(net, member, scheme="balanced", schedule=schedule, sparsifier=sparsifier)
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
def test_what_a_sparsifier_owes_an_unused_parameter_waits(how: str, sparsifier: Any, schedule: str) -> None:
    """It is neither applied nor lost while no worker uses the parameter, and is sent once one does."""

    def work(rank: int, member: Any) -> None:
        with seeded(1):
            net = drop_in_cases.Net("sparsified")
        start = net.table.weight.detach().clone()
        ddp = DistributedDataParallel(net, member, scheme="balanced", schedule=schedule, gradient="sum", sparsifier=sparsifier)
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
        ddp = DistributedDataParallel(module, member, scheme="balanced", schedule=schedule)
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


# ---- Processes that a launcher started which is not known.


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
