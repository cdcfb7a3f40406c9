"""Each test provokes an error, follows the advice in its text, and checks that the advice works."""
# ctest: COST 25

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync
import sparsesync.torch as st
import torch
import torch.distributed as dist
from workers import Table, good, run_workers


def wrapped(module: Any, **options: Any) -> Any:
    return st.DistributedDataParallel(module, process_group="alone", **{"scheme": "balanced", **options})


def trained(module: Any, inputs: Any = None, **options: Any) -> Any:
    """Runs two steps."""
    ddp = wrapped(module, **options)
    for _ in range(2):
        ddp(torch.ones(1, 2) if inputs is None else inputs).sum().backward()
    return ddp


def test_a_deadline_names_the_option() -> None:
    def work(rank: int, member: Any, deadline: float) -> None:
        ddp = st.DistributedDataParallel(Table(10, 2), process_group=member, scheme="balanced", deadline=deadline)
        for _ in range(2):
            ddp(torch.tensor([1]), torch.ones(1, 2)).backward()
            if rank == 1:
                waiting.wait(6)
        ddp.close()

    waiting = threading.Event()
    short = run_workers(2, lambda rank, member: work(rank, member, 2))
    assert isinstance(short[0], sparsesync.DeadlineError)
    assert "check that worker 1 runs, or set a longer deadline " in str(short[0])
    assert "(--deadline, in Python deadline=, in C++ SessionOptions::deadline)" in str(short[0])
    good(run_workers(2, lambda rank, member: work(rank, member, 20)))


def test_rows_that_were_not_announced() -> None:
    class Tables(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(100, 4, sparse=True)

        def forward(self, more: bool) -> torch.Tensor:
            result = self.table(torch.tensor([1])).sum()
            if more:
                result = result + torch.nn.functional.embedding(torch.tensor([7]), self.table.weight, sparse=True).sum()
            return result

    def work(_: int, member: Any, announce: bool) -> None:
        ddp = st.DistributedDataParallel(Tables(), process_group=member, scheme="owned", announce=announce, deadline=10)
        for step in range(3):
            ddp(step == 2).backward()
        ddp.close()

    for each in run_workers(2, lambda rank, member: work(rank, member, True)):
        assert isinstance(each, sparsesync.InputError | sparsesync.RefusedError)
        assert "row 7 was touched and not announced" in str(each)
        assert "or none (in Python announce=False)" in str(each)
    good(run_workers(2, lambda rank, member: work(rank, member, False)))


def test_a_sparsifier_of_f64_parameters() -> None:
    double = torch.nn.Linear(64, 64, dtype=torch.float64)
    says = r"TopK: no parameter of f32, f16 or bf16 has 4096 elements or more: give a smaller least_elements, .* module.float\(\)"
    with pytest.raises(sparsesync.InputError, match=says):
        wrapped(double, sparsifier=st.TopK())
    trained(double.float(), torch.ones(1, 64), sparsifier=st.TopK())
    with pytest.raises(sparsesync.InputError, match="give a smaller least_elements"):
        wrapped(torch.nn.Linear(2, 2), sparsifier=st.TopK())
    trained(torch.nn.Linear(2, 2), sparsifier=st.TopK(least_elements=1))


def test_a_sparsifier_of_unknown_names() -> None:
    with pytest.raises(sparsesync.InputError, match=r"names, or patterns of names, of named_parameters\(\)"):
        wrapped(torch.nn.Linear(2, 2), sparsifier=st.TopK(parameters=["layer.*"]))
    trained(torch.nn.Linear(2, 2), sparsifier=st.TopK(parameters=["wei*"]))


def test_the_communication_hook_and_a_static_graph() -> None:
    """torch rebuilds its buckets after the second step."""

    def train(static_graph: bool) -> None:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        ddp = torch.nn.parallel.DistributedDataParallel(module, static_graph=static_graph)
        state = st.CommHookState(module, scheme="balanced", deadline=10)
        ddp.register_comm_hook(None, st.comm_hook(state))
        try:
            for _ in range(4):
                ddp(torch.ones(1, 2)).sum().backward()
        finally:
            state.close()

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(sparsesync.UnsupportedError, match="pass static_graph=False to torch's DistributedDataParallel, or wrap the"):
            train(static_graph=True)
        train(static_graph=False)
        trained(torch.nn.Linear(2, 2), static_graph=True)
    finally:
        dist.destroy_process_group()


def test_parameters_on_another_device() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta"))
    with pytest.raises(sparsesync.UnsupportedError, match=r"'1.weight' on meta: move the module to one device, such as module.to\("):
        wrapped(module)
    meta = torch.nn.Linear(2, 2, device="meta")
    with pytest.raises(sparsesync.UnsupportedError, match=r"parameter 'weight' is on meta: .* by module.to_empty\(device=...\)"):
        wrapped(meta)
    trained(meta.to_empty(device="cpu"))


def test_modules_without_shapes() -> None:
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.LazyBatchNorm1d(affine=False))
    with pytest.raises(sparsesync.InputError, match="parameter '0.weight' has no shape yet: run a forward pass of the module before"):
        wrapped(lazy)
    with pytest.raises(sparsesync.InputError, match="buffer '1.running_mean' has no shape yet"):
        wrapped(torch.nn.Sequential(torch.nn.Linear(2, 2), lazy[1]))
    lazy(torch.ones(2, 2))
    trained(lazy, torch.ones(2, 2))
    with pytest.raises(sparsesync.InputError, match="module: NoneType is not a torch.nn.Module"):
        wrapped(None)


def test_nothing_that_requires_a_gradient() -> None:
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(sparsesync.InputError, match="train without a DistributedDataParallel"):
        wrapped(frozen)


def test_optimizers_of_other_parameters() -> None:
    module = torch.nn.Linear(2, 2)
    ddp = wrapped(module)
    with pytest.raises(sparsesync.InputError, match=r"make the optimizer of ddp.parameters\(\)"):
        st.wrap_optimizer(torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1), ddp)
    with pytest.raises(sparsesync.InputError, match="pass an instance of one"):
        st.wrap_optimizer(torch.optim.SGD, ddp)  # type: ignore[type-var]
    st.wrap_optimizer(torch.optim.SGD(ddp.parameters(), 0.1), ddp)


def test_a_closed_wrapper() -> None:
    module = torch.nn.Linear(2, 2)
    ddp = trained(module)
    ddp.close()
    with pytest.raises(sparsesync.ClosedError, match="is closed: wrap the module again"):
        ddp(torch.ones(1, 2))
    trained(module)


def test_schemes_that_do_not_fit() -> None:
    with pytest.raises(sparsesync.UnsupportedError, match="use dense_ring, or run it over mpi"):
        _register("dense_native")
    _register("dense_ring")
    with pytest.raises(sparsesync.InputError, match=r"do not announce \(in Python announce=False\), or use "):
        _register("all_gather", announce=True)
    _register("all_gather", announce=False)


def _register(scheme: str, **options: Any) -> None:
    with sparsesync.Session(sparsesync.LocalNetwork(1).join(0)) as session:
        session.register_bucket("bucket", [sparsesync.TensorSpec("t", 10, 2, "f32")], scheme, **options)


def test_json_that_is_nested_too_deep(tmp_path: Path) -> None:
    """Used to crash, because the message quoted the value."""
    for text in ("[" * 100_000 + "]" * 100_000, '{"workers":' * 100_000 + "1" + "}" * 100_000):
        trace = tmp_path / f"T{len(text)}"
        trace.mkdir()
        (trace / "trace.json").write_text(text, encoding="utf-8")
        with pytest.raises(sparsesync.InputError, match=r"trace.json.* nests values more than 64 deep"):
            sparsesync.Trace(trace)
