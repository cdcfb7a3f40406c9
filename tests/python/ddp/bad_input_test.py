"""Wrong input is a typed error on every worker that it concerns, and never a hang."""
# ctest: EMULATED

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync.torch  # noqa: E402 (needs torch)
from sparsesync.torch import DistributedDataParallel  # noqa: E402 (needs torch)
from workers import Table, good, run_workers  # noqa: E402 (needs torch)


def make(make_module, workers=3, **options):
    """Makes a DistributedDataParallel of make_module(rank) on each worker. Returns the wrappers or exceptions."""

    def work(rank, member):
        mine = {name: value(rank) if callable(value) else value for name, value in options.items()}
        ddp = DistributedDataParallel(make_module(rank), process_group=member, **{"deadline": 10, **mine})
        ddp.close()
        return "made"

    return run_workers(workers, work)


def test_modules_of_other_shapes_name_the_first_parameter_that_differs():
    def module(rank):
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 5 if rank == 1 else 4))

    for each in make(module):
        assert isinstance(each, sparsesync.AgreementError)
        assert "parameter '1.weight'" in str(each)
        assert "[5, 4]" in str(each)
        assert "[4, 4]" in str(each)


def test_modules_of_other_types_and_more_parameters():
    for each in make(lambda rank: torch.nn.Linear(4, 4, dtype=torch.float64 if rank == 2 else torch.float32)):
        assert isinstance(each, sparsesync.AgreementError)
        assert "parameter 'weight'" in str(each)
    for each in make(lambda rank: torch.nn.Linear(4, 4, bias=rank != 0)):
        assert isinstance(each, sparsesync.AgreementError)
        assert "parameter 'bias'" in str(each)


def test_other_buffers():
    for each in make(lambda rank: torch.nn.BatchNorm1d(4, track_running_stats=rank != 1)):
        assert isinstance(each, sparsesync.AgreementError)
        assert "buffer 'running_mean'" in str(each)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [("scheme", "balanced", "owned"), ("gradient", "sum", "mean"), ("wire", "bf16", None), ("announce", True, False)],
)
def test_other_options(name, one, other):
    for each in make(lambda _: torch.nn.Linear(2, 2), **{name: lambda rank: one if rank == 1 else other}):
        assert isinstance(each, sparsesync.AgreementError)
        assert name in str(each)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scheme": "fastest"}, "there is no scheme 'fastest': auto, "),
        ({"gradient": "median"}, "mean or sum"),
        ({"wire": "int8"}, "f16 or bf16"),
        ({"bucket_cap_mb": -1}, "0 or more"),
    ],
)
def test_unknown_options(options, says):
    with pytest.raises(sparsesync.InputError, match=says):
        DistributedDataParallel(torch.nn.Linear(2, 2), **options)


def test_devices_and_types_that_cannot_be_synchronized():
    with pytest.raises(sparsesync.UnsupportedError, match="device_ids"):
        DistributedDataParallel(torch.nn.Linear(2, 2), device_ids=[0])
    with pytest.raises(sparsesync.UnsupportedError, match="'weight' is on meta"):
        DistributedDataParallel(torch.nn.Linear(2, 2, device="meta"))
    with pytest.raises(sparsesync.UnsupportedError, match="'weight' is torch.complex32"):
        DistributedDataParallel(torch.nn.Linear(2, 2, dtype=torch.complex32))


def test_parameters_on_two_devices_are_named():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta"))
    says = "parameter '0.weight' is on cpu and parameter '1.weight' on meta: move the module to one device"
    with pytest.raises(sparsesync.UnsupportedError, match=says):
        DistributedDataParallel(module)


@pytest.mark.skipif(sparsesync.device_facts()["compiled_in"], reason="this build has CUDA")
def test_a_gpu_that_this_build_cannot_use():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        module = torch.nn.Linear(2, 2, device="cuda:0")  # does not need a GPU
    says = r"parameter 'weight' is on cuda:0: this build has no CUDA: pip install \. -C cmake\.define\.SPARSESYNC_CUDA=ON"
    with pytest.raises(sparsesync.DeviceError, match=says):
        DistributedDataParallel(module)
    with pytest.raises(sparsesync.DeviceError, match="this build has no CUDA"):
        sparsesync.Session(sparsesync.LocalNetwork(1).join(0), device="cuda:0")


def test_a_transport_of_gpus_for_a_module_on_the_cpu():
    if os.environ.get("SPARSESYNC_TEST_DEVICE") == "emulated":
        pytest.skip("modules are on the emulated GPU")
    for each in make(lambda _: torch.nn.Linear(2, 2), transport="nccl"):
        assert isinstance(each, sparsesync.UnsupportedError)
        assert "the module is on the CPU" in str(each)
    for each in make(lambda _: torch.nn.Linear(2, 2), transport=lambda rank: "staged" if rank == 1 else None):
        assert isinstance(each, sparsesync.AgreementError)
        assert "worker 0 has None, worker 1 'staged'" in str(each)


def test_nothing_to_synchronize():
    with pytest.raises(sparsesync.InputError, match="nothing to synchronize"):
        DistributedDataParallel(torch.nn.Linear(2, 2).requires_grad_(False))


def test_an_invalid_process_group():
    with pytest.raises(sparsesync.InputError, match="not a ProcessGroup"):
        DistributedDataParallel(torch.nn.Linear(2, 2), process_group="gloo")


def test_backward_twice():
    def work(rank, member):
        ddp = DistributedDataParallel(Table(10, 2), process_group=member, scheme="balanced")
        loss = ddp(torch.tensor([1]), torch.ones(1, 2))
        loss.backward(retain_graph=True)
        loss.backward()

    for each in run_workers(2, work):
        assert isinstance(each, sparsesync.OrderError)
        assert "forward pass" in str(each)


def test_backward_of_the_module_without_its_wrapper(caplog):
    ddp = DistributedDataParallel(Table(10, 2))
    for _ in range(2):
        ddp.module(torch.tensor([1]), torch.ones(1, 2)).backward()
    assert [each.getMessage() for each in caplog.records if "stays on this worker" in each.getMessage()] == [
        "parameter 'table.weight' got a gradient without a forward pass of the DistributedDataParallel: it stays on this worker; to "
        "exchange it, call the wrapper instead of the module"
    ]
    ddp.close()


def test_a_deadline_names_the_worker_and_the_parameter():
    def work(rank, member):
        ddp = DistributedDataParallel(Table(10, 2), process_group=member, scheme="balanced", deadline=3)
        for step in range(2):
            if (rank, step) == (1, 1):
                return ddp  # a dropped wrapper leaves the group
            ddp(torch.tensor([1]), torch.ones(1, 2)).backward()
        return "done"

    results = run_workers(2, work)
    assert isinstance(results[0], sparsesync.DeadlineError)
    assert "worker 1" in str(results[0])
    assert "table.weight" in str(results[0])


def test_a_backward_pass_that_fails_on_one_worker():
    def work(rank, member):
        ddp = DistributedDataParallel(Table(10, 2), process_group=member, scheme="balanced", deadline=1)

        def fail(_):
            raise ZeroDivisionError("of the program")

        for step in range(2):
            values = torch.ones(1, 2, requires_grad=True)
            if (rank, step) == (1, 1):
                ddp.module.table.weight.register_hook(fail)
            try:
                ddp(torch.tensor([1]), values).backward()
            except ZeroDivisionError:
                try:
                    ddp(torch.tensor([1]), values).backward()
                except ZeroDivisionError:
                    return "goes on as it can"
        return "done"

    results = run_workers(2, work)
    assert isinstance(results[0], sparsesync.DeadlineError | sparsesync.AbortedError | sparsesync.PeerLostError)
    assert isinstance(results[1], sparsesync.Error) or results[1] == "goes on as it can"


def test_use_after_close():
    ddp = DistributedDataParallel(Table(10, 2))
    loss = ddp(torch.tensor([1]), torch.ones(1, 2))
    ddp.close()
    ddp.close()
    loss.backward()  # a pass of the module alone
    with pytest.raises(sparsesync.ClosedError, match="closed"):
        ddp(torch.tensor([1]), torch.ones(1, 2))
    with pytest.raises(sparsesync.ClosedError, match="closed"):
        ddp.statistics()
    with pytest.raises(sparsesync.ClosedError, match="closed"), ddp.join():
        pass


def test_a_forked_process():
    ddp = DistributedDataParallel(Table(10, 2))
    ddp(torch.tensor([1]), torch.ones(1, 2)).backward()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ddp.statistics()
        except sparsesync.ClosedError as error:
            status = 0 if "forked" in str(error) else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    ddp(torch.tensor([1]), torch.ones(1, 2)).backward()
    ddp.close()


def test_a_row_that_was_not_announced():
    class Sneaky(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(100, 4, sparse=True)

        def forward(self, ids, sneaks):
            result = self.table(ids).sum()
            if sneaks:
                result = result + torch.nn.functional.embedding(torch.tensor([77]), self.table.weight, sparse=True).sum()
            return result

    def work(rank, member):
        ddp = DistributedDataParallel(Sneaky(), process_group=member, scheme="owned", announce=True, deadline=10)
        for step in range(3):
            ddp(torch.tensor([1, 2]), rank == 1 and step == 2).backward()

    results = run_workers(3, work)
    assert isinstance(results[1], sparsesync.InputError)
    assert "77" in str(results[1])
    for each in (results[0], results[2]):
        assert isinstance(each, sparsesync.RefusedError)
        assert "table.weight" in str(each)


def test_announcing_forward_passes_without_backward():
    def work(rank, member):
        ddp = DistributedDataParallel(Table(10, 2), process_group=member, scheme="owned", announce=True)
        ddp(torch.tensor([1]), torch.ones(1, 2)).backward()
        ddp(torch.tensor([1]), torch.ones(1, 2))
        ddp(torch.tensor([1]), torch.ones(1, 2)).backward()

    for each in run_workers(2, work):
        assert isinstance(each, sparsesync.OrderError)
        assert "no_grad" in str(each)


def test_a_worker_that_stays_away_from_the_start():
    def work(rank, member):
        if rank == 0:
            DistributedDataParallel(Table(10, 2), process_group=member, deadline=1)

    results = run_workers(2, work)
    assert isinstance(results[0], sparsesync.DeadlineError)
    assert "worker 1" in str(results[0])


def test_errors_leave_other_models_alone():
    def work(rank, member):
        ddp = DistributedDataParallel(Table(10, 2), process_group=member, scheme="balanced", gradient="sum")
        loss = ddp(torch.tensor([rank]), torch.ones(1, 2))
        loss.backward(retain_graph=True)
        try:
            loss.backward()
        except sparsesync.OrderError:
            ddp.zero_grad()
        ddp(torch.tensor([rank]), torch.ones(1, 2)).backward()
        ddp.close()
        return ddp.module.gradient

    for gradient in good(run_workers(2, work)):
        assert gradient[:2].tolist() == [[1, 1], [1, 1]]
