"""Tests DistributedDataParallel with sparsifiers: sent elements and residuals, momentum, schedules, checkpoints, and rejected use."""
# ctest: COST 20 EMULATED QUICK SLOW no_schedule

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync
import sparsesync.torch as st
import torch
from sparsesync.torch.schedule.deferred_params import Pending
from workers import good, run_workers

LEAST = 200  # elements; the models' weights have as many, their biases have fewer
EACH = {
    "DGC": st.DGC(density=0.02, least_elements=LEAST),
    "TopK": st.TopK(density=0.02, least_elements=LEAST, warmup_steps=3),
    "Threshold": st.Threshold(level=0.01, least_elements=LEAST),
    "CoarseGrained": st.CoarseGrained(share=0.2, chunk=64, least_elements=LEAST),
}
SCHEDULES = [name for name, _ in sparsesync.schedules()]


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 40), torch.nn.ReLU(), torch.nn.Linear(40, 5))


MODEL = model()


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(16, 20, generator=generator)
    return inputs, (inputs[:, :5] * 2).argmax(1)


def loss_of(ddp: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    inputs, targets = batch(rank, step)
    return torch.nn.functional.cross_entropy(ddp(inputs), targets)


def trained(
    workers: int,
    sparsifier: st.Sparsifier | None,
    steps: range,
    *,
    load: Callable[[int], dict[str, Any]] | None = None,
    sgd: dict[str, Any] | None = None,
    wrap: bool = False,
    **options: Any,
) -> list[Any]:
    """Trains. Returns for each worker its final state_dict() and its statistics()."""

    def work(rank: int, member: st.LocalMember) -> tuple[dict[str, Any], dict[str, Any]]:
        own = copy.deepcopy(MODEL)
        ddp = st.DistributedDataParallel(own, process_group=member, deadline=30, sparsifier=sparsifier, **{"scheme": "balanced", **options})
        optimizer = torch.optim.SGD(own.parameters(), **{"lr": 0.05, **(sgd or {})})
        if wrap:
            st.wrap_optimizer(optimizer, ddp)
        if load:
            ddp.load_state_dict(load(rank))
        for step in steps:
            optimizer.zero_grad()
            loss_of(ddp, rank, step).backward()
            optimizer.step()
        state = {name: each.clone() for name, each in ddp.state_dict().items()}
        statistics = ddp.statistics()
        ddp.close()
        return state, statistics

    return good(run_workers(workers, work))


def weights(state: dict[str, Any]) -> list[torch.Tensor]:
    return [each for name, each in state.items() if not name.startswith("sparsesync.")]


def expect_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", EACH)
def test_all_workers_have_the_same_weights(name: str) -> None:
    told = trained(4, EACH[name], range(8))
    for state, _ in told[1:]:
        expect_same(weights(state), weights(told[0][0]))
    owed = [state["sparsesync.residual.0.weight"] for state, _ in told]
    assert not torch.equal(owed[0], owed[1])  # each worker has a different residual
    statistics = told[0][1]
    kinds = {parameter: each["gradient"] for parameter, each in statistics["parameters"].items()}
    assert kinds == {f"{layer}.{kind}": "sparsified" if kind == "weight" else "dense" for layer in (0, 2, 4) for kind in ("weight", "bias")}
    assert statistics["sparsifier"]["step"] == 8 and statistics["sparsifier"]["skipped_steps"] == 0
    assert statistics["memory_bytes"] > 4 * sum(each.numel() for each in MODEL.parameters() if each.numel() >= LEAST)


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_schedule_changes_what_is_trained(name: str, schedule: str) -> None:
    expected = trained(2, EACH[name], range(12), schedule="sequential")
    for wrap in (False, True):
        found = trained(2, EACH[name], range(12), schedule=schedule, wrap=wrap)
        if name != "CoarseGrained":  # its chunks are cut from buckets
            expect_same(weights(found[0][0]), weights(expected[0][0]))
        expect_same(weights(found[0][0]), weights(found[1][0]))


class Given(torch.nn.Module):
    """Its gradient is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(40, 10))

    def forward(self, wanted: torch.Tensor) -> torch.Tensor:
        return (self.weight * wanted).sum()


WHOLE = [
    st.TopK(density=0.05, least_elements=1),
    st.Threshold(level=6, least_elements=1),
    st.CoarseGrained(share=0.3, chunk=25, least_elements=1),
]  # whole numbers as gradients give whole numbers


def test_updates_and_residuals_add_up_to_the_gradients() -> None:
    """With whole numbers as gradients, the sum of the mean gradients equals the applied updates plus the mean residual."""

    for sparsifier in WHOLE:
        given = torch.randint(-3, 4, (4, 6, 40, 10), generator=torch.Generator().manual_seed(1)).float()

        def work(rank: int, member: st.LocalMember, sparsifier: st.Sparsifier = sparsifier, given: torch.Tensor = given) -> Any:
            module = Given()
            ddp = st.DistributedDataParallel(module, process_group=member, sparsifier=sparsifier, scheme="balanced", deadline=30)
            for step in range(6):
                module.zero_grad()
                ddp(given[rank, step]).backward()
                with torch.no_grad():
                    module.weight += module.weight.grad
            state = ddp.state_dict()
            ddp.close()
            return module.weight.detach(), state["sparsesync.residual.weight"].view(40, 10)

        told = good(run_workers(4, work))
        owed = sum(each for _, each in told) / 4
        for applied, _ in told:
            assert torch.equal(applied + owed, given.sum(dim=(0, 1)) / 4)
        assert torch.any(owed)


@pytest.mark.parametrize("schedule", ["sequential", "dear"])
@pytest.mark.parametrize("sparsifier", WHOLE)
def test_a_step_without_results_stays_in_the_residual(sparsifier: st.Sparsifier, schedule: str) -> None:
    """A worker leaves. The others save their states."""
    given = torch.randint(-3, 4, (2, 4, 40, 10), generator=torch.Generator().manual_seed(1)).float()

    def work(rank: int, member: st.LocalMember) -> Any:
        module = Given()
        ddp = st.DistributedDataParallel(module, process_group=member, sparsifier=sparsifier, schedule=schedule, deadline=30)
        for step in range(3):
            module.zero_grad()
            ddp(given[rank, step]).backward()
            ddp.synchronize()
        owed = ddp.state_dict()["sparsesync.residual.weight"].clone()
        if rank == 0:
            module.zero_grad()
            with pytest.raises(sparsesync.PeerError):
                ddp(given[rank, 3]).backward()
                ddp.synchronize()
            for _ in range(2):  # saving twice changes nothing
                assert torch.equal(ddp.state_dict()["sparsesync.residual.weight"].view(40, 10), owed.view(40, 10) + given[rank, 3])
        ddp.close()

    good(run_workers(2, work))


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(300, 8, sparse=True)
        self.out = torch.nn.Linear(8, 40)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(ids)).square().mean()


class Branches(torch.nn.Module):
    """`order` sets the order in which its gradients arrive."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second = torch.nn.Linear(20, 20), torch.nn.Linear(20, 20)
        self.out = torch.nn.Linear(20, 5)

    def forward(self, inputs: torch.Tensor, swapped: bool) -> torch.Tensor:
        order = (self.second, self.first) if swapped else (self.first, self.second)
        for each in order:
            inputs = torch.tanh(each(inputs))
        return self.out(inputs)


@pytest.mark.parametrize("name", ["DGC", "Threshold"])
def test_rebuilt_buckets_keep_the_residuals(name: str) -> None:
    """From step 5 on gradients arrive in another order. Buckets are rebuilt, and training is unchanged."""
    start = Branches()

    def work(rank: int, member: st.LocalMember, schedule: str) -> Any:
        module = copy.deepcopy(start)
        ddp = st.DistributedDataParallel(
            module, process_group=member, deadline=30, scheme="balanced", sparsifier=EACH[name], schedule=schedule, bucket_cap_mb=0.001
        )
        optimizer = st.wrap_optimizer(torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.5), ddp)
        seen = set()
        for step in range(20):
            optimizer.zero_grad()
            inputs, targets = batch(rank, step)
            torch.nn.functional.cross_entropy(ddp(inputs, step >= 5), targets).backward()
            optimizer.step()
            seen.add(tuple(bucket.planned.name() for bucket in ddp.synchronizer.buckets))
        state = {key: each.clone() for key, each in ddp.state_dict().items()}
        ddp.close()
        return state, seen

    found = good(run_workers(2, lambda rank, member: work(rank, member, "lazy")))
    expected = good(run_workers(2, lambda rank, member: work(rank, member, "sequential")))
    for (state, seen), (other, _) in zip(found, expected, strict=True):
        assert len(seen) > 1
        assert list(state) == list(other)
        for each in state:
            assert torch.equal(state[each], other[each]), each


@pytest.mark.parametrize("name", EACH)
def test_workers_without_inputs_keep_sending_their_residuals(name: str) -> None:
    """A worker's residual is also sent in steps in which only other workers have inputs."""

    def work(rank: int, member: st.LocalMember) -> Any:
        own = copy.deepcopy(MODEL)
        ddp = st.DistributedDataParallel(own, process_group=member, deadline=30, scheme="balanced", sparsifier=EACH[name])
        optimizer = torch.optim.SGD(own.parameters(), lr=0.05)
        owed = []
        with ddp.join():
            for step in range(3 + 3 * rank):
                optimizer.zero_grad()
                loss_of(ddp, rank, step).backward()
                optimizer.step()
                owed.append(ddp.state_dict()["sparsesync.residual.0.weight"].clone())
        state = {key: each.clone() for key, each in ddp.state_dict().items()}
        ddp.close()
        return state, owed

    told = good(run_workers(3, work))
    for state, _ in told[1:]:
        expect_same(weights(state), weights(told[0][0]))
    # With a threshold, more elements are sent only if more gradients arrived.
    assert torch.equal(told[0][0]["sparsesync.residual.0.weight"], told[0][1][-1]) == (name == "Threshold")


@pytest.mark.parametrize("name", EACH)
def test_the_norm_is_that_of_the_sent_gradients(name: str) -> None:
    def work(rank: int, member: st.LocalMember) -> None:
        own = copy.deepcopy(MODEL)
        ddp = st.DistributedDataParallel(own, process_group=member, deadline=30, scheme="balanced", sparsifier=EACH[name], schedule="dear")
        for step in range(6):
            ddp.zero_grad()
            loss_of(ddp, rank, step).backward()
            norm = ddp.clip_grad_norm_(1e6)
            waits = any(isinstance(each, Pending) for each in own.parameters())
            assert waits == (step > 0)  # from the second step on nothing is gathered for it
            gradients = [each.grad.flatten() for each in own.parameters()]
            torch.testing.assert_close(norm, torch.linalg.vector_norm(torch.cat(gradients)))
        ddp.close()

    good(run_workers(2, work))


def test_recordings_leave_out_sparsified_gradients(tmp_path: Path) -> None:
    def work(rank: int, member: st.LocalMember) -> None:
        ddp = st.DistributedDataParallel(
            Words(), process_group=member, sparsifier=st.TopK(least_elements=LEAST), scheme="balanced", deadline=30
        )
        ddp(torch.arange(5) + rank).backward()
        trace = st.record_trace(ddp, tmp_path / "trace", 2)
        for _ in range(2):
            ddp(torch.arange(5) + rank).backward()
        assert trace.complete
        model = st.record_model(ddp, tmp_path / "model.json", 2)
        for _ in range(4):
            ddp(torch.arange(5) + rank).backward()
        assert model.complete
        why = ddp.statistics()["parameters"]["out.weight"]["why"]
        assert why == "TopK takes 0.01 of it; scheme: given"
        ddp.close()

    good(run_workers(2, work))
    assert [each.name for each in sparsesync.Trace(str(tmp_path / "trace")).tensors] == ["words.weight"]
    layers = {each["name"]: each for each in json.loads((tmp_path / "model.json").read_text())["layers"]}
    assert layers["out.weight"]["bytes"] == 8 * 40 * 4 and "bytes" not in layers["words.weight"]


# ---- Momentum.


@pytest.mark.parametrize("nesterov", [False, True])
def test_corrected_momentum_of_all_elements_is_the_optimizers(nesterov: bool) -> None:
    sgd = {"momentum": 0.5, "nesterov": nesterov}
    everything = st.DGC(density=1.0, least_elements=LEAST, momentum_masking=False)
    expected = trained(3, None, range(10), sgd=sgd)[0][0]
    for schedule in ("lazy", "dear"):
        state, statistics = trained(3, everything, range(10), sgd=sgd, wrap=True, schedule=schedule)[0]
        assert statistics["sparsifier"]["corrects_momentum"] is True
        assert torch.any(state["sparsesync.velocity.0.weight"])
        for a, b in zip(weights(state), weights(expected), strict=True):
            torch.testing.assert_close(a, b)


def test_momentum_stays_in_the_optimizer_without_correction() -> None:
    sgd = {"momentum": 0.5}
    plain = trained(2, st.TopK(density=1.0, least_elements=LEAST), range(6), sgd=sgd)[0]
    for sparsifier, wrap in (
        (st.DGC(density=1.0, least_elements=LEAST), False),
        (st.DGC(density=1.0, least_elements=LEAST, momentum_correction=False), True),
    ):
        state, statistics = trained(2, sparsifier, range(6), sgd=sgd, wrap=wrap)[0]
        expect_same(weights(state), weights(plain[0]))
        assert statistics["sparsifier"]["corrects_momentum"] is False
        assert not any("velocity" in name for name in state)


def test_momentum_that_differs_is_refused() -> None:
    def work(_: int, member: st.LocalMember) -> None:
        own = copy.deepcopy(MODEL)
        ddp = st.DistributedDataParallel(own, process_group=member, sparsifier=EACH["DGC"], scheme="balanced", deadline=30)
        first, *others = own.parameters()
        groups = [{"params": [first], "momentum": 0.9}, {"params": others, "momentum": 0.5}]
        st.wrap_optimizer(torch.optim.SGD(groups, lr=0.1), ddp)
        try:
            with pytest.raises(sparsesync.InputError, match=r"parameter '.\.weight' has dampening, or another momentum"):
                loss_of(ddp, 0, 0).backward()
        finally:
            ddp.close()

    good(run_workers(2, work))


# ---- Checkpoints.


@pytest.mark.parametrize("name", ["DGC", "CoarseGrained"])
@pytest.mark.parametrize("sgd", [{}, {"momentum": 0.5}])
def test_training_goes_on_from_a_checkpoint_bit_by_bit(name: str, sgd: dict[str, Any]) -> None:
    sparsifier = dataclasses.replace(EACH[name], least_elements=1)  # for all parameters, so that optimizers have no state
    options: dict[str, Any] = {"sgd": sgd, "wrap": True}
    whole = trained(4, sparsifier, range(15), **options)
    saved = trained(4, sparsifier, range(10), **options)
    resumed = trained(4, sparsifier, range(10, 15), load=lambda rank: saved[rank][0], **options)
    for rank in range(4):
        assert list(resumed[rank][0]) == list(whole[rank][0])
        assert any("velocity" in each for each in whole[rank][0]) == bool(sgd)
        for each in whole[rank][0]:
            assert torch.equal(resumed[rank][0][each], whole[rank][0][each]), each


def owed(states: list[dict[str, torch.Tensor]], kind: str) -> dict[str, torch.Tensor]:
    names = [name for name in states[0] if name.startswith(f"sparsesync.{kind}.")]
    return {name: sum(state[name].double() for state in states) / len(states) for name in names}


@pytest.mark.parametrize("name", ["DGC", "CoarseGrained"])
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_a_resharded_state_has_the_same_residual(name: str, workers: int) -> None:
    saved = [state for state, _ in trained(4, EACH[name], range(10), sgd={"momentum": 0.5}, wrap=True)]
    shared = [st.resharded(saved, rank, workers) for rank in range(workers)]
    loaded = [state for state, _ in trained(workers, EACH[name], range(0), load=lambda rank: dict(shared[rank]))]
    for kind in ("residual", "velocity"):
        before, after = owed(saved, kind), owed(loaded, kind)
        assert before.keys() == after.keys() and before
        for each, numbers in before.items():
            assert torch.any(numbers)
            torch.testing.assert_close(after[each], numbers, rtol=0, atol=1e-6 * float(numbers.abs().max()))
    # Training continues from the resharded state.
    told = trained(
        workers, EACH[name], range(10, 13), load=lambda rank: dict(shared[rank]), sgd={"momentum": 0.5}, wrap=True
    )
    for state, _ in told:
        expect_same(weights(state), weights(told[0][0]))


def test_states_that_are_refused() -> None:
    saved = [state for state, _ in trained(2, EACH["DGC"], range(3))]

    def refused(said: str, load: Callable[[int], dict[str, Any]], sparsifier: st.Sparsifier | None = EACH["DGC"]) -> None:
        with pytest.raises(sparsesync.InputError, match=said):
            trained(2, sparsifier, range(0), load=load)

    refused(r"worker 0 of 2, and this is worker 1 of 2", lambda _: dict(saved[0]))
    refused("this module has none: pass `sparsifier`", lambda rank: dict(saved[rank]), None)
    other = dict(saved[0].items())
    other["sparsesync.residual.0.weight"] = torch.zeros(7)
    refused("its saved residual 7: this is the state", lambda rank: {**other, "sparsesync.step": saved[rank]["sparsesync.step"]})
    other = {name.replace("residual.0", "residual.9"): each for name, each in saved[0].items()}
    refused(r"the state has a residual of parameter '9.weight'", lambda rank: {**other, "sparsesync.step": saved[rank]["sparsesync.step"]})
    with pytest.raises(sparsesync.InputError, match="was saved without momentum correction, which is on now"):
        trained(2, EACH["DGC"], range(1), load=lambda rank: dict(saved[rank]), sgd={"momentum": 0.5}, wrap=True)
    with_velocity = [state for state, _ in trained(2, EACH["DGC"], range(3), sgd={"momentum": 0.5}, wrap=True)]
    with pytest.raises(sparsesync.InputError, match="was saved with momentum correction, which is off now"):
        trained(2, EACH["DGC"], range(1), load=lambda rank: dict(with_velocity[rank]))
    with pytest.raises(sparsesync.InputError, match="state 0 belongs to worker 1 of 2"):
        st.resharded([saved[1], saved[0]], 0, 1)
    with pytest.raises(sparsesync.InputError, match="lacks sparsifier entries"):
        st.resharded([{}], 0, 1)


# ---- Values that are not finite.


def poison(rank: int, step: int) -> bool:
    return rank == 1 and step == 4


class Poisoned(torch.nn.Module):
    """Its gradient is NaN on request."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = copy.deepcopy(MODEL)

    def forward(self, inputs: torch.Tensor, poisoned: bool) -> torch.Tensor:
        result = self.layers(inputs)
        return result * float("nan") if poisoned else result


@pytest.mark.parametrize("schedule", ["lazy", "dear"])
@pytest.mark.parametrize("name", ["DGC", "CoarseGrained"])
def test_a_step_that_is_not_finite_is_skipped_by_all(name: str, schedule: str) -> None:
    sparsifier = dataclasses.replace(EACH[name], on_not_finite="skip")

    def work(rank: int, member: st.LocalMember, steps: list[int]) -> Any:
        module = Poisoned()
        ddp = st.DistributedDataParallel(
            module, process_group=member, sparsifier=sparsifier, schedule=schedule, scheme="balanced", deadline=30
        )
        optimizer = st.wrap_optimizer(torch.optim.SGD(module.parameters(), lr=0.05), ddp)
        for step in steps:
            optimizer.zero_grad()
            inputs, targets = batch(rank, step)
            torch.nn.functional.cross_entropy(ddp(inputs, poison(rank, step)), targets).backward()
            if step == 4:
                assert all(each.grad is None for each in module.parameters())
            optimizer.step()
        state = {key: each.clone() for key, each in ddp.state_dict().items()}
        told = ddp.statistics()["sparsifier"]
        ddp.close()
        return state, told

    skipped = good(run_workers(3, lambda rank, member: work(rank, member, [0, 1, 2, 3, 4, 5, 6])))
    without = good(run_workers(3, lambda rank, member: work(rank, member, [0, 1, 2, 3, 5, 6])))
    for (state, told), (expected, _) in zip(skipped, without, strict=True):
        assert told["skipped_steps"] == 1 and told["not_finite"] > 0 and told["step"] == 6
        assert list(state) == list(expected)
        for each in state:  # equal except for rounding
            torch.testing.assert_close(state[each], expected[each], rtol=1e-4, atol=1e-6)
        assert all(torch.isfinite(each).all() for each in weights(state))


def test_a_step_that_is_not_finite_is_an_error_of_all() -> None:
    def work(rank: int, member: st.LocalMember) -> None:
        module = Poisoned()
        ddp = st.DistributedDataParallel(module, process_group=member, sparsifier=EACH["DGC"], scheme="balanced", deadline=30)
        for step in range(7):
            inputs, targets = batch(rank, step)
            loss = torch.nn.functional.cross_entropy(ddp(inputs, poison(rank, step)), targets)
            if step == 4:
                with pytest.raises(FloatingPointError, match="gradient values, over all workers, are infinite or NaN"):
                    loss.backward()
            else:  # training continues without a trace of the step
                loss.backward()
        assert all(torch.isfinite(each.grad).all() for each in module.parameters())
        ddp.close()

    good(run_workers(3, work))


def test_a_step_that_is_skipped_leaves_nothing_to_a_table_that_was_not_used_before() -> None:
    class WithTable(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(10, 20, sparse=True, _weight=torch.ones(10, 20))
            self.layers = model()

        def forward(self, inputs: torch.Tensor, uses_table: bool, times: float) -> torch.Tensor:
            result = self.layers(inputs + self.table(torch.tensor([1])) if uses_table else inputs)
            return result * times

    sparsifier = dataclasses.replace(EACH["DGC"], on_not_finite="skip")

    def work(rank: int, member: st.LocalMember) -> None:
        module = WithTable()
        with st.DistributedDataParallel(module, process_group=member, sparsifier=sparsifier, scheme="balanced", deadline=30) as ddp:
            for step in range(4):
                module.zero_grad()
                inputs, targets = batch(rank, step)
                result = ddp(inputs, uses_table=step == 2, times=float("nan") if step == 2 else 1.0)
                torch.nn.functional.cross_entropy(result, targets).backward()
                assert module.table.weight.grad is None, step

    good(run_workers(2, work))


def test_momentum_is_what_the_optimizer_says_once_its_state_is_loaded() -> None:
    def work(rank: int, member: st.LocalMember) -> None:
        module = copy.deepcopy(MODEL)
        with st.DistributedDataParallel(module, process_group=member, sparsifier=EACH["DGC"], scheme="balanced", deadline=30) as ddp:
            optimizer = st.wrap_optimizer(torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9), ddp)
            loss_of(ddp, rank, 0).backward()
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.param_groups[0]["momentum"] = 0.5
            assert ddp.synchronizer.exchange.sparsifier is not None
            assert ddp.synchronizer.exchange.sparsifier.of_step()["momentum"] == 0.5

    good(run_workers(2, work))


# ---- Rejected use.


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: st.DGC(density=0), "density 0: more than 0, and 1 at most"),
        (lambda: st.DGC(density=1.5), "density 1.5"),
        (lambda: st.DGC(clip=0), "clip 0: more than 0"),
        (lambda: st.CoarseGrained(share=-1), "share -1"),
        (lambda: st.CoarseGrained(chunk=0), "chunks of 0 elements"),
        (lambda: st.Threshold(level=0), "level 0"),
        (lambda: st.Threshold(level=1, warmup_steps=3), "leave warmup_steps out"),
        (lambda: st.TopK(warmup_steps=-1), "warmup_steps"),
        (lambda: st.TopK(parameters="0.weight"), r"a list of names, such as \['0.weight'\]"),
        (lambda: st.TopK(on_not_finite="ignore"), "raise or skip"),
    ],
)
def test_options_that_are_refused(make: Callable[[], st.Sparsifier], said: str) -> None:
    with pytest.raises(sparsesync.InputError, match=said):
        make()


def test_sparsifiers_that_do_not_fit_a_module() -> None:
    def refused(module: torch.nn.Module, sparsifier: st.Sparsifier, said: str, error: type[Exception] = sparsesync.InputError) -> None:
        def work(_: int, member: st.LocalMember) -> None:
            with pytest.raises(error, match=said):
                st.DistributedDataParallel(module, process_group=member, sparsifier=sparsifier, scheme="balanced", deadline=30)

        good(run_workers(1, work))

    refused(copy.deepcopy(MODEL), st.CoarseGrained(), "no parameter of f32, f16 or bf16 has 4096 elements")
    refused(copy.deepcopy(MODEL), st.CoarseGrained(least_elements=LEAST), "have 2000 together")
    refused(copy.deepcopy(MODEL), st.TopK(parameters=["nothing.*"]), r"no parameter is named by \['nothing.\*'\]")
    of_f64 = copy.deepcopy(MODEL).double()
    refused(of_f64, st.TopK(parameters=["0.*"]), "parameter '0.weight' is torch.float64", sparsesync.UnsupportedError)


def test_what_is_sparse_already_stays_so_or_is_refused() -> None:
    def work(rank: int, member: st.LocalMember, sparsifier: st.Sparsifier) -> dict[str, str]:
        ddp = st.DistributedDataParallel(Words(), process_group=member, sparsifier=sparsifier, scheme="balanced", deadline=30)
        try:
            ddp(torch.arange(5) + rank).backward()
            return {name: each["gradient"] for name, each in ddp.statistics()["parameters"].items()}
        finally:
            ddp.close()

    told = good(run_workers(2, lambda rank, member: work(rank, member, st.TopK(least_elements=LEAST))))
    assert told[0] == {"words.weight": "sparse", "out.weight": "sparsified", "out.bias": "dense"}
    for each in run_workers(2, lambda rank, member: work(rank, member, st.TopK(parameters=["*.weight"]))):
        assert isinstance(each, sparsesync.InputError)
        assert "the gradient of parameter 'words.weight' is sparse already" in str(each)


def test_workers_whose_sparsifiers_differ() -> None:
    def work(rank: int, member: st.LocalMember) -> None:
        with pytest.raises(sparsesync.AgreementError, match="sparsifier"):
            st.DistributedDataParallel(
                copy.deepcopy(MODEL), process_group=member, sparsifier=st.TopK(density=0.1 + rank / 10, least_elements=LEAST), deadline=30
            )

    good(run_workers(2, work))


def test_the_share_falls_from_all() -> None:
    sparsifier = st.DGC(density=0.01, warmup_steps=4)
    shares = [sparsifier.share_of(step) for step in range(6)]
    assert shares == pytest.approx([1, 0.1**0.5, 0.1, 0.1**1.5, 0.01, 0.01])
