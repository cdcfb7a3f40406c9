"""Clipping of gradients by their norm before the gather phase."""
# ctest: EMULATED

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

from schedule_cases import (  # noqa: E402 (needs torch)
    EACH_BY_ITSELF,
    WORKERS,
    Model,
    Turning,
    batch,
    expect_equal,
    loss_of,
    optimizers_of,
    run,
    sgd,
    train,
    train_by_torch,
    weights,
)
from sparsesync.torch import DistributedDataParallel, wrap_optimizer  # noqa: E402 (needs torch)
from sparsesync.torch.optimizer.grad_ops import norm_of  # noqa: E402 (needs torch)
from sparsesync.torch.schedule import deferred_params  # noqa: E402 (needs torch)
from workers import good, run_workers  # noqa: E402 (needs torch)


def clipping(most, steps=4, **options):
    """Trains with clipped gradients. Compares norms, too. Records how many buckets were still in transfer behind each clipping."""
    crossing = []

    def work(rank, ddp, module):
        optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
        norms = []
        for step in range(steps):
            for each in optimizers:
                each.zero_grad()
            loss_of(ddp, batch(rank, step), step).backward()
            norms.append(ddp.clip_grad_norm_(most, **options))
            crossing.append(sum(isinstance(each, deferred_params.Pending) for each in module.parameters()))
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
    if schedule == "dear":  # the first call learns that gradients are clipped; no later call waits for the gather phase
        assert sorted(crossing)[WORKERS:] == [len(list(Model().parameters()))] * (len(crossing) - WORKERS)


def test_a_step_is_clipped_before_buckets_change():
    steps = 12  # buckets are reordered after the seventh step

    def work(rank, member):
        module = Turning()
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", schedule="dear")
        optimizer = wrap_optimizer(sgd(list(module.parameters())), ddp)
        of_steps = []
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(ddp, batch(rank, step), step).backward()
            of_steps.append([bucket.number for bucket in ddp.synchronizer.buckets])
            ddp.clip_grad_norm_(0.05)
            optimizer.step()
        ddp.close()
        return weights(module), of_steps

    module = Turning()
    clip = functools.partial(torch.nn.utils.clip_grad_norm_, list(module.parameters()), 0.05)
    train_by_torch(module, [sgd(list(module.parameters()))], steps, before_step=clip)
    for found, of_steps in good(run_workers(WORKERS, work)):
        assert of_steps[0] != of_steps[-1], "the same buckets all the time"
        for name, value in weights(module).items():
            assert torch.allclose(found[name], value, rtol=1e-4, atol=1e-5), name


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


def after_backward(rank, ddp, module, factor=1.0):
    """Runs a step up to the end of its backward pass; its gradients can be clipped before the gather phase."""
    optimizers = [wrap_optimizer(each, ddp) for each in optimizers_of(module, sgd)]
    train(ddp, rank, optimizers)
    ddp.clip_grad_norm_(1.0)
    for each in optimizers:
        each.zero_grad()
    (loss_of(ddp, batch(rank, 5), 5) * factor).backward()


def test_gradients_that_are_not_finite_can_be_refused():
    def work(rank, ddp, module):
        after_backward(rank, ddp, module, factor=float("nan") if rank == 1 else 1.0)
        with pytest.raises(RuntimeError, match="norm of order 2.0 of the gradients is nan"):
            ddp.clip_grad_norm_(1.0, error_if_nonfinite=True)
        assert torch.isnan(ddp.clip_grad_norm_(1.0))

    run(work, "dear")


def test_a_gradient_that_the_program_changed_is_clipped_as_it_is():
    def work(rank, ddp, module):
        after_backward(rank, ddp, module)
        module.last.weight.grad.fill_(100.0)
        return {"norm": ddp.clip_grad_norm_(1.0)}

    for result in run(work, "dear"):
        assert result["norm"] > 100


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_gradients_without_elements_count_as_zeros(norm_type):
    empty = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0, 3), (4, 3))
    assert float(norm_of([empty], norm_type)) == 0
    assert float(norm_of([empty, torch.tensor([0.0, -2.0])], norm_type)) == 2


def test_gradients_that_are_clipped_twice_have_the_smaller_norm():
    def work(rank, ddp, module):
        after_backward(rank, ddp, module, factor=100.0)
        first = ddp.clip_grad_norm_(0.5)
        second = ddp.clip_grad_norm_(0.01)
        assert isinstance(module.last.weight, deferred_params.Pending)
        ddp.synchronize()
        norm = norm_of([each.grad for each in module.parameters() if each.grad is not None], 2.0)
        assert first > 1
        assert torch.allclose(second, torch.tensor(0.5), rtol=1e-4)
        assert torch.allclose(norm, torch.tensor(0.01), rtol=1e-4)

    run(work, "dear")


def test_gradients_that_one_worker_has_read_are_clipped_by_the_same_bits():
    def work(rank, ddp, module):
        norms = []
        after_backward(rank, ddp, module)
        for step in range(6):
            if rank == 1:
                assert torch.isfinite(module.last.weight.grad).all()
            norms.append(ddp.clip_grad_norm_(0.3))
            ddp.synchronize()
            module.zero_grad()
            (loss_of(ddp, batch(rank, step), step) * (1.0 + step)).backward()
        ddp.clip_grad_norm_(0.3)
        gradients = {name: each.grad.to_dense() for name, each in module.named_parameters() if each.grad is not None}
        return {**gradients, "norms": torch.stack(norms)}

    results = run(work, "dear")
    for result in results:
        expect_equal(result, results[0])
