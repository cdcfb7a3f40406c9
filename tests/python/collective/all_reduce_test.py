"""The function `sparsesync.torch.all_reduce`."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync
import sparsesync.torch
import torch

ROWS = 1000


def rows_of(rank: int, width: int = 4) -> tuple[Any, Any]:
    source = torch.Generator().manual_seed(rank)
    indices = torch.randint(0, ROWS, (50,), generator=source)
    return indices, torch.randint(-4, 5, (50, width), generator=source).to(torch.float32)


def dense(indices: Any, values: Any) -> Any:
    return torch.zeros(ROWS, *values.shape[1:]).index_add_(0, indices, values)


def on_all(workers: int, call: Any) -> list[Any]:
    members = sparsesync.torch.local_group(workers)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(call, members))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_both_forms_give_the_sum(workers: int) -> None:
    right = sum(dense(*rows_of(rank)) for rank in range(workers))

    def call(member: sparsesync.torch.LocalMember) -> list[Any]:
        indices, values = rows_of(member.rank)
        tensor = torch.sparse_coo_tensor(indices.unsqueeze(0), values, (ROWS, 4))
        found = []
        for _ in range(3):
            own = tensor.clone()
            assert sparsesync.torch.all_reduce(own, member) is None
            pair = sparsesync.torch.all_reduce((indices, values, ROWS), member)
            work = sparsesync.torch.all_reduce((indices, values, ROWS), member, async_op=True)
            mean = sparsesync.torch.all_reduce((indices, values, ROWS), member, reduction="mean")
            assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
            assert own.is_coalesced() and bool((pair[0].diff() > 0).all())
            found += [own.to_dense(), dense(*pair), dense(*work.result()), dense(*mean) * workers]
        return found

    for found in on_all(workers, call):
        for each in found:
            assert torch.allclose(each, right, atol=1e-5)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.complex64, torch.complex128]
)
def test_every_dtype(dtype: Any) -> None:
    def call(member: sparsesync.torch.LocalMember) -> Any:
        indices, values = rows_of(member.rank)
        tensor = torch.sparse_coo_tensor(indices.unsqueeze(0), (values * (1j if dtype.is_complex else 1)).to(dtype), (ROWS, 4))
        given = tensor.to_dense()
        sparsesync.torch.all_reduce(tensor, member)
        return given, tensor

    found = on_all(2, call)
    for _, tensor in found:
        assert tensor.dtype is dtype and torch.equal(tensor.to_dense(), found[0][0] + found[1][0])


def test_a_dense_tensor_is_replaced_in_place() -> None:
    def call(member: sparsesync.torch.LocalMember) -> Any:
        whole = torch.full((2 * ROWS, 4), -1.0)
        part = whole[::2]  # its rows are not adjacent
        part.copy_(dense(*rows_of(member.rank)))
        assert sparsesync.torch.all_reduce(part, member) is None
        work = sparsesync.torch.all_reduce(torch.arange(5.0) * member.rank, member, async_op=True)
        return whole, work.result() if work.wait() else None

    for whole, vector in on_all(2, call):
        assert torch.equal(whole[::2], dense(*rows_of(0)) + dense(*rows_of(1))) and bool((whole[1::2] == -1).all())
        assert torch.equal(vector[0], torch.arange(5.0))


def test_a_device_mesh_of_two_dimensions_is_refused() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
        sparsesync.torch.all_reduce(torch.ones(3), mesh["replicate"])
        with pytest.raises(sparsesync.InputError, match=r"a device mesh of 2 dimensions: give the one .* such as mesh\['replicate'\]"):
            sparsesync.torch.all_reduce(torch.ones(3), mesh)
    finally:
        torch.distributed.destroy_process_group()


def test_given_tensors_are_not_changed() -> None:
    indices, values = rows_of(0)
    copies = indices.clone(), values.clone()
    sparsesync.torch.all_reduce((indices, values, ROWS), "alone")
    assert torch.equal(indices, copies[0]) and torch.equal(values, copies[1])


def test_non_contiguous_tensors() -> None:
    indices, values = rows_of(0)
    twice = values.repeat(1, 2).t().contiguous().t()[:, ::2]
    found = sparsesync.torch.all_reduce((indices.repeat_interleave(2)[::2], twice, ROWS), "alone")
    assert torch.equal(dense(*found), dense(indices, twice))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (torch.tensor(3.0), "a tensor of the layout torch.strided with 0 dimensions: give a sparse COO tensor, a dense one with rows"),
        (torch.eye(3).to_sparse_csr(), "a tensor of the layout torch.sparse_csr with 2 dimensions"),
        ((torch.ones(3), torch.ones(3, 2), 5), "indices of torch.float32 with 1 dimensions: give one of int64"),
        ((torch.ones(3, 1, dtype=torch.int64), torch.ones(3, 2), 5), "indices of torch.int64 with 2 dimensions"),
        ((torch.ones(3, dtype=torch.int64), torch.ones(2, 2), 5), r"3 indices on cpu and values of shape \(2, 2\) on cpu"),
        ((torch.ones(3, dtype=torch.int64), torch.ones(3, 2), -1), "a tensor of -1 rows"),
        ((torch.ones(3, dtype=torch.int64), torch.ones(3, 2)), r"give a tensor, or a tuple \(indices, values, rows\)"),
        ("gradient", r"give a tensor, or a tuple \(indices, values, rows\)"),
    ],
)
def test_wrong_arguments(given: Any, says: str) -> None:
    with pytest.raises(sparsesync.InputError, match=says):
        sparsesync.torch.all_reduce(given, "alone")


def test_a_wrong_reduction_and_a_wrong_dtype() -> None:
    pair = rows_of(0)
    with pytest.raises(sparsesync.InputError, match="there is no reduction 'max': use 'sum' or 'mean'"):
        sparsesync.torch.all_reduce((*pair, ROWS), "alone", reduction="max")
    with pytest.raises(sparsesync.UnsupportedError, match="a sparse tensor of torch.bool cannot be summed"):
        sparsesync.torch.all_reduce((pair[0], pair[1].bool(), ROWS), "alone")


def test_an_index_outside_the_tensor_is_told_to_all_and_the_next_call_works() -> None:
    def call(member: sparsesync.torch.LocalMember) -> Any:
        indices, values = rows_of(member.rank)
        wrong = indices.clone()
        wrong[3] = ROWS + member.rank  # in range on no worker
        with pytest.raises((sparsesync.InputError, sparsesync.RefusedError), match="1000|1001"):
            sparsesync.torch.all_reduce((wrong, values, ROWS), member)
        return dense(*sparsesync.torch.all_reduce((indices, values, ROWS), member))

    for each in on_all(2, call):
        assert torch.equal(each, dense(*rows_of(0)) + dense(*rows_of(1)))


def test_the_future_has_the_result_or_the_error() -> None:
    indices, values = rows_of(0)
    work = sparsesync.torch.all_reduce((indices, values, ROWS), "alone", async_op=True)
    assert torch.equal(dense(*work.get_future().wait()), dense(indices, values))
    failed = sparsesync.torch.all_reduce((indices + ROWS, values, ROWS), "alone", async_op=True)
    with pytest.raises(RuntimeError, match="InputError"):
        failed.get_future().wait()
    with pytest.raises(sparsesync.InputError):
        failed.wait()
    assert failed.is_completed() and not failed.is_success() and isinstance(failed.exception(), sparsesync.InputError)
