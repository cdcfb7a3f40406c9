"""Schedules in training: whatever crosses when, weights are those of a training that waits for everything, and of torch's."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync  # noqa: E402 (needs torch)
from sparsesync.torch import DistributedDataParallel, pending, wrap_optimizer  # noqa: E402 (needs torch)
from workers import good, run_workers, seeded  # noqa: E402 (needs torch)

WORKERS = 3
SCHEDULES = [name for name, _ in sparsesync.schedules()]


class Model(torch.nn.Module):
    """A sparse table, a dense one, layers that are used twice, in another order than they are named, and not in every step."""

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


def batch(rank, step, size=12):
    source = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randint(0, 500, (size,), generator=source)


def loss_of(module, ids, step):
    return torch.nn.functional.cross_entropy(module(ids, step), ids % 3)


def dense_groups(module):
    """Several groups, each with a learning rate of its own. The sparse table is another optimizer's."""
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
    """What `work(rank, ddp, module)` returned on each worker, where modules are alike."""

    def on_worker(rank, member):
        module = Model()
        ddp = DistributedDataParallel(module, member, schedule=schedule, **{"scheme": "balanced", **options})
        result = work(rank, ddp, module)
        ddp.close()
        return result

    return good(run_workers(WORKERS, on_worker))


EACH_BY_ITSELF = 1e-9  # MiB: sums have their bits from the bucket that they are made in


def expect_as_sequential(work, others=("dear", "auto"), **options):
    """The results of each worker are the same bits where everything is waited for and where it is not; and, where buckets are
    others, the same but for rounding."""
    expected = run(work, "sequential", **options)
    for schedule, cap in [("sequential", None), ("dear", EACH_BY_ITSELF)]:
        for rank, result in enumerate(run(work, schedule, bucket_cap_mb=cap, **options)):
            expect_equal(result, expected[rank])
    for schedule in others:
        for rank, result in enumerate(run(work, schedule, **options)):
            for name, value in expected[rank].items():
                assert torch.allclose(result[name], value, rtol=1e-3, atol=1e-5), name


def train_by_torch(module, optimizers, steps, before_step=lambda: None):
    """By torch alone: gradients are means over the workers' batches, one after another."""
    for step in range(steps):
        for each in optimizers:
            each.zero_grad()
        buffers = copy.deepcopy(dict(module.named_buffers()))
        for rank in range(WORKERS):
            with torch.no_grad():  # each worker has worker 0's
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


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_weights_are_those_of_torch(schedule):
    def work(rank, ddp, module):
        optimizers = optimizers_of(module, sgd)
        for each in optimizers:
            wrap_optimizer(each, ddp)
        train(ddp, rank, optimizers, steps=9)  # plans anew on the way
        return weights(module)

    expected = reference(lambda module: optimizers_of(module, sgd), steps=9)
    results = run(work, schedule)
    for each in results:
        expect_equal(each, results[0])
    for name, value in expected.items():
        assert torch.allclose(results[0][name], value, rtol=1e-4, atol=1e-5), name


OPTIMIZERS = {
    "SGD": sgd,
    "SGD, foreach": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, foreach=True),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
    "Adam, fused": lambda groups: torch.optim.Adam(groups, lr=0.01, fused=True),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.01, amsgrad=True),
    "Adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.05, lr_decay=0.1),
    "Adadelta": lambda groups: torch.optim.Adadelta(groups, lr=0.5),
    "Adamax": lambda groups: torch.optim.Adamax(groups, lr=0.01),
    "NAdam": lambda groups: torch.optim.NAdam(groups, lr=0.01),
    "RAdam": lambda groups: torch.optim.RAdam(groups, lr=0.01),
    "ASGD": lambda groups: torch.optim.ASGD(groups, lr=0.05),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.9),
    "Rprop": lambda groups: torch.optim.Rprop(groups, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_with_several_groups(name):
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, OPTIMIZERS[name])]
        train(ddp, rank, optimizers)
        return weights(module)

    expect_as_sequential(work)


@pytest.mark.parametrize("before", [True, False])
def test_schedulers_change_the_rate_of_the_steps_behind_them(before):
    def work(rank, ddp, module):
        optimizers = optimizers_of(module, sgd)
        schedulers = []
        for wraps in (False, True) if before else (True, False):
            for each in optimizers:
                if wraps:
                    wrap_optimizer(each, ddp)
                else:
                    schedulers.append(torch.optim.lr_scheduler.ExponentialLR(each, 0.5))
        train(ddp, rank, optimizers, schedulers=schedulers)
        return weights(module)

    with warnings_are_errors():
        expect_as_sequential(work)


@contextlib.contextmanager
def warnings_are_errors():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def test_gradients_accumulate_over_several_passes():
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        for step in range(4):
            for each in optimizers:
                each.zero_grad()
            for part in range(3):
                with ddp.no_sync() if part < 2 else contextlib.nullcontext():
                    loss_of(ddp, batch(rank, 3 * step + part), step).backward()
            for each in optimizers:
                each.step()
        ddp.synchronize()
        return weights(module)

    expect_as_sequential(work)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("of", ["optimizer", "ddp", "module", "nobody"])
def test_gradients_are_cleared_where_they_are_after_their_step(of, set_to_none):
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        clearing = {"optimizer": optimizers, "ddp": [ddp], "module": [module], "nobody": []}[of]
        for step in range(4):
            loss_of(ddp, batch(rank, step), step).backward()
            for each in optimizers:
                each.step()
            for each in clearing:
                each.zero_grad(set_to_none=set_to_none)
        left = {f"{name}, gradient": each.grad for name, each in module.named_parameters()}
        if of != "nobody":
            assert all(each is None or (not set_to_none and not each.to_dense().any()) for each in left.values())
        return {**weights(module), **{name: each for name, each in left.items() if each is not None and not each.is_sparse}}

    expect_as_sequential(work)


def test_clipping_by_the_global_norm():
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        dense = [each for name, each in module.named_parameters() if name != "table.weight"]
        norms = []
        for step in range(4):
            for each in optimizers:
                each.zero_grad()
            loss_of(ddp, batch(rank, step), step).backward()
            norms.append(torch.nn.utils.clip_grad_norm_(dense, 0.1))
            for each in optimizers:
                each.step()
        return {**weights(module), "norms": torch.stack(norms)}

    expect_as_sequential(work)


def test_scaled_losses_and_steps_that_are_left_out():
    """torch.amp's scaler leaves out a step whose gradients are infinite on some worker."""

    def work(rank, ddp, module):
        optimizer = wrap_optimizer(sgd([each for name, each in module.named_parameters() if name != "table.weight"]), ddp)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
        scales = []
        for step in range(5):
            ddp.zero_grad()
            loss = loss_of(ddp, batch(rank, step), step)
            if step == 2 and rank == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        assert scales == [256, 512, 256, 256, 512]
        return weights(module)

    expect_as_sequential(work)


def test_autocast():
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        for step in range(4):
            for each in optimizers:
                each.zero_grad()
            # Threads of a process share the cache, and empty each other's: a weight used twice is then cast once, or twice.
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                loss = loss_of(ddp, batch(rank, step), step)
            loss.backward()
            for each in optimizers:
                each.step()
        ddp.synchronize()
        return weights(module)

    expect_as_sequential(work)


def clipping(most, steps=4, **options):
    """Trains with clipped gradients; the norms are among what is compared. How many buckets still crossed behind each is kept."""
    crossing = []

    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        norms = []
        for step in range(steps):
            for each in optimizers:
                each.zero_grad()
            loss_of(ddp, batch(rank, step), step).backward()
            norms.append(ddp.clip_grad_norm_(most, **options))
            crossing.append(sum(isinstance(each, pending.Pending) for each in module.parameters()))
            for each in optimizers:
                each.step()
        return {**weights(module), "norms": torch.stack(norms)}

    return work, crossing


def clipped_by_torch(most, steps=4):
    module = Model()
    optimizers = optimizers_of(module, sgd)
    norms = []

    def clip():
        gradients = [each.grad for each in module.parameters() if each.grad is not None]
        values = [each.coalesce().values() if each.is_sparse else each for each in gradients]
        norms.append(torch.linalg.vector_norm(torch.cat([each.flatten() for each in values])))
        for each in gradients:
            each.mul_(min(1.0, most / (norms[-1] + 1e-6)))

    train_by_torch(module, optimizers, steps, before_step=clip)
    return {**weights(module), "norms": torch.stack(norms)}


@pytest.mark.parametrize("most", [0.05, 1000.0])
@pytest.mark.parametrize("schedule", ["sequential", "dear", "auto"])
def test_gradients_are_clipped_by_the_norm_of_all_of_them(schedule, most):
    work, crossing = clipping(most)
    expected = clipped_by_torch(most)
    results = run(work, schedule)
    for result in results:
        expect_equal(result, results[0])
    for name, value in expected.items():
        assert torch.allclose(results[0][name], value, rtol=1e-4, atol=1e-5), name
    if schedule == "dear":  # the first call learns that there are such; none of the others waits for what is gathered
        assert sorted(crossing)[WORKERS:] == [len(list(Model().parameters()))] * (len(crossing) - WORKERS)


@pytest.mark.parametrize(
    "options", [{"norm_type": 1.0}, {"norm_type": float("inf")}, {"scheme": "all_gather"}, {"wire": "bf16"}, {"announce": True}], ids=str
)
def test_clipping_in_other_ways(options):
    options = dict(options)
    norm = {"norm_type": options.pop("norm_type")} if "norm_type" in options else {}
    work, _ = clipping(0.05, **norm)
    expected = run(work, "sequential", bucket_cap_mb=None, **options)
    for rank, result in enumerate(run(work, "dear", bucket_cap_mb=EACH_BY_ITSELF, **options)):
        for name, value in expected[rank].items():
            assert torch.allclose(result[name], value, rtol=1e-4, atol=1e-6), name


def test_gradients_that_are_not_finite_can_be_refused():
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        train(ddp, rank, optimizers)
        ddp.clip_grad_norm_(1.0)
        for each in optimizers:
            each.zero_grad()
        (loss_of(ddp, batch(rank, 5), 5) * (float("nan") if rank == 1 else 1)).backward()
        with pytest.raises(RuntimeError, match="norm of order 2.0 of the gradients is nan"):
            ddp.clip_grad_norm_(1.0, error_if_nonfinite=True)
        assert torch.isnan(ddp.clip_grad_norm_(1.0))

    run(work, "dear")


def test_a_gradient_that_the_program_changed_is_clipped_as_it_is():
    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        train(ddp, rank, optimizers)
        ddp.clip_grad_norm_(1.0)
        for each in optimizers:
            each.zero_grad()
        loss_of(ddp, batch(rank, 5), 5).backward()
        module.last.weight.grad.fill_(100.0)
        return {"norm": ddp.clip_grad_norm_(1.0)}

    for result in run(work, "dear"):
        assert result["norm"] > 100


def trained(rank, ddp, module, steps=3):
    optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
    train(ddp, rank, optimizers, steps)
    return optimizers


def saved(state):
    """As a file has it, and a program finds it."""
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
def test_whoever_looks_sees_the_last_step(look):
    def work(rank, ddp, module):
        optimizers = trained(rank, ddp, module)
        if ddp.statistics()["schedule"]["name"] == "dear":
            assert isinstance(module.last.weight, pending.Pending), "the step is still under way"
        return LOOKS[look](ddp, module, optimizers)

    expect_as_sequential(work)


def test_what_asks_for_no_values_does_not_wait():
    def work(rank, ddp, module):
        trained(rank, ddp, module)
        weight = module.last.weight
        assert isinstance(weight, torch.nn.Parameter)
        assert (weight.shape, weight.dtype, weight.numel(), weight.requires_grad) == ((3, 8), torch.float32, 24, True)
        assert weight in set(module.parameters())
        return isinstance(weight, pending.Pending)

    assert run(work, "dear") == [True] * WORKERS


def test_an_optimizer_that_is_not_wrapped_waits():
    def work(rank, ddp, module):
        optimizers = optimizers_of(module, sgd)
        train(ddp, rank, optimizers)
        return weights(module)

    expect_as_sequential(work)


def test_steps_with_a_closure_or_hooks_or_of_an_optimizer_that_looks_at_all_parameters_wait():
    def work(rank, ddp, module):
        parameters = [each for name, each in module.named_parameters() if name != "table.weight"]
        calls = itertools.count()
        hooked = sgd(parameters)
        hooked.register_step_post_hook(lambda *_: next(calls))
        optimizers = [wrap_optimizer(hooked, ddp), wrap_optimizer(torch.optim.LBFGS(parameters, lr=0.01, max_iter=2), ddp)]
        for step in range(3):

            def closure(step=step):
                ddp.zero_grad()
                loss = loss_of(ddp, batch(rank, step), step)
                loss.backward()
                return loss

            closure()
            hooked.step()
            optimizers[1].step(closure)
        assert next(calls) == 3
        return weights(module)

    expect_as_sequential(work)


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
            ddp(batch(rank=5, step=5))  # the same on all
        return {name: each.clone() for name, each in module.named_buffers()}

    expect_as_sequential(work)


def test_statistics_have_what_was_expected_beside_what_was_measured():
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


def test_bad_use_is_refused():
    def work(rank, ddp, module):
        with pytest.raises(sparsesync.InputError, match="none of the optimizer's parameters"):
            wrap_optimizer(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1), ddp)
        with pytest.raises(sparsesync.InputError, match=r"no torch\.optim\.Optimizer"):
            wrap_optimizer(ddp, ddp)
        optimizers = trained(rank, ddp, module)
        with pytest.raises(sparsesync.OrderError, match="before the first step"):
            wrap_optimizer(optimizers[0], ddp)

    run(work, "dear")
    with pytest.raises(sparsesync.InputError, match="mg_wfbp_exact"):
        DistributedDataParallel(torch.nn.Linear(2, 2), schedule="soon")


def test_workers_that_ask_for_other_schedules_are_told():
    def work(rank, member):
        DistributedDataParallel(Model(), member, schedule="dear" if rank == 1 else "wfbp")

    results = run_workers(WORKERS, work)
    assert all(isinstance(each, sparsesync.AgreementError) and "schedule" in str(each) for each in results), results
