"""The function `sparsesync.torch.synchronize`."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync
import sparsesync.torch
import torch
from workers import good, run_workers

ROWS, WIDTH = 200, 4


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randint(0, ROWS, (16,), generator=torch.Generator().manual_seed(100 * step + rank))


def tables(sparse: Any, count: int = 3, dtype: torch.dtype = torch.float32) -> list[torch.nn.Embedding]:
    """Returns equal tables on all workers. sparse: whether their gradients are, for all or for each."""
    layouts = sparse if isinstance(sparse, list) else [sparse] * count
    weights = [torch.linspace(-1, 1, ROWS * WIDTH).view(ROWS, WIDTH).to(dtype) for _ in layouts]
    return [
        torch.nn.Embedding(ROWS, WIDTH, sparse=each, dtype=dtype, _weight=weight) for each, weight in zip(layouts, weights, strict=True)
    ]


def backward(of: list[torch.nn.Embedding], rank: int, step: int = 0) -> None:
    """Runs a backward pass that depends on the rank."""
    activations: Any = batch(rank, step)
    total = sum((each(activations) * (1 + rank + place)).sum() for place, each in enumerate(of))
    assert isinstance(total, torch.Tensor)
    total.backward()


def expected(workers: int, place: int, step: int = 0, reduction: str = "mean") -> torch.Tensor:
    """Returns the reduced gradient of the table in a place."""
    total = torch.zeros(ROWS, WIDTH)
    for rank in range(workers):
        total.index_add_(0, batch(rank, step), torch.full((16, WIDTH), 1.0 + rank + place))
    return total / workers if reduction == "mean" else total


def parameters(of: list[torch.nn.Embedding]) -> list[torch.nn.Parameter]:
    return [each.weight for each in of]


def dense(gradient: torch.Tensor | None) -> torch.Tensor:
    assert gradient is not None
    return gradient.to_dense()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_gradients_become_equal(workers: int, reduction: str, sparse: bool, overlap: bool) -> None:
    def work(rank: int, member: sparsesync.torch.LocalMember) -> list[list[torch.Tensor]]:
        own = tables(sparse)
        if overlap:
            sparsesync.torch.synchronize(parameters(own), member, reduction=reduction, overlap=True)
        steps = []
        for step in range(3):
            backward(own, rank, step)
            if not overlap:
                sparsesync.torch.synchronize(parameters(own), member, reduction=reduction)
            assert all(each.weight.grad is not None and each.weight.grad.is_sparse is sparse for each in own)
            steps.append([dense(each.weight.grad).clone() for each in own])
            for each in own:
                each.zero_grad()
        return steps

    for steps in good(run_workers(workers, work)):
        for step, found in enumerate(steps):
            for place, gradient in enumerate(found):
                torch.testing.assert_close(gradient, expected(workers, place, step, reduction))


@pytest.mark.parametrize("overlap", [False, True])
def test_a_worker_without_a_gradient_gets_one_of_the_same_layout(overlap: bool) -> None:
    """The tables have, in this order: a sparse gradient on worker 0, a dense one there, none anywhere, and different layouts."""

    def work(rank: int, member: sparsesync.torch.LocalMember) -> list[torch.Tensor | None]:
        own = tables([True, False, True, rank == 0])
        used = [own[0], own[1], own[3]] if rank == 0 else [own[3]]
        if overlap:
            sparsesync.torch.synchronize(parameters(own), member, overlap=True)
        for step in range(2):  # the second step has other buckets
            for each in own:
                each.zero_grad()
            backward(used, rank, step)
            if not overlap:
                sparsesync.torch.synchronize(parameters(own), member)
        return [each.weight.grad for each in own]

    for rank, (sparse, full, unused, mixed) in enumerate(good(run_workers(2, work))):
        assert sparse.is_sparse and not full.is_sparse and unused is None and mixed.is_sparse is (rank == 0)
        alone = [torch.zeros(ROWS, WIDTH).index_add_(0, batch(0, 1), torch.full((16, WIDTH), 1.0 + place)) for place in range(2)]
        torch.testing.assert_close(dense(sparse), alone[0] / 2)
        torch.testing.assert_close(full, alone[1] / 2)
        both = torch.zeros(ROWS, WIDTH).index_add_(0, batch(0, 1), torch.full((16, WIDTH), 3.0))
        both.index_add_(0, batch(1, 1), torch.full((16, WIDTH), 2.0))
        torch.testing.assert_close(dense(mixed), both / 2)


def test_a_gradient_of_zeros_is_not_a_missing_gradient() -> None:
    def work(rank: int, member: sparsesync.torch.LocalMember) -> list[torch.Tensor | None]:
        own = tables([True, False])
        if rank == 0:
            for each in own:
                (each(batch(0, 0)) * 0).sum().backward()
        sparsesync.torch.synchronize(parameters(own), member)
        return [each.weight.grad for each in own]

    for sparse, full in good(run_workers(2, work)):
        assert sparse.is_sparse and not full.is_sparse and not dense(sparse).any() and not full.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sparse", [False, True])
def test_every_dtype(sparse: bool, dtype: torch.dtype) -> None:
    def work(rank: int, member: sparsesync.torch.LocalMember) -> torch.Tensor:
        (own,) = tables(sparse, 1, dtype)
        backward([own], rank)
        sparsesync.torch.synchronize(parameters([own]), member)
        return dense(own.weight.grad)

    for found in good(run_workers(2, work)):
        assert found.dtype is dtype and torch.equal(found, expected(2, 0).to(dtype))  # small integers, exact


def test_parameters_of_other_shapes_and_strides() -> None:
    """A scalar, a vector, a matrix with columns in memory order, one without elements, and one that is given twice."""

    def work(rank: int, member: sparsesync.torch.LocalMember) -> list[torch.Tensor]:
        shapes = [(), (7,), (5, 3), (0, 4)]
        own = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]
        own[2].grad = torch.ones(3, 5).t() * rank
        own[0].grad, own[1].grad = torch.tensor(4.0 * rank), torch.arange(7.0) * (rank + 1)
        sparsesync.torch.synchronize([*own, own[0]], member)
        assert own[3].grad is None
        return [dense(each.grad) for each in own[:3]]

    for scalar, vector, matrix in good(run_workers(2, work)):
        assert torch.equal(scalar, torch.tensor(2.0)) and torch.equal(vector, torch.arange(7.0) * 1.5)
        assert torch.equal(matrix, torch.full((5, 3), 0.5)) and matrix.stride() == (1, 5)


def test_no_sync_accumulates() -> None:
    def work(rank: int, member: sparsesync.torch.LocalMember) -> list[torch.Tensor]:
        own = tables(True)
        hooks = sparsesync.torch.synchronize(parameters(own), member, overlap=True)
        with hooks.no_sync():
            backward(own, rank, 0)
        backward(own, rank, 1)
        summed = [dense(each.weight.grad) for each in own]
        hooks.remove()
        for each in own:
            each.zero_grad()
        backward(own, rank, 0)
        local = torch.zeros(ROWS, WIDTH).index_add_(0, batch(rank, 0), torch.full((16, WIDTH), 1.0 + rank))
        assert torch.equal(dense(own[0].weight.grad), local)  # hooks that are removed do nothing
        return summed

    for found in good(run_workers(2, work)):
        for place, gradient in enumerate(found):
            torch.testing.assert_close(gradient, expected(2, place, 0) + expected(2, place, 1))


def test_gradients_are_sent_within_the_backward_pass() -> None:
    own = tables(True, 2)
    hooks = sparsesync.torch.synchronize(parameters(own), "alone", overlap=True)
    first, second = own[0](batch(0, 0)), own[1](batch(0, 0))
    sent = []
    first.register_hook(lambda _: sent.append(len(hooks._started)))  # backward reaches the second table before
    (first.sum() + second.sum()).backward()
    assert sent == [1] and not hooks._started


def test_a_failed_backward_pass_is_an_error_of_the_next_one() -> None:
    own = tables(True, 2)
    sparsesync.torch.synchronize(parameters(own), "alone", overlap=True)

    def fail(_: torch.Tensor) -> None:
        raise RuntimeError("a hook of the test")

    def run(fails: bool) -> None:
        first = own[0](batch(0, 0))
        if fails:
            first.register_hook(fail)  # type: ignore[no-untyped-call]
        (first.sum() + own[1](batch(0, 0)).sum()).backward()

    run(False)
    with pytest.raises(RuntimeError, match="a hook of the test"):
        run(True)
    with pytest.raises(sparsesync.OrderError, match="the last backward pass failed"):
        run(False)


def test_an_error_of_a_step_is_raised_by_backward() -> None:
    def work(rank: int, member: sparsesync.torch.LocalMember) -> None:
        own = tables(True, 1 + rank)
        own[-1].weight.data = own[-1].weight.data[: ROWS - rank]
        sparsesync.torch.synchronize(parameters(own[-1:]), member, overlap=True)
        own[-1](torch.tensor([rank])).sum().backward()

    for each in run_workers(2, work):
        assert isinstance(each, sparsesync.AgreementError), each


def test_wrong_arguments() -> None:
    table = torch.nn.Embedding(5, 2)
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    for given, says in (
        ([], "synchronize: no parameters are given"),
        ([torch.nn.Parameter(torch.ones(0))], "synchronize: no parameters are given"),
        (table.weight, r"synchronize: one tensor is given: give several parameters, such as \[table.weight\]"),
        ([frozen], "synchronize: a Parameter that is not a parameter, or needs no gradient"),
        ([table.weight * 2], "synchronize: a Tensor that is not a parameter, or needs no gradient"),
        ([table], "synchronize: a Embedding that is not a parameter"),
        (["weight"], "synchronize: a str that is not a parameter"),
        ([table.weight, torch.nn.Parameter(torch.ones(2, device="meta"))], "synchronize: parameters on cpu and meta"),
    ):
        with pytest.raises(sparsesync.InputError, match=says):
            sparsesync.torch.synchronize(given, "alone")
    with pytest.raises(sparsesync.InputError, match="there is no reduction 'max'"):
        sparsesync.torch.synchronize(table.parameters(), "alone", reduction="max")
    with pytest.raises(sparsesync.UnsupportedError, match="a parameter of torch.complex64"):
        sparsesync.torch.synchronize([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))], "alone")
    square = torch.nn.Parameter(torch.ones(3, 3))
    square.grad = torch.eye(3).to_sparse(2)
    with pytest.raises(sparsesync.UnsupportedError, match="a gradient of the layout torch.sparse_coo with 2 dimensions"):
        sparsesync.torch.synchronize([square], "alone")
