"""With every schedule, weights are those of a training that waits for all communication, and those of torch."""
# ctest: COST 30 SLOW reader_sees

from __future__ import annotations

import copy
import io

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync  # noqa: E402 (needs torch)
from schedule_cases import (  # noqa: E402 (needs torch)
    SCHEDULES,
    WORKERS,
    Model,
    Turning,
    batch,
    expect_as_sequential,
    expect_equal,
    loss_of,
    optimizers_of,
    reference,
    run,
    sgd,
    train,
    train_by_torch,
    weights,
)
from sparsesync.torch import DistributedDataParallel, wrap_optimizer  # noqa: E402 (needs torch)
from sparsesync.torch.schedule import deferred_params  # noqa: E402 (needs torch)
from workers import good, run_workers, seeded  # noqa: E402 (needs torch)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_weights_are_those_of_torch(schedule):
    def work(rank, ddp, module):
        optimizers = optimizers_of(module, sgd)
        for each in optimizers:
            wrap_optimizer(each, ddp)
        train(ddp, rank, optimizers, steps=9)  # plans again during training
        return weights(module)

    expected = reference(lambda module: optimizers_of(module, sgd), steps=9)
    results = run(work, schedule)
    for each in results:
        expect_equal(each, results[0])
    for name, value in expected.items():
        assert torch.allclose(results[0][name], value, rtol=1e-4, atol=1e-5), name


def trained(rank, ddp, module, steps=3):
    optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
    train(ddp, rank, optimizers, steps)
    return optimizers


def saved(state):
    """Returns the state after a round trip through a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def module_logits(module, rank):
    module.eval()
    with torch.no_grad():
        return {"logits": module(batch(rank=0, step=99))}


LOOKS = {
    "evaluation of the wrapper": lambda ddp, module, optimizers: module_logits(ddp, 0),
    "evaluation of the module": lambda ddp, module, optimizers: module_logits(module, 0),
    "state_dict of the wrapper": lambda ddp, module, optimizers: saved(ddp.state_dict()),
    "state_dict of the module": lambda ddp, module, optimizers: saved(module.state_dict()),
    "state_dict of a layer": lambda ddp, module, optimizers: saved(module.last.state_dict()),
    "state of an optimizer": lambda ddp, module, optimizers: {
        f"{i}.{name}": value
        for i, state in saved(optimizers[0].state_dict())["state"].items()
        for name, value in state.items()
        if value is not None
    },
    "a parameter": lambda ddp, module, optimizers: {"sum": module.last.weight + 0},
    "a gradient": lambda ddp, module, optimizers: {"gradient": module.last.weight.grad.clone()},
    "data": lambda ddp, module, optimizers: {"data": module.last.weight.data.clone()},
    "NumPy": lambda ddp, module, optimizers: {"array": torch.tensor(module.last.weight.detach().numpy().copy())},
    "a list": lambda ddp, module, optimizers: {"cat": torch.cat([module.last.weight, module.twice.weight])},
    "a copy": lambda ddp, module, optimizers: weights(copy.deepcopy(module)),
    "synchronize()": lambda ddp, module, optimizers: (ddp.synchronize(), weights(module))[1],
    "the end": lambda ddp, module, optimizers: (ddp.close(), weights(module))[1],
}


@pytest.mark.parametrize("look", LOOKS)
def test_every_reader_sees_the_last_step(look):
    def work(rank, ddp, module):
        optimizers = trained(rank, ddp, module)
        if ddp.statistics()["schedule"]["name"] == "dear":
            assert isinstance(module.last.weight, deferred_params.Pending), "the step is still running"
        return LOOKS[look](ddp, module, optimizers)

    expect_as_sequential(work)


def test_calls_without_values_do_not_wait():
    def work(rank, ddp, module):
        trained(rank, ddp, module)
        weight = module.last.weight
        assert isinstance(weight, torch.nn.Parameter)
        assert (weight.shape, weight.dtype, weight.numel(), weight.requires_grad) == ((3, 8), torch.float32, 24, True)
        assert weight in set(module.parameters())
        return isinstance(weight, deferred_params.Pending)

    assert run(work, "dear") == [True] * WORKERS


def test_weights_that_are_loaded_are_those_of_the_file():
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        train(ddp, rank, optimizers, 2)
        kept = copy.deepcopy(ddp.state_dict()), copy.deepcopy(optimizers[0].state_dict())
        train(ddp, rank, optimizers, 2)
        ddp.load_state_dict(kept[0])
        optimizers[0].load_state_dict(kept[1])
        train(ddp, rank, optimizers, 2)
        return weights(module)

    expect_as_sequential(work)


@pytest.mark.parametrize("schedule", ["lazy", "wfbp", "dear"])
def test_the_order_is_learned_again_when_the_graph_changes(schedule):
    steps = 16

    def work(rank, member):
        module = Turning()
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", schedule=schedule)
        optimizer = wrap_optimizer(sgd(list(module.parameters())), ddp)
        orders = []
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(ddp, batch(rank, step), step).backward()
            optimizer.step()
            members = [each.name for bucket in ddp.synchronizer.buckets for each in bucket.planned.members]
            orders.append([int(name[7]) for name in members if name.startswith("layers.") and name.endswith("weight")])
        return orders, weights(module)

    module = Turning()
    train_by_torch(module, [sgd(list(module.parameters()))], steps)
    for orders, found in good(run_workers(WORKERS, work)):
        assert orders[3] == [2, 1, 0] and orders[-1] == [0, 1, 2]
        assert orders.count([0, 1, 2]) >= 6, "at the seventh step, or the eighth"
        for name, value in weights(module).items():
            assert torch.allclose(found[name], value, rtol=1e-4, atol=1e-5), name


class Borrowing(torch.nn.Module):
    """Uses a layer's weights without the layer. The module also has direct parameters."""

    def __init__(self):
        super().__init__()
        with seeded(7):
            self.table = torch.nn.Embedding(500, 8)
            self.head = torch.nn.Linear(8, 3)
            self.own = torch.nn.Parameter(torch.randn(8, 8))

    def forward(self, ids, step=0):
        return torch.nn.functional.linear(self.table(ids) @ self.own, self.head.weight, self.head.bias)


@pytest.mark.parametrize("made", [Model, Borrowing])
@pytest.mark.parametrize("what", ["the wrapper", "the module"])
def test_compiled_code_sees_the_last_step(what, made):
    def trained(compiled):
        def work(rank, member):
            module = made()
            if compiled and what == "the module":
                module.compile(backend="aot_eager")
            ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", schedule="dear")
            called = torch.compile(ddp, backend="aot_eager") if compiled and what == "the wrapper" else ddp
            optimizer = wrap_optimizer(torch.optim.Adagrad(module.parameters()), ddp)
            for step in range(9):
                optimizer.zero_grad()
                loss_of(called, batch(rank, step), step).backward()
                optimizer.step()
            ddp.close()
            return weights(module)

        # With one worker, because torch compiles for one thread at a time.
        return good(run_workers(1, work))[0]

    ours, theirs = trained(True), trained(False)
    for name, value in ours.items():
        assert torch.allclose(value, theirs[name], rtol=1e-4, atol=1e-6), name


def by_torch_and_dear(steps, train_one, look=weights, module=Model):
    """Returns look(module) after `train_one(of, module, optimizers, rank or None, steps)`: with torch, and with `dear`."""
    plain = module()
    expected = look(train_one(plain, plain, optimizers_of(plain, sgd), None, steps))

    def work(rank, member):
        of = module()
        ddp = DistributedDataParallel(of, process_group=member, scheme="balanced", schedule="dear")
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(of, sgd)]
        return look(train_one(ddp, of, optimizers, rank, steps))

    for found in good(run_workers(WORKERS, work)):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.allclose(found[name], value, rtol=1e-4, atol=1e-5), name


def plainly(of, module, optimizers, rank, steps):
    """Trains with torch alone if `rank` is None."""
    if rank is None:
        train_by_torch(module, optimizers, steps)
    else:
        train(of, rank, optimizers, steps)
    return module


def accumulating(of, module, optimizers, rank, steps):
    """Adds up the gradients of two batches, and synchronizes only the second pass."""
    for step in range(0, 2 * steps, 2):
        for each in optimizers:
            each.zero_grad()
        for number in (step, step + 1):
            if rank is None:
                for worker in range(WORKERS):
                    (loss_of(of, batch(worker, number), number) / WORKERS).backward()
            elif number == step:
                with of.no_sync():
                    loss_of(of, batch(rank, number), number).backward()
            else:
                loss_of(of, batch(rank, number), number).backward()
        for each in optimizers:
            each.step()
    return module


class WithoutBuffers(Model):
    """Has no buffers. torch alone runs all workers' passes one after another, so its running means would match no worker."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)


def logits(module):
    module.eval()
    with torch.no_grad():
        return {"logits": module(batch(rank=0, step=99))}


# Errors in the code that DeAR's authors published, each compared with torch.
PITFALLS = {
    "the last step is made": lambda: by_torch_and_dear(1, plainly),
    "several groups, layers unused, used twice, out of order": lambda: by_torch_and_dear(7, plainly),
    "accumulation": lambda: by_torch_and_dear(4, accumulating, module=WithoutBuffers),
    "evaluation sees the last step": lambda: by_torch_and_dear(3, plainly, logits, WithoutBuffers),
    "a checkpoint has the last step": lambda: by_torch_and_dear(3, plainly, lambda module: saved(module.state_dict()), WithoutBuffers),
}


@pytest.mark.parametrize("name", PITFALLS)
def test_pitfalls(name):
    PITFALLS[name]()


def test_announced_rows():
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        train(ddp, rank, optimizers, 9)
        return weights(module)

    expect_as_sequential(work, announce=True)


def test_uneven_inputs():
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        with ddp.join():
            train(ddp, rank, optimizers, 2 + rank)
        return weights(module)

    expect_as_sequential(work)


def test_buffers_are_those_of_worker_0():
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        train(ddp, rank, optimizers, 4)
        with torch.enable_grad():
            ddp(batch(rank=5, step=5))  # the same batch on all workers
        return {name: each.clone() for name, each in module.named_buffers()}

    expect_as_sequential(work)


def test_statistics_have_expected_and_measured_seconds():
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        train(ddp, rank, optimizers, 12)
        return ddp.statistics()["schedule"]

    for statistics in run(work, "dear"):
        assert statistics["name"] == "dear"
        assert statistics["buckets"] >= 2
        assert statistics["under_forward"]
        for of in ("expected", "measured"):
            assert statistics[of]["iteration_s"] > 0
            assert statistics[of]["communication_s"] > 0
            assert statistics[of]["compute_s"] > 0
        exposed = statistics["exposed"]
        assert sum(each["seconds"] for each in exposed) == pytest.approx(statistics["expected"]["exposed_s"])
        # The control messages of three workers on two cores take longer than any computation, so the first layers' gradients are exposed.
        assert {each["phase"] for each in exposed} <= {"announce", "reduce", "gather"}
        assert any("ready last and needed first" in each["why"] for each in exposed)


def test_bad_use_is_refused():
    def work(rank, ddp, module):
        with pytest.raises(sparsesync.InputError, match="none of the optimizer's parameters"):
            wrap_optimizer(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1), ddp)
        with pytest.raises(sparsesync.InputError, match=r"not a torch\.optim\.Optimizer"):
            wrap_optimizer(ddp, ddp)
        optimizers = trained(rank, ddp, module)
        with pytest.raises(sparsesync.OrderError, match="before the first step"):
            wrap_optimizer(optimizers[0], ddp)

    run(work, "dear")
    with pytest.raises(sparsesync.InputError, match="mg_wfbp_exact"):
        DistributedDataParallel(torch.nn.Linear(2, 2), schedule="soon")


def test_workers_with_different_schedules_get_an_error():
    def work(rank, member):
        DistributedDataParallel(Model(), process_group=member, schedule="dear" if rank == 1 else "wfbp")

    results = run_workers(WORKERS, work)
    assert all(isinstance(each, sparsesync.AgreementError) and "schedule" in str(each) for each in results), results
