"""Tests loss scaling and master weights: equal bits with and without them, agreement of workers, checkpoints, and rejected use."""
# ctest: EMULATED QUICK SLOW powers_of_two half_precision_learns

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync
import sparsesync.torch as st
import torch
import torch.utils.checkpoint
from workers import good, run_workers

LEAST = 200
SPARSIFIERS = {
    "dense": None,
    "DGC": st.DGC(density=0.05, least_elements=LEAST, clip=0.5),
    "Threshold": st.Threshold(level=0.01, least_elements=LEAST),
    "CoarseGrained": st.CoarseGrained(share=0.2, chunk=64, least_elements=LEAST),
}


class Net(torch.nn.Module):
    """A network whose loss can be made infinite, or larger than f16 can represent."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(3)
        first, second, last = (torch.nn.Linear(*each) for each in ((20, 30), (30, 40), (40, 5)))
        self.layers = torch.nn.Sequential(first, torch.nn.Tanh(), second, torch.nn.Tanh(), last).to(dtype)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor, times: float = 1.0) -> torch.Tensor:
        found = self.layers(inputs.to(self.layers[0].weight.dtype))
        return torch.nn.functional.cross_entropy(found.float(), targets) * times


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(16, 20, generator=generator)
    return inputs, (inputs[:, :5] * 2).argmax(1)


@dataclasses.dataclass
class Trained:
    state: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    statistics: dict[str, Any]
    skipped: list[int]


def trained(
    workers: int,
    steps: range,
    *,
    scaler: dict[str, Any] | None = None,
    wrap: bool = False,
    masters: bool = False,
    dtype: torch.dtype = torch.float32,
    times: Callable[[int, int], float] = lambda rank, step: 1.0,
    clip: float | None = None,
    load: list[Trained] | None = None,
    sgd: dict[str, Any] | None = None,
    **options: Any,
) -> list[Trained]:
    """`times` returns the factor of the loss for a worker and a step."""
    start = Net(dtype)

    def work(rank: int, member: st.LocalMember) -> Trained:
        module = copy.deepcopy(start)
        ddp = st.DistributedDataParallel(module, process_group=member, deadline=30, **{"scheme": "balanced", **options})
        optimizer = torch.optim.SGD(module.parameters(), **{"lr": 0.05, **(sgd or {})})
        if wrap or masters:
            st.wrap_optimizer(optimizer, ddp, master_weights=masters)
        scale = st.LossScaler(ddp, **scaler) if scaler is not None else None
        if load:
            ddp.load_state_dict(dict(load[rank].state))
            optimizer.load_state_dict(load[rank].optimizer)
            if scale:
                scale.load_state_dict(load[rank].scaler)
        skipped = []
        for step in steps:
            optimizer.zero_grad()
            loss = ddp(*batch(rank, step), times(rank, step))
            if scale is None:
                loss.backward()
                if clip is not None:
                    ddp.clip_grad_norm_(clip)
                optimizer.step()
                continue
            scale.scale(loss).backward()
            if clip is not None:
                scale.unscale_(optimizer)
                ddp.clip_grad_norm_(clip)
            before = scale.skipped_steps
            scale.step(optimizer)
            if scale.skipped_steps > before:
                skipped.append(step)
                assert all(each.grad is None for each in module.parameters())
            scale.update()
        state = {name: each.clone() for name, each in ddp.state_dict().items()}
        told = Trained(
            state, copy.deepcopy(optimizer.state_dict()), scale.state_dict() if scale else {}, ddp.statistics(), skipped
        )
        ddp.close()
        return told

    return good(run_workers(workers, work))


def expect_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert list(one) == list(other)
    for name, each in one.items():
        assert torch.equal(each, other[name]), name


def weights(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: each for name, each in state.items() if not name.startswith("sparsesync.")}


def options_of(name: str, schedule: str) -> dict[str, Any]:
    """Returns options with a fixed bucket capacity. Otherwise `dear` plans buckets by measured passes, which changes the order of
    additions.
    """
    return {"sparsifier": SPARSIFIERS[name], "schedule": schedule, "wrap": True, "bucket_cap_mb": 1.0}


@pytest.mark.parametrize("schedule", ["lazy", "dear"])
@pytest.mark.parametrize("name", SPARSIFIERS)
def test_powers_of_two_change_no_bit(name: str, schedule: str) -> None:
    """Also holds if the scale grows every second step, gradients are clipped, and momentum is corrected."""
    options: dict[str, Any] = {**options_of(name, schedule), "sgd": {"momentum": 0.5}, "clip": 0.4}
    expected = trained(3, range(10), **options)
    for scaler in ({"scale": 1024.0, "dynamic": False}, {"scale": 4.0, "growth_interval": 2}):
        found = trained(3, range(10), scaler=scaler, **options)
        for one, other in zip(found, expected, strict=True):
            assert one.skipped == []
            # The clipping norm is that of the gradients as sent, so results are equal except for rounding.
            for each in one.state:
                torch.testing.assert_close(one.state[each], other.state[each], rtol=1e-5, atol=1e-7)
        assert found[0].statistics["loss_scale"] == (1024 if not scaler.get("growth_interval") else 128)
    without = {**options, "clip": None}
    expected = trained(3, range(10), **without)
    for one, other in zip(trained(3, range(10), scaler={"scale": 4.0, "growth_interval": 2}, **without), expected, strict=True):
        expect_same(one.state, other.state)


@pytest.mark.parametrize("schedule", ["lazy", "dear"])
@pytest.mark.parametrize("name", SPARSIFIERS)
def test_a_step_that_overflows_on_one_worker_is_skipped_by_all(name: str, schedule: str) -> None:
    def times(rank: int, step: int) -> float:
        return float("inf") if (rank, step) in ((1, 0), (2, 4), (0, 5)) else 1.0

    options = options_of(name, schedule)
    told = trained(3, range(8), scaler={"scale": 256.0}, times=times, **options)
    for each in told:
        assert each.skipped == [0, 4, 5]
        assert each.statistics["loss_scale"] == 32 and each.statistics["skipped_steps"] == 3
        assert all(torch.isfinite(one).all() for one in each.state.values())
        expect_same(weights(each.state), weights(told[0].state))
    if name == "dense":  # nothing of the skipped steps remains
        expected = trained_without(told, options)
        for each in told:
            expect_same(each.state, expected)


def trained_without(told: list[Trained], options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Returns the weights of a training without the skipped steps."""
    start = Net()
    steps = [step for step in range(8) if step not in told[0].skipped]

    def work(rank: int, member: st.LocalMember) -> dict[str, torch.Tensor]:
        module = copy.deepcopy(start)
        ddp = st.DistributedDataParallel(
            module, process_group=member, deadline=30, scheme="balanced", **{k: v for k, v in options.items() if k != "wrap"}
        )
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        for step in steps:
            optimizer.zero_grad()
            ddp(*batch(rank, step)).backward()
            optimizer.step()
        state = dict(ddp.state_dict())
        ddp.close()
        return state

    return good(run_workers(3, work))[0]


class Whole(torch.nn.Module):
    """Its gradient is its input."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(40, 10, dtype=dtype))

    def forward(self, wanted: torch.Tensor) -> torch.Tensor:
        return (self.weight * wanted.to(self.weight.dtype)).float().sum()


@pytest.mark.parametrize("schedule", ["lazy", "dear"])
def test_an_overflowing_sum_stays_in_the_residual(schedule: str) -> None:
    """Values are f16, in the pool and on the wire. Each worker's values are finite, but their sum overflows until the scale has fallen."""
    sparsifier = st.TopK(density=0.2, least_elements=1)
    given = torch.randint(-3, 4, (2, 6, 40, 10), generator=torch.Generator().manual_seed(1)).float()

    def work(rank: int, member: st.LocalMember) -> Any:
        module = Whole(torch.float16)
        ddp = st.DistributedDataParallel(
            module, process_group=member, sparsifier=sparsifier, scheme="balanced", gradient="sum", schedule=schedule, deadline=30
        )
        optimizer = st.wrap_optimizer(torch.optim.SGD(module.parameters(), lr=1.0), ddp, master_weights=True)
        scaler = st.LossScaler(ddp, scale=2.0**14)  # 3 times as much on two workers exceeds f16
        for step in range(6):
            optimizer.zero_grad()
            scaler.scale(ddp(given[rank, step])).backward()
            scaler.step(optimizer)
            scaler.update()
        owed = ddp.state_dict()["sparsesync.residual.weight"].view(40, 10)
        master = optimizer.state_dict()["master_weights"][0]
        ddp.close()
        return master, owed, scaler.get_scale(), scaler.skipped_steps

    told = good(run_workers(2, work))
    assert torch.equal(told[0][0], told[1][0])
    assert torch.any(told[0][1])
    for master, _, scale, skipped in told:
        assert skipped >= 1 and scale == 2.0 ** (14 - skipped)
        assert torch.equal(-master + told[0][1] + told[1][1], given.sum(dim=(0, 1)))


class Two(torch.nn.Module):
    """The same with two weights. `order` sets the order in which their gradients arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Whole(torch.float16), Whole(torch.float16)

    def forward(self, wanted: torch.Tensor, swapped: bool) -> torch.Tensor:
        order = (self.second, self.first) if swapped else (self.first, self.second)
        sums = torch.zeros(())
        for each in order:  # the later weight's gradient arrives first
            sums = torch.utils.checkpoint.checkpoint(lambda s, each=each: s + each(wanted), sums, use_reentrant=False)
        return sums


def test_an_overflowing_sum_stays_in_the_residual_of_rebuilt_buckets() -> None:
    """In the step whose sum overflows, gradients arrive in another order, and buckets are rebuilt."""
    given = torch.randint(-3, 4, (2, 10, 40, 10), generator=torch.Generator().manual_seed(1)).float()
    given[:, 6] = torch.sign(given[:, 6]) * 24

    def work(rank: int, member: st.LocalMember) -> Any:
        module = Two()
        ddp = st.DistributedDataParallel(
            module, process_group=member, sparsifier=st.TopK(density=0.9, least_elements=1), scheme="balanced", gradient="sum",
            bucket_cap_mb=0.0005, deadline=30,
        )  # fmt: skip
        optimizer = st.wrap_optimizer(torch.optim.SGD(module.parameters(), lr=1.0), ddp, master_weights=True)
        scaler = st.LossScaler(ddp, scale=2.0**11)
        skipped, seen = [], []
        for step in range(10):
            optimizer.zero_grad()
            scaler.scale(ddp(given[rank, step], step >= 3)).backward()
            before = scaler.skipped_steps
            scaler.step(optimizer)
            skipped += [step] * (scaler.skipped_steps - before)
            seen.append(ddp.synchronizer.buckets[0].planned.name())
            scaler.update()
        state = ddp.state_dict()
        masters = optimizer.state_dict()["master_weights"]
        ddp.close()
        return masters, [state[f"sparsesync.residual.{name}.weight"].view(40, 10) for name in ("first", "second")], skipped, seen

    told = good(run_workers(2, work))
    assert told[0][2] == told[1][2] and 6 in told[0][2]
    assert told[0][3][5] != told[0][3][6]
    for place in range(2):
        owed = told[0][1][place] + told[1][1][place]
        assert torch.equal(-told[0][0][place] + owed, given.sum(dim=(0, 1)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("schedule", ["lazy", "dear"])
def test_master_weights_are_updated_as_an_optimizer_of_f32_would(dtype: torch.dtype, schedule: str) -> None:
    """One worker with master weights and a scaled loss has the bits of a training with f32 weights."""
    scale, sgd = 256.0, {"lr": 0.05, "momentum": 0.9}
    found = trained(1, range(8), dtype=dtype, masters=True, scaler={"scale": scale}, schedule=schedule, sgd=sgd)[0]
    module = Net(dtype)
    masters = [each.detach().float().requires_grad_() for each in module.parameters()]
    optimizer = torch.optim.SGD(masters, **sgd)
    for step in range(8):
        module.zero_grad()
        (module(*batch(0, step)) * scale).backward()
        for master, each in zip(masters, module.parameters(), strict=True):
            master.grad = each.grad.float() / scale
        optimizer.step()
        with torch.no_grad():
            for master, each in zip(masters, module.parameters(), strict=True):
                each.copy_(master)
    expect_same(found.state, {f"module.{name}": each for name, each in module.state_dict().items()})
    for saved, master in zip(found.optimizer["master_weights"], masters, strict=True):
        assert saved.dtype is torch.float32 and torch.equal(saved, master)


@pytest.mark.parametrize("schedule", ["lazy", "dear"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_sparse_gradients_are_unscaled(dtype: torch.dtype, schedule: str) -> None:
    """Gradients are whole numbers: the rows of a table, once with an infinite row on one worker."""

    def work(rank: int, member: st.LocalMember) -> torch.Tensor:
        table = torch.nn.Embedding(100, 4, sparse=True, dtype=dtype, _weight=torch.zeros(100, 4, dtype=dtype))
        ddp = st.DistributedDataParallel(table, process_group=member, scheme="balanced", gradient="sum", schedule=schedule, deadline=30)
        masters = dtype is torch.float16
        optimizer = st.wrap_optimizer(torch.optim.SGD(table.parameters(), lr=1.0), ddp, master_weights=masters)
        scaler = st.LossScaler(ddp, scale=64.0)
        for step in range(5):
            optimizer.zero_grad()
            times = float("inf") if (rank, step) == (1, 2) else 2.0
            scaler.scale(ddp(torch.arange(5) + rank).float().sum() * times).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.skipped_steps == 1
        ddp.close()
        return table.weight.detach()

    expected = torch.zeros(100, 4)
    expected[:5] -= 8
    expected[1:6] -= 8
    for weight in good(run_workers(2, work)):
        assert torch.equal(weight.float(), expected)


def test_small_updates_are_lost_without_master_weights() -> None:
    """A weight of 1 should fall by 1/10000 in each of 20 steps."""

    class One(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8, dtype=torch.float16))

        def forward(self) -> torch.Tensor:
            return self.weight.float().sum()

    def work(_: int, member: st.LocalMember, masters: bool) -> torch.Tensor:
        module = One()
        ddp = st.DistributedDataParallel(module, process_group=member, deadline=30)
        optimizer = st.wrap_optimizer(torch.optim.SGD(module.parameters(), lr=1e-4), ddp, master_weights=masters)
        for _ in range(20):
            optimizer.zero_grad()
            ddp().backward()
            optimizer.step()
        ddp.close()
        return module.weight.detach()

    for masters, expected in ((False, 1.0), (True, 0.998)):
        for weight in good(run_workers(2, lambda rank, member, masters=masters: work(rank, member, masters))):
            assert torch.equal(weight, torch.full((8,), expected, dtype=torch.float16))


@pytest.mark.parametrize("schedule", ["lazy", "dear"])
@pytest.mark.parametrize("name", ["dense", "DGC"])
def test_half_precision_learns_what_f32_does(name: str, schedule: str) -> None:
    options: dict[str, Any] = {"sparsifier": SPARSIFIERS[name], "sgd": {"momentum": 0.5, "lr": 0.1}, "schedule": schedule}
    expected = trained(2, range(30), wrap=True, **options)[0]
    for dtype, wire in ((torch.float16, None), (torch.bfloat16, None), (torch.float32, "f16"), (torch.float32, "bf16")):
        found = trained(2, range(30), dtype=dtype, wire=wire, masters=dtype is not torch.float32, wrap=True, scaler={}, **options)
        expect_same(weights(found[0].state), weights(found[1].state))
        losses = []
        for told in (found[0], expected):
            module = Net()
            module.load_state_dict({name.removeprefix("module."): each.float() for name, each in weights(told.state).items()})
            losses.append(float(module(*batch(0, 1000)).detach()))
        assert losses[0] == pytest.approx(losses[1], abs=0.05)
        assert losses[0] < 0.8 * float(Net()(*batch(0, 1000)).detach())


@pytest.mark.parametrize("name", ["dense", "DGC"])
def test_training_goes_on_from_a_checkpoint_bit_by_bit(name: str) -> None:
    options: dict[str, Any] = {
        "sparsifier": SPARSIFIERS[name] and dataclasses.replace(SPARSIFIERS[name], least_elements=1),
        "dtype": torch.float16,
        "masters": True,
        "scaler": {"scale": 16.0, "growth_interval": 3},
        "sgd": {"momentum": 0.5},
    }
    whole = trained(2, range(13), **options)
    saved = trained(2, range(8), **options)
    resumed = trained(2, range(8, 13), load=saved, **options)
    for one, other in zip(resumed, whole, strict=True):
        expect_same(one.state, other.state)
        assert one.scaler == other.scaler
        for a, b in zip(one.optimizer["master_weights"], other.optimizer["master_weights"], strict=True):
            assert torch.equal(a, b)


def test_weights_that_are_loaded_alone_are_the_masters() -> None:
    options: dict[str, Any] = {"dtype": torch.float16, "masters": True}

    def work(_: int, member: st.LocalMember) -> None:
        module = Net(torch.float16)
        ddp = st.DistributedDataParallel(module, process_group=member, deadline=30)
        optimizer = st.wrap_optimizer(torch.optim.SGD(module.parameters(), lr=0.05), ddp, master_weights=True)
        ddp(*batch(0, 0)).backward()
        optimizer.step()
        other = {name: each + 1 for name, each in ddp.state_dict().items()}
        ddp.load_state_dict(other)
        for master, each in zip(optimizer.state_dict()["master_weights"], module.parameters(), strict=True):
            assert torch.equal(master, each.float())
        ddp.close()

    good(run_workers(1, work))
    told = trained(1, range(2), **options)[0]
    del told.optimizer["master_weights"]
    with pytest.raises(sparsesync.InputError, match="no 'master_weights'"):
        trained(1, range(0), load=[told], **options)


def test_the_scale_falls_and_grows() -> None:
    def times(_: int, step: int) -> float:
        return float("nan") if step in (2, 3) else 1.0

    dynamic = {"scale": 64.0, "growth_interval": 3, "growth_factor": 4.0, "backoff_factor": 0.25}
    told = trained(2, range(9), scaler=dynamic, times=times)
    assert told[0].scaler == {"scale": 64.0 / 16 * 4, "good_steps": 2, "skipped_steps": 2}
    told = trained(2, range(9), scaler={**dynamic, "dynamic": False}, times=times)
    assert told[0].scaler == {"scale": 64.0, "good_steps": 0, "skipped_steps": 2}
    told = trained(1, range(4), scaler={"scale": 2.0**24, "growth_interval": 1})
    assert told[0].scaler["scale"] == 2.0**24


def test_an_overflow_of_one_step_does_not_affect_the_next() -> None:
    def work(_: int, member: st.LocalMember) -> None:
        model = Net()
        ddp = st.DistributedDataParallel(model, process_group=member)
        scaler = st.LossScaler(ddp, scale=1024.0, backoff_factor=0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for step, times in enumerate((1.0, float("nan"), 1.0)):
            optimizer.zero_grad()
            scaler.scale(ddp(*batch(0, step), times)).backward()
            scaler.unscale_(optimizer)  # the program continues with the next batch
        by_hand = Net()
        by_hand(*batch(0, 2)).backward()
        for own, each in zip(model.parameters(), by_hand.parameters(), strict=True):
            assert own.grad is not None and each.grad is not None
            assert torch.equal(own.grad, each.grad)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 512.0, "a step since the last update was skipped"
        scaler.scale(ddp(*batch(0, 0))).backward()
        scaler.step(optimizer)
        scaler.scale(ddp(*batch(0, 1))).backward()  # a loss of another batch
        scaler.update()
        assert scaler.state_dict()["good_steps"] == 1
        scaler.scale(ddp(*batch(0, 0), float("nan"))).backward()
        scaler.step(optimizer)
        before = scaler.state_dict()
        scaler.scale(ddp(*batch(0, 0))).backward()
        scaler.load_state_dict(before)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 512.0, "loading a state discards an overflow that was found before"
        ddp.close()

    good(run_workers(1, work))


def test_bad_use_is_refused() -> None:
    def work(_: int, member: st.LocalMember) -> None:
        module = Net(torch.float16)
        ddp = st.DistributedDataParallel(module, process_group=member, deadline=30, sparsifier=st.TopK(least_elements=1))
        for wrong, said in (
            ({"scale": 0}, "scale 0: more than 0"),
            ({"scale": float("inf")}, "scale inf"),
            ({"growth_factor": 1}, "growth_factor"),
            ({"backoff_factor": 1.0}, "backoff_factor"),
            ({"growth_interval": 0}, "growth_interval"),
        ):
            with pytest.raises(sparsesync.InputError, match=said):
                st.LossScaler(ddp, **wrong)
        scaler = st.LossScaler(ddp, scale=8.0)
        with pytest.raises(sparsesync.OrderError, match="already has one"):
            st.LossScaler(ddp)
        with pytest.raises(sparsesync.OrderError, match=r"call the scaler.s step\(\) first"):
            scaler.update()
        scaler.scale(ddp(*batch(0, 0))).backward()
        with pytest.raises(sparsesync.InputError, match=r"parameter 'layers.0.weight' is f16"):
            scaler.step(torch.optim.SGD(module.parameters(), lr=0.1))
        with pytest.raises(sparsesync.InputError, match=r"a parameter, \[3\], that is not one of the module's"):
            scaler.step(torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1))
        with pytest.raises(sparsesync.UnsupportedError, match="a worker without inputs"), ddp.join():
            pass
        ddp.close()

    good(run_workers(1, work))

    def of_f32(_: int, member: st.LocalMember) -> None:
        ddp = st.DistributedDataParallel(Net(), process_group=member, deadline=30)
        with pytest.raises(sparsesync.InputError, match="no parameter of the optimizer is f16"):
            st.wrap_optimizer(torch.optim.SGD(ddp.parameters(), lr=0.1), ddp, master_weights=True)
        ddp.close()

    good(run_workers(1, of_f32))


def test_workers_whose_scalers_differ() -> None:
    def work(rank: int, member: st.LocalMember) -> None:
        ddp = st.DistributedDataParallel(Net(), process_group=member, deadline=30)
        with pytest.raises(sparsesync.AgreementError, match="LossScaler"):
            st.LossScaler(ddp, scale=2.0 ** (8 + rank))
        ddp.close()

    good(run_workers(2, work))


def test_weights_that_join_has_made_equal_are_the_masters() -> None:
    def work(rank: int, member: st.LocalMember) -> Any:
        module = Net(torch.bfloat16)
        with st.DistributedDataParallel(module, process_group=member, deadline=30) as ddp:
            optimizer = st.wrap_optimizer(torch.optim.SGD(module.parameters(), lr=0.1), ddp, master_weights=True)
            for epoch in range(2):
                with ddp.join():
                    for step in range(4 - 2 * rank):
                        optimizer.zero_grad()
                        ddp(*batch(rank, 10 * epoch + step)).backward()
                        optimizer.step()
            return [each.detach().clone() for each in module.parameters()], optimizer.state_dict()["master_weights"]

    (first, of_first), (second, of_second) = good(run_workers(2, work))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    for master, of_other, each in zip(of_first, of_second, first, strict=True):
        assert torch.equal(master.bfloat16(), each)
        assert torch.equal(of_other.bfloat16(), each)
