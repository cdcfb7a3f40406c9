"""Tests the requirements of a GPU beyond those of a CPU, on the emulated GPU: order with torch's streams, memory from torch's allocator,
and errors for invalid devices. The other suites also run on it (conftest.py).
"""
# ctest: NEEDS EMULATED_CUDA LABELS emulated

from __future__ import annotations

import concurrent.futures
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync  # noqa: E402 (after torch is known to be here)
from sparsesync import _native  # noqa: E402

if not hasattr(_native, "emulated"):
    pytest.skip("this build has no emulated GPU: cmake --preset emulated", allow_module_level=True)

import emulated_device  # noqa: E402 (needs such a build)
from bindings_support import synchronize  # noqa: E402
from emulated_device import Allocator, EmulatedDevice, LateDevice, WaitingResult, WaitingSparsifier  # noqa: E402
from sparsesync.torch import (  # noqa: E402
    CoarseGrained,
    DistributedDataParallel,
    LossScaler,
    TopK,
    device,
    gradients,
    local_group,
    module_state,
)
from sparsesync.torch.schedule import bucket, scalar_allreduce  # noqa: E402
from sparsesync.torch.sparsify import sparsifier_runtime  # noqa: E402
from workers import Table, good, run_workers  # noqa: E402

emulated = _native.emulated
ROWS, WIDTH = 200, 4


@pytest.fixture
def on_device(monkeypatch):
    """Returns a function that puts modules on emulated GPUs of a class. That function returns the devices by thread."""

    def install(kind=EmulatedDevice, **options):
        made = {}

        def use(where, what, memory_bytes):
            own = made[threading.get_ident()] = kind(memory_bytes=memory_bytes, **options)
            return own

        monkeypatch.setattr(device, "use", use)
        return made

    return install


def own_device(made):
    return made[threading.get_ident()]


def gradient_of(rank, step):
    rows = torch.tensor([3, 90 + rank, 150 + step, 3])
    return rows, torch.full((4, WIDTH), float(rank + step + 1))


def expected(workers, step):
    total = torch.zeros(ROWS, WIDTH)
    for rank in range(workers):
        rows, values = gradient_of(rank, step)
        total.index_add_(0, rows, values)
    return total


class Both(torch.nn.Module):
    """A table with sparse gradients, one with dense gradients of few rows, and a layer with dense gradients."""

    def __init__(self):
        super().__init__()
        self.sparse, self.rows = Table(ROWS, WIDTH), Table(ROWS * 40, WIDTH, sparse=False)
        self.dense = torch.nn.Linear(WIDTH, 2, bias=False)

    def forward(self, rows, values):
        return self.sparse(rows, values) + self.rows(rows, values) + (self.dense(values) * values[:, :2]).sum()


def train(kind, on_device, *, waits=True, reads_sparse=True, **options):
    """Trains, and returns for each worker whether the sums of each step and parameter are correct after waiting for torch's stream.

    reads_sparse: false if indices may be arbitrary.
    """
    made = on_device(kind)

    def work(rank, member):
        ddp = DistributedDataParallel(Both(), process_group=member, scheme="balanced", gradient="sum", **options)
        right = []
        for step in range(4):
            ddp.zero_grad()
            ddp(*gradient_of(rank, step)).backward()
            if waits:
                own_device(made).synchronize()
            sparse, rows, dense = (each.grad for each in ddp.parameters())
            sums = expected(2, step)
            of_dense = sum((v[:, :2].T @ v for _, v in (gradient_of(r, step) for r in range(2))), torch.zeros(2, WIDTH))
            right.append([
                torch.equal(rows[:ROWS], sums) and not rows[ROWS:].any(),
                torch.equal(dense, of_dense),
                *([torch.equal(sparse.to_dense(), sums)] if reads_sparse else []),
            ])  # fmt: skip
            own_device(made).settle()
        kinds = {each["gradient"] for each in ddp.statistics()["parameters"].values()}
        ddp.close()
        return right, kinds

    return good(run_workers(2, work))


class NoWaitBefore(LateDevice):
    """Names another stream than the one that writes gradients."""

    def __init__(self, **options):
        super().__init__(**options)
        self.idle = emulated.new_stream()

    def stream(self):
        return self.idle

    def settle(self):
        emulated.synchronize(self.idle)
        super().settle()


# The library waits for its inputs and makes torch wait for its results.


@pytest.mark.parametrize("announce", [False, True])
def test_gradients_are_read_when_torch_has_written_them(on_device, announce):
    for right, kinds in train(LateDevice, on_device, announce=announce):
        assert kinds == {"sparse", "rows", "dense"}
        assert all(all(of_step) for of_step in right), right


def test_without_the_wait_something_else_is_read(on_device):
    """The assertions of the test above fail if a stream is not waited for."""
    for right, _ in train(NoWaitBefore, on_device, reads_sparse=False):
        assert not any(any(of_step) for of_step in right), right


def test_results_are_written_in_torchs_stream_and_the_host_does_not_wait(on_device):
    for right, _ in train(EmulatedDevice, on_device):
        assert all(all(of_step) for of_step in right), right
    for right, _ in train(EmulatedDevice, on_device, waits=False, reads_sparse=False):
        assert not any(any(of_step) for of_step in right), "no wait has happened"


class TwoStreams(LateDevice):
    """Writes each gradient in another stream."""

    def __init__(self, **options):
        super().__init__(**options)
        self.streams = [self.current, emulated.new_stream()]
        self.writer = {}  # {address: stream}

    def view(self, tensor):
        before, self.current = self.current, self.writer.pop(tensor.data_ptr(), self.current)
        seen = super().view(tensor)
        self.current = before
        return seen


@pytest.mark.parametrize("forgets", [False, True])
def test_a_bucket_waits_for_every_stream_that_wrote_it(on_device, monkeypatch, forgets):
    """The first gradient of a bucket is written in another stream than the last one. A session that only knows the last stream reads
    wrong values.
    """
    made = on_device(TwoStreams)

    def work(rank, member):
        module = torch.nn.Linear(3, 3)
        late = []
        for i, parameter in enumerate(module.parameters()):

            def before(tensor, i=i):
                own = own_device(made)
                own.current = own.streams[i]
                own.writer[tensor.grad.data_ptr()] = own.streams[i]
                late.append(i)

            parameter.register_post_accumulate_grad_hook(before)
        ddp = DistributedDataParallel(module, process_group=member, gradient="sum")
        own = own_device(made)
        sums = []
        for _ in range(3):
            ddp.zero_grad(set_to_none=False)
            ddp(torch.ones(2, 3)).sum().backward()
            for stream in own.streams:
                emulated.synchronize(stream)
            sums.append([float(each.grad.sum()) for each in module.parameters()])
        ddp.close()
        return sums, late

    if forgets:
        submit = bucket.Bucket.submit
        monkeypatch.setattr(bucket.Bucket, "submit", lambda own, _, copies: submit(own, copies=copies))
    results = good(run_workers(2, work))
    assert all(len(set(late)) == 2 for _, late in results)
    right = [[36.0, 12.0]] * 3
    assert all((sums == right) is not forgets for sums, _ in results), results


def sums_in_streams(on_device, monkeypatch, sparsifier, moves):
    """Returns worker 0's weights after each step, and its residual at the end. The loss of the fourth step is infinite.

    moves: torch uses another stream in each step.
    """
    made = on_device()
    monkeypatch.setattr(sparsifier_runtime, "NativeSparsifier", WaitingSparsifier)
    for each in (bucket, module_state, scalar_allreduce, sparsifier_runtime):
        monkeypatch.setattr(each, "Result", WaitingResult)

    def work(rank, member):
        module = torch.nn.Linear(20, 10, bias=False)
        torch.nn.init.constant_(module.weight, 0.5)
        ddp = DistributedDataParallel(module, process_group=member, scheme="balanced", sparsifier=sparsifier, bucket_cap_mb=1.0)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler = LossScaler(ddp, scale=2.0, growth_interval=1)
        found = []
        for step in range(6):
            if moves:
                own_device(made).current = emulated.new_stream()
            inputs = torch.randn(4, 20, generator=torch.Generator().manual_seed(10 * rank + step))
            optimizer.zero_grad()
            loss = ddp(inputs).square().sum() * (float("inf") if step == 3 and rank == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            found.append(module.weight.detach().clone())
        assert scaler.skipped_steps == 1
        state = ddp.state_dict()
        found += [each for name, each in state.items() if torch.is_tensor(each) and name.startswith("sparsesync.")]
        ddp.close()
        return found

    return good(run_workers(2, work))[0]


@pytest.mark.parametrize(
    "sparsifier",
    [TopK(density=0.2, least_elements=10), CoarseGrained(share=0.3, chunk=16, least_elements=10)],
    ids=["TopK", "CoarseGrained"],
)
def test_a_sparsifier_follows_torch_to_other_streams(on_device, monkeypatch, sparsifier):
    expected, found = (sums_in_streams(on_device, monkeypatch, sparsifier, moves) for moves in (False, True))
    assert len(expected) == len(found) > 6
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


def test_memory_of_a_gradient_is_not_used_again_before_a_sparsifier_has_read_it():
    now_in = emulated.new_stream()
    own = sparsesync.Device(0, emulated.new_stream(), Allocator())
    with sparsesync.Session(sparsesync.LocalNetwork(1).join(0), device=own, deadline_s=60) as session:
        sparsifier = _native.Sparsifier(session, [sparsesync.TensorSpec("t", 8, 1)])
        bucket = session.register_bucket("bucket", sparsifier.crossing, "balanced")
        gradient = np.zeros(8, np.float32)

        def owed():
            numbers = np.full(8, 77, np.float32)
            sparsifier.write_state(0, numbers, stream=now_in)
            emulated.synchronize(now_in)
            return numbers.tolist()

        emulated.write(gradient, np.full(8, 3, np.float32), now_in)
        reduced = sparsifier.reduce(bucket, [gradient], share=0.25, streams=[now_in])
        session.wait(session.gather(bucket))
        session.wait(reduced)
        assert owed() == [0, 0, *[3] * 6]
        sparsifier.undo([gradient], [now_in])
        emulated.write(gradient, np.full(8, 100, np.float32), now_in)
        emulated.synchronize(now_in)
        assert owed() == [0] * 8

        emulated.write(gradient, np.full(8, 5, np.float32), now_in)
        sparsifier.read_state(0, gradient, stream=now_in)
        emulated.write(gradient, np.full(8, 100, np.float32), now_in)
        emulated.synchronize(now_in)
        assert owed() == [5] * 8


def test_a_step_of_a_sparsifier_is_submitted_before_its_gradient_is_there():
    now_in = emulated.new_stream()
    own = sparsesync.Device(0, emulated.new_stream(), Allocator())
    with sparsesync.Session(sparsesync.LocalNetwork(1).join(0), device=own, deadline_s=60) as session:
        first = session.register_bucket("first", [sparsesync.TensorSpec("t", 8, 1)], "balanced")
        sparsifier = _native.Sparsifier(session, [sparsesync.TensorSpec("t", 8, 1)])
        second = session.register_bucket("second", sparsifier.crossing, "balanced")
        gradient = np.full(8, 77, np.float32)
        emulated.write(gradient, np.arange(8, dtype=np.float32), now_in)
        tickets = [sparsifier.reduce(second, [gradient], share=0.25, streams=[now_in]), session.gather(second)]
        assert gradient.tolist() == [77] * 8, "the stream was not waited for"
        session.reduce(first, [None])
        session.gather(first)
        assert sparsifier.not_finite() == 0
        assert gradient.tolist() == list(range(8))
        for ticket in reversed(tickets):
            session.wait(ticket)
        indices, values = session.result(second, 0)
        assert (indices.tolist(), values.reshape(-1).tolist()) == ([6, 7], [6, 7])


def test_norms_are_there_for_the_stream_that_is_named():
    now_in = emulated.new_stream()
    own = sparsesync.Device(0, emulated.new_stream(), Allocator())
    with sparsesync.Session(sparsesync.LocalNetwork(1).join(0), device=own, deadline_s=60) as session:
        specs = [sparsesync.TensorSpec("t", 8, 1)]
        sparsifier = _native.Sparsifier(session, specs, "chunks", chunk=4)
        bucket = session.register_bucket("bucket", sparsifier.crossing, "balanced")
        gradient = np.arange(8, dtype=np.float32)
        sparsifier.reduce(bucket, [gradient], streams=[now_in])
        assert sparsifier.not_finite() == 0
        norms = np.full(2, 77.0)
        sparsifier.write_norms(norms, now_in)
        emulated.synchronize(now_in)
        assert norms.tolist() == [6, 22]


# Memory


def test_workspaces_are_torchs_memory_and_all_of_it_goes_back(on_device):
    made = on_device()

    def work(rank, member):
        ddp = DistributedDataParallel(Both(), process_group=member, scheme="balanced")
        own = own_device(made)
        for step in range(8):
            if step == 4:
                before = len(own.allocator.calls)
            ddp.zero_grad()
            ddp(*gradient_of(rank, 0)).backward()
            own.synchronize()
        told = ddp.statistics()
        assert len(own.allocator.calls) == before > 0, "a steady state allocates nothing"
        assert {stream for _, stream in own.allocator.calls} <= {own.communication, own.current}
        assert told["memory_bytes"] == own.allocator.in_use > 0
        assert told["memory_high_water_bytes"] >= told["memory_bytes"]
        assert told["pinned_high_water_bytes"] >= told["pinned_bytes"] > 0
        assert (told["device"], told["transport"]) == ("cuda:0", "local")
        assert told["payloads"] == "from GPU to GPU within the process"
        ddp.close()
        return own.allocator

    for allocator in good(run_workers(2, work)):
        assert allocator.in_use == 0, "all memory is freed"


def test_a_session_that_ends_gives_all_back():
    allocator = Allocator()
    own = sparsesync.Device(0, emulated.new_stream(), allocator)
    with sparsesync.Session(sparsesync.LocalNetwork(1).join(0), device=own) as session:
        bucket = session.register_bucket("b", [sparsesync.TensorSpec("t", ROWS, WIDTH)], "balanced")
        synchronize(session, bucket, [(np.arange(50), np.ones((50, WIDTH), np.float32))])
        out = np.empty((ROWS, WIDTH), np.float32)  # used until the session has closed
        session.write_dense(bucket, 0, out)
        assert session.memory_in_use == allocator.in_use > 0
    assert out[:50].all() and not out[50:].any(), "close() waits for threads that still read results"
    assert allocator.in_use == 0


def test_threads_that_read_results_at_once():
    own = sparsesync.Device(0, emulated.new_stream(), Allocator())  # its calls take the GIL
    written = []  # used until the session has closed
    with sparsesync.Session(sparsesync.LocalNetwork(1).join(0), device=own, deadline_s=60) as session:
        bucket = session.register_bucket("b", [sparsesync.TensorSpec("t", ROWS, WIDTH)], "balanced")
        synchronize(session, bucket, [(np.arange(50), np.ones((50, WIDTH), np.float32))])

        def read(reader):
            for _ in range(100):
                if reader % 2:
                    rows, values = session.result(bucket, 0)
                    assert len(rows) == 50 and values.all()
                else:
                    written.append(np.empty((ROWS, WIDTH), np.float32))
                    session.write_dense(bucket, 0, written[-1], emulated.new_stream())

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(read, range(4)))
    assert len(written) == 200 and all(each[:50].all() and not each[50:].any() for each in written)


def test_an_allocation_failure_is_reported_by_all_and_the_next_step_works():
    network = sparsesync.LocalNetwork(2)
    outcomes = [None, None]

    def work(rank):
        allocator = Allocator()
        own = sparsesync.Device(0, None, allocator)
        with sparsesync.Session(network.join(rank), device=own, deadline_s=60) as session:
            allocator.is_empty = rank == 1
            with pytest.raises(sparsesync.Error) as told:
                session.register_bucket("large", [sparsesync.TensorSpec("t", 10**5, 8)], "dense_ring")
            allocator.is_empty = False
            bucket = session.register_bucket("large", [sparsesync.TensorSpec("t", 10**5, 8)], "dense_ring")
            synchronize(session, bucket, [(np.arange(100), np.ones((100, 8), np.float32))])
            outcomes[rank] = told.value, float(session.result(bucket, 0).sum())

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    (elsewhere, of_first), (there, of_second) = outcomes
    assert of_first == of_second == 1600
    assert isinstance(there, sparsesync.DeviceMemoryError) and isinstance(there, MemoryError)
    assert "CUDA out of memory" in str(there) and "\n" not in str(there)
    assert isinstance(elsewhere, sparsesync.RefusedError) and elsewhere.rank == 1


def test_a_budget_is_kept_on_the_device():
    with sparsesync.Session(sparsesync.LocalNetwork(1).join(0), device="cuda:0", memory_bytes=1 << 20) as session:
        with pytest.raises(sparsesync.BudgetError):
            session.register_bucket("large", [sparsesync.TensorSpec("t", 10**6, 64)], "dense_ring")
        bucket = session.register_bucket("small", [sparsesync.TensorSpec("t", 100, 2)], "dense_ring")
        synchronize(session, bucket, [None])
        assert 0 < session.memory_high_water <= 1 << 20


# NCCL


@pytest.mark.parametrize("scheme", ["balanced", "owned", "all_gather"])
def test_nccl_sends_gradients_on_gpus(on_device, scheme):
    made = on_device()

    def work(rank, member):
        ddp = DistributedDataParallel(Both(), process_group=member, scheme=scheme, gradient="sum", transport="nccl", deadline=60)
        for step in range(3):
            ddp.zero_grad()
            ddp(*gradient_of(rank, step)).backward()
            own_device(made).synchronize()
            assert torch.equal(ddp.module.sparse.gradient, expected(2, step))
        told = ddp.statistics()
        ddp.close()
        return told

    for told in good(run_workers(2, work)):
        assert told["transport"] == "nccl"
        assert told["payloads"] == "by NCCL 2.30.7: as requested, control messages over local"
        assert told["parameters"]["dense.weight"]["scheme"] == "dense_native", "NCCL's all-reduce"


# Invalid devices and types are rejected early.


def test_invalid_transports(on_device):
    on_device()
    (member,) = local_group(1)
    with pytest.raises(sparsesync.InputError, match="no transport 'fast': None, nccl, staged"):
        DistributedDataParallel(torch.nn.Linear(2, 2), process_group=member, transport="fast")
    (member,) = local_group(1)
    with pytest.raises(sparsesync.UnsupportedError, match="leave it out"):
        DistributedDataParallel(torch.nn.Linear(2, 2), process_group=member, transport="staged")


def test_missing_devices():
    def session(**options):
        return sparsesync.Session(sparsesync.LocalNetwork(1).join(0), **options)

    for wrong in ("gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", ""):
        with pytest.raises(sparsesync.InputError, match="there is no device"):
            session(device=wrong)
    with pytest.raises(sparsesync.InputError, match="device: give None, 'cpu'"):
        session(device=0)
    with pytest.raises(sparsesync.DeviceError, match="no GPU 5: this machine has 1"):
        session(device="cuda:5")
    with pytest.raises(sparsesync.DeviceError, match="no GPU 1"):
        sparsesync.Device(1)
    with pytest.raises(sparsesync.InputError, match="pass it to the Device"):
        session(device=sparsesync.Device(), memory_bytes=5)
    own = sparsesync.Device()
    assert (own.number, own.name) == (0, "cuda:0")
    with session(device=own) as first:
        assert first.device == "cuda:0"
        with pytest.raises(sparsesync.InputError, match="make a new Device"):
            session(device=own)
    with session(device="cpu") as on_host:
        assert on_host.device == "cpu"


@pytest.fixture
def two_gpus():
    emulated.set_devices(2)
    yield
    emulated.set_devices(1)


def test_a_stream_of_another_device(two_gpus):
    there = emulated.new_stream(1)
    with sparsesync.Session(sparsesync.LocalNetwork(1).join(0), device="cuda:0") as session:
        bucket = session.register_bucket("b", [sparsesync.TensorSpec("t", 10, 2)], "balanced")
        given = np.array([3]), np.ones((1, 2), np.float32)
        with pytest.raises(sparsesync.InputError, match=f"stream {there:#x} is not a stream of cuda:0"):
            session.reduce(bucket, [given], [there])
        reduced = session.reduce(bucket, [given], [emulated.new_stream(0)])
        session.wait(reduced)
        session.wait(session.gather(bucket))
        assert session.result(bucket, 0)[0].tolist() == [3]
    with sparsesync.Session(sparsesync.LocalNetwork(1).join(0), device="cuda:1") as session:
        bucket = session.register_bucket("b", [sparsesync.TensorSpec("t", 10, 2)], "balanced")
        session.wait(session.reduce(bucket, [given], [there]))


def test_an_index_outside_is_an_error_on_all_workers_and_nothing_is_corrupted():
    network = sparsesync.LocalNetwork(2)
    outcomes = [None, None]

    def work(rank):
        with sparsesync.Session(network.join(rank), device="cuda:0", deadline_s=60) as session:
            bucket = session.register_bucket("b", [sparsesync.TensorSpec("table", 10, 2)], "balanced")
            found = []
            for index in (3, 10 if rank == 1 else 3, -1 if rank == 1 else 3, 4):
                try:
                    synchronize(session, bucket, [(np.array([index]), np.ones((1, 2), np.float32))])
                    found.append([each.tolist() for each in session.result(bucket, 0)])
                except sparsesync.Error as error:
                    found.append(error)
            outcomes[rank] = found

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    for rank, found in enumerate(outcomes):
        assert found[0] == [[3], [[2.0, 2.0]]]
        assert found[3] == [[4], [[2.0, 2.0]]]
        for wrong, error in zip((10, -1), found[1:3], strict=True):
            assert isinstance(error, sparsesync.InputError if rank == 1 else sparsesync.RefusedError)
            assert str(wrong) in str(error) and "table" in str(error)


@pytest.mark.parametrize(
    ("device", "of", "says"),
    [
        ("cuda:0", (2, 1), "an array in the memory of cuda:1: copy it to cuda:0's memory"),
        ("cpu", (2, 0), "an array in the memory of cuda:0: copy it to host memory"),
        ("cuda:0", (8, 0), r"an array in the memory of another device \(DLPack's 8:0\): copy it to cuda:0's"),
    ],
)
def test_an_array_of_another_device(device, of, says):
    with sparsesync.Session(sparsesync.LocalNetwork(1).join(0), device=device) as session:
        bucket = session.register_bucket("b", [sparsesync.TensorSpec("t", 1, 2)], "balanced")
        elsewhere = emulated.array_on(*of)
        for call in (
            lambda: session.reduce(bucket, [elsewhere]),
            lambda: session.reduce(bucket, [(np.array([0]), elsewhere)]),
            lambda: session.write_dense(bucket, 0, elsewhere),
        ):
            with pytest.raises(sparsesync.InputError, match=says):
                call()
        synchronize(session, bucket, [(np.array([0]), np.ones((1, 2), np.float32))])
        assert session.result(bucket, 0)[1].tolist() == [[1, 1]], "nothing has begun"


def test_the_stand_in_has_all_that_cuda_has():
    public = {each for each in dir(device.CudaDevice) if not each.startswith("_")}
    assert public <= {each for each in dir(EmulatedDevice) if not each.startswith("_")} | {"communication"}
    assert issubclass(emulated_device.WaitingResult, gradients.Result)
