"""Problems reported by users of other libraries; each test is named after its thread."""
# ctest: EMULATED

from __future__ import annotations

import numpy
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync.torch  # noqa: E402 (needs torch)
from sparsesync.torch import DistributedDataParallel  # noqa: E402 (needs torch)
from workers import Table, good, gradients_of, run_workers, seeded, sums_of  # noqa: E402 (needs torch)

EMPTY: tuple[list[int], list[float]] = ([], [])


def expect_sums(given, rows, width, **options):
    """Checks that every worker ends each step with the sum, and all with the same bits."""
    found = gradients_of(given, rows, width, gradient="sum", **options)
    for step, expected in enumerate(sums_of(given, rows, width)):
        for of_worker in found:
            assert torch.equal(of_worker[step], expected)
    return found


def test_pytorch_87497_an_empty_gradient_on_one_worker():
    full = ([1, 5], [[1.0, 2.0], [3.0, 4.0]])
    expect_sums([[full, EMPTY, EMPTY, full], [EMPTY, full, EMPTY, full], [full, full, EMPTY, EMPTY]], 8, 2)


def test_pytorch_87497_an_empty_gradient_in_the_first_step_of_all():
    full = ([1, 5], [[1.0, 2.0], [3.0, 4.0]])
    expect_sums([[EMPTY, full], [EMPTY, full]], 8, 2)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 6, 7])
def test_pytorch_22400_sparse_gradients_of_any_number_of_workers(workers):
    given = [[([rank, 7, 7, 2 * rank], [[rank, 1.0]] * 4), ([0], [[1.0, 1.0]])] for rank in range(workers)]
    expect_sums(given, 16, 2)


def test_lightning_5355_sparse_adam_and_sgd_train_on_the_results():
    def work(rank, member):
        with seeded(0):
            table, out = torch.nn.Embedding(500, 8, sparse=True), torch.nn.Linear(8, 2)
        ddp = DistributedDataParallel(torch.nn.Sequential(table, out), process_group=member, scheme="balanced")
        optimizers = [torch.optim.SparseAdam(table.parameters(), 0.1), torch.optim.SGD(out.parameters(), 0.5)]
        source = torch.Generator().manual_seed(rank)
        losses = []
        for _ in range(30):
            ids = torch.randint(0, 40, (16,), generator=source)
            loss = torch.nn.functional.cross_entropy(ddp(ids), ids % 2)
            for each in optimizers:
                each.zero_grad()
            loss.backward()
            assert table.weight.grad.is_sparse
            assert table.weight.grad.is_coalesced()
            for each in optimizers:
                each.step()
            losses.append(loss.item())
        ddp.close()
        return losses, table.weight.detach().clone()

    results = good(run_workers(3, work))
    assert all(losses[-1] < losses[0] / 2 for losses, _ in results)
    assert all(torch.equal(results[0][1], table) for _, table in results)


def test_nccl_215_a_step_moves_rows_and_not_the_table():
    def work(rank, member):
        ddp = DistributedDataParallel(Table(100_000, 32), process_group=member, scheme="balanced")
        for _ in range(4):
            ddp.zero_grad()
            ddp(torch.tensor([3, 50_000 + rank]), torch.ones(2, 32)).backward()
        told = ddp.statistics()
        ddp.close()
        return told

    for told in good(run_workers(4, work)):
        assert told["bytes_sent"] < 40_000 < 100_000 * 32 * 4


def test_horovod_3328_duplicates_are_summed_before_they_are_sent():
    def sent(repeats):
        def work(rank, member):
            ddp = DistributedDataParallel(Table(1000, 16), process_group=member, scheme="balanced", gradient="sum")
            rows = torch.tensor([1, 2, 900]).repeat(repeats)
            for _ in range(3):
                ddp.zero_grad()
                ddp(rows, torch.ones(len(rows), 16)).backward()
            (of_table,) = ddp.statistics()["parameters"].values()
            gradient = ddp.module.gradient.clone()
            ddp.close()
            return of_table["bytes_sent"], gradient

        return good(run_workers(3, work))

    for (few, once), (many, thrice) in zip(sent(1), sent(30), strict=True):
        assert many == few
        assert torch.equal(thrice, 30 * once)


def workspace_of(workers, scheme, rows, **options):
    def work(rank, member):
        ddp = DistributedDataParallel(Table(rows, 16), process_group=member, scheme=scheme, **options)
        index = torch.arange(200) * 5 % rows
        for _ in range(3):
            ddp.zero_grad()
            ddp(index, torch.ones(200, 16)).backward()
        told = ddp.statistics()["memory_bytes"]
        ddp.close()
        return told

    return max(good(run_workers(workers, work)))


def test_horovod_554_memory_does_not_grow_with_the_number_of_workers():
    two, eight = (workspace_of(workers, "balanced", 10_000) for workers in (2, 8))
    assert eight < 1.5 * two, "rows that all workers touch take no more memory with eight workers"


def test_horovod_1481_memory_does_not_grow_with_the_table():
    small, large = (workspace_of(3, "balanced", rows) for rows in (10_000, 1_000_000))
    assert large < 1.2 * small


def test_horovod_2799_a_budget_is_kept_or_refused():
    used = workspace_of(3, "balanced", 10_000)
    assert workspace_of(3, "balanced", 10_000, memory_bytes=2 * used) <= 2 * used
    with pytest.raises(sparsesync.Error) as refused:
        workspace_of(3, "balanced", 10_000, memory_bytes=2000)
    assert isinstance(refused.value, sparsesync.BudgetError | sparsesync.RefusedError)
    assert "table.weight" in str(refused.value)


def test_horovod_433_dense_gradients_are_sent_dense():
    def work(rank, member):
        ddp = DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(4000, 8), torch.nn.Linear(8, 8)), process_group=member)
        for _step in range(2):
            rows = torch.arange(4000) if rank == 0 else torch.arange(10)
            ddp.zero_grad()
            ddp(rows).sum().backward()
        told = ddp.statistics()["parameters"]["0.weight"]
        ddp.close()
        return told

    for told in good(run_workers(2, work)):
        assert (told["gradient"], told["scheme"]) == ("dense", "dense_direct")
        assert "half" in told["why"]


@pytest.mark.parametrize("sparse", [True, False])
def test_deepspeed_8504_a_row_whose_elements_add_up_to_zero(sparse):
    given = [[([3, 9000], [[1.0, -1.0], [2.0, -2.0]])] * 2, [([3, 4], [[0.5, -0.5], [1.0, 1.0]])] * 2]
    found = expect_sums(given, 10_000, 2, sparse=sparse)
    assert found[0][1][3].tolist() == [1.5, -1.5]


def test_deepspeed_1416_embedding_bags_are_sparse_too():
    def work(rank, member):
        bag = torch.nn.EmbeddingBag(5000, 8, mode="sum", sparse=True)
        ddp = DistributedDataParallel(bag, process_group=member, scheme="balanced", gradient="sum")
        for _ in range(3):
            ddp.zero_grad()
            ddp(torch.tensor([[1, 2, 2], [rank, 4000, 1]])).sum().backward()
        (told,) = ddp.statistics()["parameters"].values()
        ddp.close()
        return told["gradient"], bag.weight.grad

    for kind, gradient in good(run_workers(3, work)):
        assert kind == "sparse"
        assert gradient.is_sparse
        dense = gradient.to_dense()
        assert dense[:5, 0].tolist() == [1, 7, 7, 0, 0]
        assert dense[4000, 0] == 3


def test_omnireduce_4_a_worker_that_stops_is_an_error_and_no_hang():
    def work(rank, member):
        ddp = DistributedDataParallel(Table(100, 4), process_group=member, scheme="balanced", deadline=3)
        for step in range(3):
            if rank == 2 and step == 1:
                return "stopped"  # keeps its connections open
            ddp.zero_grad()
            ddp(torch.tensor([1]), torch.ones(1, 4)).backward()
        return "done"

    results = run_workers(3, work)
    assert results[2] == "stopped"
    for each in results[:2]:
        assert isinstance(each, sparsesync.DeadlineError | sparsesync.AbortedError | sparsesync.PeerLostError)
        assert "table.weight" in str(each)


@pytest.mark.parametrize("row", [(1 << 24) + 1, (1 << 31) + 5, (1 << 33) - 1])
def test_ok_topk_indices_beyond_what_floats_hold(row):
    # Uses the bindings directly, without a tensor of that many rows.
    network = sparsesync.LocalNetwork(2)

    def work(rank, _):
        session = sparsesync.Session(network.join(rank))
        table = session.register_bucket("table", [sparsesync.TensorSpec("table", 1 << 33, 1)], "balanced")
        given = (numpy.array([row, rank], numpy.int64), numpy.array([[1], [2]], numpy.float32))
        session.wait(session.reduce(table, [given]))
        session.wait(session.gather(table))
        result = session.result(table, 0)
        session.close()
        return result

    for indices, values in good(run_workers(2, work)):
        assert indices.tolist() == [0, 1, row]
        assert values.ravel().tolist() == [2, 2, 2]


def test_ok_topk_2_to_the_24_rows_of_a_table():
    rows = (1 << 24) + 100
    (found, other) = gradients_of([[([rows - 1, 1 << 24], [[1.0], [2.0]])], [([rows - 1], [[4.0]])]], rows, 1, gradient="sum")
    assert found[0][rows - 1].item() == 5
    assert found[0][1 << 24].item() == 2
    assert found[0].count_nonzero() == 2
    assert torch.equal(found[0], other[0])


def test_ok_topk_one_worker():
    expect_sums([[([0, 3, 3], [[1.0], [2.0], [3.0]]), EMPTY]], 4, 1)


def test_dragonn_index_0():
    expect_sums([[([0], [[1.0]])] * 2, [([0], [[2.0]])] * 2], 1, 1)
    expect_sums([[([0], [[1.0]])] * 2, [EMPTY] * 2], 10, 1)


def test_ncclx_an_index_beyond_the_table_is_an_error():
    def work(rank, member):
        ddp = DistributedDataParallel(Table(10, 2), process_group=member, scheme="balanced", deadline=5)
        ddp(torch.tensor([1]), torch.ones(1, 2)).backward()
        weight = ddp.module.table.weight
        wrong = torch.sparse_coo_tensor([[10]], torch.ones(1, 2), (11, 2))
        try:
            with torch.no_grad():
                ddp.zero_grad()
            hook = weight.register_hook(
                lambda _: torch.sparse_coo_tensor(wrong._indices(), wrong._values(), (10, 2), check_invariants=False)
            )
            ddp(torch.tensor([1]), torch.ones(1, 2)).backward()
        finally:
            hook.remove()

    for each in run_workers(2, work):
        assert isinstance(each, sparsesync.InputError | sparsesync.RefusedError), each
        assert "table.weight" in str(each)


def test_overlapping_rows_are_summed_and_never_overwritten():
    expect_sums([[([2, 5], [[1.0, 10.0], [2.0, 20.0]])]] * 5, 8, 2)


def test_rows_of_the_result_are_never_more_than_the_table_has():
    given = [[(list(range(10)) * 20, [[1.0]] * 200)] * 2] * 6
    found = expect_sums(given, 10, 1)
    assert all(len(each[0]) == 10 for each in found)


def test_rows_of_minus_zero_and_nan():
    given = [[([1, 2], [[-0.0, -0.0], [float("nan"), 1.0]])] * 2, [([3], [[float("inf"), 1.0]])] * 2]
    for sparse in (True, False):
        for of_worker in gradients_of(given, 10_000, 2, sparse=sparse, gradient="sum"):
            for result in of_worker:
                assert result[1].tolist() == [0, 0]
                assert result[2].isnan().tolist() == [True, False]
                assert result[3].tolist() == [float("inf"), 1]
                assert result.count_nonzero() == 4


def test_one_tied_weight_used_sparsely_and_densely():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            with seeded(1):
                self.table = torch.nn.Embedding(3000, 8, sparse=True)

        def forward(self, ids):
            return self.table(ids) @ self.table.weight.T

    def gradient_of(module, rank):
        ids = torch.tensor([rank, 5, 2999])
        torch.nn.functional.cross_entropy(module(ids), ids).backward()

    def work(rank, member):
        ddp = DistributedDataParallel(Tied(), process_group=member)
        for _ in range(2):
            ddp.zero_grad()
            gradient_of(ddp, rank)
        gradient = ddp.module.table.weight.grad
        ddp.close()
        return gradient

    expected = torch.zeros(3000, 8, dtype=torch.float64)
    for rank in range(3):
        alone = Tied()
        gradient_of(alone, rank)
        expected += alone.table.weight.grad.double() / 3
    for gradient in good(run_workers(3, work)):
        assert torch.allclose(gradient.to_dense().double(), expected, rtol=1e-5, atol=1e-8)


def test_padding_idx_gets_no_gradient():
    def work(rank, member):
        table = torch.nn.Embedding(100, 4, padding_idx=0, sparse=True)
        ddp = DistributedDataParallel(table, process_group=member, scheme="owned", gradient="sum", announce=True)
        for _ in range(3):
            ddp.zero_grad()
            ddp(torch.tensor([0, 3, rank])).sum().backward()
        ddp.close()
        return table.weight.grad.to_dense()

    for gradient in good(run_workers(3, work)):
        assert gradient[:4, 0].tolist() == [0, 1, 1, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_pytorch_35810_mixed_precision_with_sparse_gradients(dtype):
    def work(rank, member):
        with seeded(0):
            table, out = torch.nn.Embedding(300, 8, sparse=True), torch.nn.Linear(8, 2)
        ddp = DistributedDataParallel(torch.nn.Sequential(table, out), process_group=member, scheme="balanced")
        optimizer = torch.optim.SGD(ddp.parameters(), 0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
        losses = []
        for step in range(12):
            ids = torch.arange(8) + 8 * rank
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                loss = torch.nn.functional.cross_entropy(ddp(ids), ids % 2)
            overflows = step == 6 and rank == 1
            scaler.scale(loss * (float("inf") if overflows else 1)).backward()
            assert table.weight.grad.is_sparse
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        told = ddp.statistics()["parameters"]["0.weight"]
        ddp.close()
        return losses, table.weight.detach().clone(), scaler.get_scale(), told["non_finite"]

    results = good(run_workers(2, work))
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][2] == results[1][2]
    assert results[0][3] == results[1][3] > 0, "all workers skip a step that overflowed on one of them"
    assert all(losses[-1] < losses[0] for losses, *_ in results)


def test_verl_7777_exact_sizes_instead_of_those_of_the_longest():
    def work(rank, member):
        ddp = DistributedDataParallel(Table(10_000, 16), process_group=member, scheme="balanced")
        rows = torch.arange(2000) if rank == 0 else torch.tensor([7])
        for _ in range(3):
            ddp.zero_grad()
            ddp(rows, torch.ones(len(rows), 16)).backward()
        (told,) = ddp.statistics()["parameters"].values()
        ddp.close()
        return told["bytes_received"] / 3

    received = good(run_workers(8, work))
    all_of_them = 2000 * 16 * 4
    # If padded to the longest one, each worker would receive seven times that.
    assert max(received) < 1.5 * all_of_them


def test_verl_7778_rounds_keep_the_memory_of_each_small():
    def workspace(rounds):
        network = sparsesync.LocalNetwork(2)

        def work(rank, _):
            session = sparsesync.Session(network.join(rank))
            table = session.register_bucket("table", [sparsesync.TensorSpec("t", 50_000, 16)], "all_gather", rounds=rounds)
            given = (numpy.arange(20_000, dtype=numpy.int64), numpy.ones((20_000, 16), numpy.float32))
            for _ in range(2):
                session.wait(session.reduce(table, [given]))
                session.wait(session.gather(table))
            used, result = session.memory_in_use, session.result(table, 0)
            session.close()
            return used, result

        return good(run_workers(2, work))

    whole, cut = workspace(1), workspace(8)
    assert max(used for used, _ in cut) < max(used for used, _ in whole)
    for (_, (rows, values)), (_, (same_rows, same_values)) in zip(whole, cut, strict=True):
        assert numpy.array_equal(rows, same_rows)
        assert numpy.array_equal(values, same_values)


@pytest.mark.parametrize(("gradient", "expected"), [("sum", [3.0, 6.0]), ("mean", [1.0, 2.0])])
def test_sum_and_mean_are_reported(gradient, expected):
    found = gradients_of([[([2], [[1.0, 2.0]])]] * 3, 4, 2, gradient=gradient)
    assert found[0][0][2].tolist() == expected
