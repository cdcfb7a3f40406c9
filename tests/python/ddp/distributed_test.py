"""Tests sparsesync.torch.DistributedDataParallel beyond the values of gradients."""
# ctest: EMULATED SLOW join compiled turn_sparse

from __future__ import annotations

import contextlib
import json
import logging

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync.torch  # noqa: E402 (needs torch)
from sparsesync.torch import DistributedDataParallel  # noqa: E402 (needs torch)
from workers import Table, good, run_workers, seeded  # noqa: E402 (needs torch)


class Model(torch.nn.Module):
    """Has sparse and dense tables, and dense layers."""

    def __init__(self, seed=0, sparse=True):
        super().__init__()
        with seeded(seed):
            self.table = torch.nn.Embedding(3000, 8, sparse=sparse)
            self.other = torch.nn.Embedding(4000, 8)
            self.norm = torch.nn.BatchNorm1d(8)
            self.out = torch.nn.Linear(8, 3)

    def forward(self, ids):
        return self.out(self.norm(self.table(ids) + self.other(ids)))


def batch(rank, step, size=16):
    source = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randint(0, 3000, (size,), generator=source)


def loss_of(module, ids):
    return torch.nn.functional.cross_entropy(module(ids), ids % 3)


def train(ddp, rank, steps, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(ddp.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(ddp, batch(rank, step)).backward()
        optimizer.step()


def weights(module):
    """Returns the parameters. Buffers are left out: running means are those of worker 0 only after the next forward pass."""
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def expect_same(all_weights):
    for each in all_weights[1:]:
        assert all(torch.equal(each[name], value) for name, value in all_weights[0].items())


def test_parameters_and_buffers_become_those_of_worker_0():
    def work(rank, member):
        module = Model(seed=rank)
        module.norm.running_mean.fill_(rank)
        ddp = DistributedDataParallel(module, process_group=member)
        ddp.close()
        return {name: value.clone() for name, value in module.state_dict().items()}

    results = good(run_workers(3, work))
    expect_same(results)
    assert torch.equal(results[0]["table.weight"], Model(seed=0).table.weight)
    assert results[2]["norm.running_mean"].tolist() == [0] * 8


def test_state_dict_has_the_keys_of_torchs():
    ddp = DistributedDataParallel(Model())
    keys = list(ddp.state_dict())
    other = DistributedDataParallel(Model(seed=1))
    other.load_state_dict(ddp.state_dict())
    assert keys == [f"module.{name}" for name in Model().state_dict()]
    assert ddp.module is not other.module
    expect_same([weights(ddp.module), weights(other.module)])
    ddp.close()
    other.close()


@pytest.mark.parametrize("announce", [False, True])
def test_no_sync_accumulates(announce):
    """Three passes, two of them within no_sync(), give the gradient of their sum."""

    def work(rank, member):
        module = Model()
        module.norm.eval()
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", announce=announce)
        for step in range(3):
            ddp.zero_grad()
            for part in range(3):
                with ddp.no_sync() if part < 2 else contextlib.nullcontext():
                    loss_of(ddp, batch(rank, 3 * step + part)).backward()
                alone = module.out.weight.grad.clone()
        ddp.close()
        return {name: each.grad.to_dense() for name, each in module.named_parameters()}, alone

    reference = Model()
    reference.norm.eval()
    for rank in range(3):
        for part in range(3):
            (loss_of(reference, batch(rank, 6 + part)) / 3).backward()
    results = good(run_workers(3, work))
    for gradients, last in results:
        for name, each in reference.named_parameters():
            assert torch.allclose(gradients[name], each.grad.to_dense(), rtol=1e-4, atol=1e-6), name
        assert torch.equal(last, gradients["out.weight"])


@pytest.mark.parametrize("by_initial_size", [True, False])
def test_join_takes_uneven_inputs(by_initial_size):
    """Workers have 2, 5 and 3 batches."""
    batches = (2, 5, 3)

    def work(rank, member):
        module = Model()
        module.norm.eval()
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced")
        optimizer = torch.optim.SGD(ddp.parameters(), 0.5)
        with ddp.join(divide_by_initial_world_size=by_initial_size):
            train(ddp, rank, batches[rank], optimizer)
        ddp.close()
        return weights(module)

    reference = Model()
    reference.norm.eval()
    optimizer = torch.optim.SGD(reference.parameters(), 0.5)
    for step in range(max(batches)):
        optimizer.zero_grad()
        having = [rank for rank in range(3) if step < batches[rank]]
        for rank in having:
            (loss_of(reference, batch(rank, step)) / (3 if by_initial_size else len(having))).backward()
        optimizer.step()
    results = good(run_workers(3, work))
    expect_same(results)
    for name, value in weights(reference).items():
        assert torch.allclose(results[0][name].double(), value.double(), rtol=1e-4, atol=1e-6), name


def test_join_can_end_all_with_the_first():
    def work(rank, member):
        ddp = DistributedDataParallel(Model(), process_group=member, scheme="balanced")
        try:
            with ddp.join(throw_on_early_termination=True):
                train(ddp, rank, 2 + rank)
        finally:
            ddp.close()

    for each in run_workers(2, work):
        assert isinstance(each, RuntimeError)
        assert "worker 0 has no more inputs" in str(each)


@pytest.mark.parametrize("scheme", ["balanced", "owned"])
def test_announced_rows_give_the_same_weights(scheme):
    def trained(announce):
        def work(rank, member):
            module = Model(sparse=True)
            ddp = DistributedDataParallel(module, process_group=member, scheme=scheme, announce=announce)
            train(ddp, rank, 6)
            told = ddp.statistics()["parameters"]
            ddp.close()
            return weights(module), {name: each["announced"] for name, each in told.items()}

        return good(run_workers(3, work))

    announced, others = trained(True), trained(False)
    assert sorted(name for name, announces in announced[0][1].items() if announces) == ["other.weight", "table.weight"]
    for (ours, _), (theirs, _) in zip(announced, others, strict=True):
        for name, value in ours.items():
            assert torch.allclose(value.double(), theirs[name].double(), rtol=1e-5, atol=1e-7)
    expect_same([each for each, _ in announced])


def test_a_forward_pass_in_evaluation_announces_nothing():
    def work(rank, member):
        ddp = DistributedDataParallel(Model(), process_group=member, scheme="owned", announce=True)
        for step in range(4):
            with torch.no_grad():
                ddp(batch(rank, 50))
            train(ddp, rank, 1 + step % 2)
        ddp.close()
        return weights(ddp.module)

    expect_same(good(run_workers(2, work)))


def test_gradients_that_turn_sparse_or_dense_at_step_7():
    def work(rank, member):
        table = Table(3000, 4, sparse=True)
        ddp = DistributedDataParallel(table, process_group=member, scheme="balanced", gradient="sum")
        found = []
        for step in range(10):
            table.table.sparse = (step < 7) == (rank == 0)
            ddp.zero_grad()
            ddp(torch.tensor([step, 50 + rank]), torch.ones(2, 4)).backward()
            found.append((table.table.weight.grad.is_sparse, table.gradient[:, 0].nonzero().flatten().tolist()))
        ddp.close()
        return found

    results = good(run_workers(2, work))
    for rank, of_worker in enumerate(results):
        for step, (is_sparse, rows) in enumerate(of_worker):
            assert is_sparse == ((step < 7) == (rank == 0)), "the results are the inputs"
            assert rows == [step, 50, 51]


def test_backward_may_make_gradients_in_another_order_on_each_worker():
    class Branches(torch.nn.Module):
        def __init__(self, rank):
            super().__init__()
            with seeded(0):
                self.rank = rank
                self.layers = torch.nn.ModuleList(torch.nn.Linear(40, 40) for _ in range(6))
                self.table = torch.nn.Embedding(1000, 40, sparse=True)

        def forward(self, ids):
            x = self.table(ids)
            order = self.layers if self.rank == 0 else reversed(self.layers)
            for each in order:
                x = torch.tanh(each(x))
            return x

    def work(rank, member):
        ddp = DistributedDataParallel(Branches(rank), process_group=member, scheme="balanced", bucket_cap_mb=0.005)
        for step in range(4):
            ddp.zero_grad()
            ddp(batch(rank, step, 8) % 1000).sum().backward()
        gradients = {name: each.grad.to_dense() for name, each in ddp.module.named_parameters()}
        buckets = {each["bucket"] for each in ddp.statistics()["parameters"].values()}
        ddp.close()
        return gradients, len(buckets)

    results = good(run_workers(3, work))
    assert results[0][1] > 3, "there are several buckets"
    expect_same([gradients for gradients, _ in results])


def test_parameters_that_some_workers_do_not_use():
    class Parts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            with seeded(0):
                self.tables = torch.nn.ModuleList(torch.nn.Embedding(2000, 8, sparse=i < 2) for i in range(4))
                self.dense = torch.nn.ModuleList(torch.nn.Linear(8, 4) for _ in range(3))

        def forward(self, ids, rank, step):
            # All workers use table 0 and layer 0. Worker 1 uses layer 1, worker 0 uses layer 2 in odd steps. Table 3 is unused.
            result = self.dense[0](self.tables[0](ids))
            if rank == 1:
                result = result + self.dense[1](self.tables[1](ids))
            if rank == 0 and step % 2:
                result = result + self.dense[2](self.tables[2](ids))
            return result.sum()

    def work(rank, member):
        ddp = DistributedDataParallel(Parts(), process_group=member, scheme="balanced")
        found = []
        for step in range(4):
            for each in ddp.parameters():
                each.grad = None
            ddp(batch(rank, step) % 2000, rank, step).backward()
            found.append(
                {name: None if each.grad is None else each.grad.to_dense() for name, each in ddp.module.named_parameters()}
            )
        ddp.close()
        return found

    results = good(run_workers(2, work))
    for step in range(4):
        reference = Parts()
        for rank in range(2):
            (reference(batch(rank, step) % 2000, rank, step) / 2).backward()
        for name, each in reference.named_parameters():
            for of_worker in results:
                given = of_worker[step][name]
                if each.grad is None:
                    assert given is None or not given.any(), name
                else:
                    assert torch.allclose(given, each.grad.to_dense(), rtol=1e-5, atol=1e-7), (step, name)


def test_a_compiled_module_trains_as_the_module():
    def trained(compiled):
        def work(rank, member):
            module = Model()
            ddp = DistributedDataParallel(module, process_group=member, scheme="balanced")
            called = torch.compile(ddp, backend="aot_eager") if compiled else ddp
            optimizer = torch.optim.SGD(module.parameters(), 0.1)
            for step in range(3):
                optimizer.zero_grad()
                loss_of(called, batch(rank, step)).backward()
                optimizer.step()
            ddp.close()
            return weights(module)

        # With one worker, because torch compiles for one thread at a time.
        return good(run_workers(1, work))[0]

    ours, theirs = trained(True), trained(False)
    for name, value in ours.items():
        assert torch.allclose(value.double(), theirs[name].double(), rtol=1e-4, atol=1e-6), name


def test_bf16_on_the_wire_is_near():
    def work(rank, member):
        ddp = DistributedDataParallel(Model(), process_group=member, scheme="balanced", wire="bf16")
        train(ddp, rank, 5)
        sent = ddp.statistics()["parameters"]["table.weight"]["bytes_sent"]
        ddp.close()
        return weights(ddp.module), sent

    def exact(rank, member):
        ddp = DistributedDataParallel(Model(), process_group=member, scheme="balanced")
        train(ddp, rank, 5)
        sent = ddp.statistics()["parameters"]["table.weight"]["bytes_sent"]
        ddp.close()
        return weights(ddp.module), sent

    rounded, whole = good(run_workers(3, work)), good(run_workers(3, exact))
    expect_same([each for each, _ in rounded])
    assert rounded[0][1] < 0.75 * whole[0][1]
    for name, value in rounded[0][0].items():
        assert torch.allclose(value.double(), whole[0][0][name].double(), atol=0.02), name


def test_parameters_of_several_types_and_shapes():
    class Shapes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            with seeded(0):
                self.each = torch.nn.ParameterList(
                    torch.nn.Parameter(torch.randn(shape).to(dtype))
                    for shape in ((), (1,), (7,), (3, 5), (3, 5, 2), (0, 4), (200, 100))
                    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
                )
                self.each.append(torch.nn.Parameter(torch.randn(30, 20).T))  # columns are contiguous

        def forward(self, factor):
            return sum((each.double() * factor).sum() for each in self.each)

    def work(rank, member):
        ddp = DistributedDataParallel(Shapes(), process_group=member, gradient="sum")
        for _ in range(2):
            ddp.zero_grad()
            ddp(1.0 + rank).backward()
        gradients = [each.grad for each in ddp.module.each]
        ddp.close()
        return gradients

    for gradients in good(run_workers(3, work)):
        assert all(bool((each == 6).all()) for each in gradients)


def test_statistics_report_bytes_seconds_and_reasons():
    def work(rank, member):
        ddp = DistributedDataParallel(Model(), process_group=member, scheme="balanced")
        train(ddp, rank, 4)
        told = ddp.statistics()
        ddp.close()
        return told

    results = good(run_workers(2, work))
    for rank, told in enumerate(results):
        assert json.loads(json.dumps(told)) == told
        assert (told["workers"], told["rank"], told["transport"], told["steps"]) == (2, rank, "local", 4)
        assert sorted(told["parameters"]) == sorted(name for name, _ in Model().named_parameters())
        table, bias = told["parameters"]["table.weight"], told["parameters"]["out.bias"]
        assert (table["gradient"], table["scheme"], table["why"], table["steps"]) == ("sparse", "balanced", "given", 4)
        assert told["parameters"]["other.weight"]["gradient"] == "rows"
        assert (bias["gradient"], bias["scheme"]) == ("dense", "dense_direct")
        assert 0 < table["index_bytes_sent"] < table["bytes_sent"] < told["bytes_sent"]
        assert told["seconds"] > 0
        assert told["seconds_exposed"] > 0
        assert told["memory_bytes"] > 0
    by_bucket = [{each["bucket"]: each["bytes_sent"] for each in told["parameters"].values()} for told in results]
    received = [{each["bucket"]: each["bytes_received"] for each in told["parameters"].values()} for told in results]
    assert by_bucket[0].keys() == by_bucket[1].keys()
    for bucket, sent in by_bucket[0].items():
        assert sent == received[1][bucket], "each of two workers receives the bytes that the other sends"


def test_values_that_are_not_finite_are_sent_and_counted():
    def work(rank, member):
        ddp = DistributedDataParallel(Table(10, 2), process_group=member, scheme="balanced")
        for step in range(3):
            ddp.zero_grad()
            values = torch.ones(2, 2)
            if (rank, step) == (1, 1):
                values[0, 0], values[1, 1] = float("nan"), float("inf")
            ddp(torch.tensor([3, 4]), values).backward()
            if step == 1:
                assert ddp.module.gradient.isfinite().sum() == 10 * 2 - 2
        told = ddp.statistics()["parameters"]["table.weight"]["non_finite"]
        ddp.close()
        return told

    assert good(run_workers(3, work)) == [2, 2, 2]


def test_one_line_in_the_log_reports_the_decisions(caplog):
    def work(rank, member):
        ddp = DistributedDataParallel(Model(), process_group=member, scheme="balanced")
        train(ddp, rank, 3)
        ddp.close()

    with caplog.at_level(logging.INFO, logger="sparsesync"):
        good(run_workers(2, work))
    (line,) = [each.getMessage() for each in caplog.records if each.name == "sparsesync"]
    assert "worker 0 of 2 over local" in line
    assert "1 sparse parameters" in line
    assert "scheme balanced" in line


def test_the_profile_has_named_ranges():
    ddp = DistributedDataParallel(Model(), scheme="balanced")
    train(ddp, 0, 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train(ddp, 0, 1)
    names = {each.key for each in profile.key_averages()}
    ddp.close()
    assert "sparsesync::synchronize" in names
    assert {"sparsesync::submit table.weight", "sparsesync::wait table.weight"} <= names


def test_record_trace_writes_what_was_touched(tmp_path):
    path = tmp_path / "T"

    def work(rank, member):
        ddp = DistributedDataParallel(Model(), process_group=member, scheme="balanced")
        train(ddp, rank, 2)
        recording = sparsesync.torch.record_trace(ddp, path, steps=3)
        touched = []
        for step in range(4):
            assert recording.complete == (step >= 3)
            ddp.zero_grad()
            loss_of(ddp, batch(rank, 20 + step)).backward()
            touched.append(sorted(set(batch(rank, 20 + step).tolist())))
        ddp.close()
        return touched[:3]

    touched = good(run_workers(3, work))
    trace = sparsesync.Trace(str(path))
    assert (trace.workers, trace.steps) == (3, 3)
    assert [(each.name, each.rows, each.width) for each in trace.tensors] == [("table.weight", 3000, 8), ("other.weight", 4000, 8)]
    for worker in range(3):
        for step in range(3):
            for indices, _ in trace.load(worker, step).values():
                assert indices.tolist() == touched[worker][step]
    told = sparsesync.profile(path)
    assert told["tensors"][0]["workers"] == 3


def test_record_trace_from_the_first_step_and_ended_early(tmp_path):
    def work(rank, member):
        ddp = DistributedDataParallel(Model(), process_group=member, scheme="balanced")
        recording = sparsesync.torch.record_trace(ddp, tmp_path / "T")
        train(ddp, rank, 2)
        assert recording.steps == 2
        recording.close()
        assert recording.complete
        try:
            sparsesync.torch.record_trace(ddp, tmp_path / "T")
        except sparsesync.InputError as error:
            return str(error)
        finally:
            ddp.close()

    for told in good(run_workers(2, work)):
        assert "exists" in told
    assert sparsesync.Trace(str(tmp_path / "T")).steps == 2


def test_nothing_is_allocated_for_values_once_sizes_are_known():
    """Workspaces are allocated in the first steps, and gradients are written in place."""

    def work(rank, member):
        module = Model(sparse=False)
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced")
        optimizer = torch.optim.SGD(module.parameters(), 0.1)

        def step(number):
            optimizer.zero_grad(set_to_none=False)
            loss_of(ddp, batch(rank, 0)).backward()

        for number in range(3):
            step(number)
        before = ddp.synchronizer.session.allocations
        places = [each.grad.data_ptr() for each in module.parameters()]
        for number in range(5):
            step(number)
        after = ddp.synchronizer.session.allocations
        assert places == [each.grad.data_ptr() for each in module.parameters()]
        ddp.close()
        return after - before

    assert good(run_workers(3, work)) == [0, 0, 0]


def test_values_are_not_copied_on_their_way_to_the_wire():
    """Checks that torch allocates nothing of a sparse table's size while a step is submitted."""

    def work(rank, member):
        ddp = DistributedDataParallel(Table(200_000, 16, sparse=False), process_group=member, scheme="balanced")
        rows = torch.arange(100)
        for _ in range(2):
            ddp.zero_grad(set_to_none=False)
            ddp(rows, torch.ones(100, 16)).backward()
        (bucket,) = ddp.synchronizer.buckets
        # Only one profile can run in a process.
        with profile if rank == 0 else contextlib.nullcontext():
            bucket.submit()
            bucket.wait()
            bucket.finish()
        ddp.close()

    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    good(run_workers(2, work))
    allocated = [each.self_cpu_memory_usage for each in profile.key_averages()]
    assert allocated, "the profile saw the step"
    assert max(allocated) < 200_000 * 16 * 4 / 100
