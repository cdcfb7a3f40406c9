"""explain() of wrappers: its sentences agree with the state, its advice fits the model, and it makes no collective call."""
# ctest: COST 25 PROCESSORS 2 SLOW launched

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import launching  # noqa: E402 (needs torch)
import sparsesync  # noqa: E402 (needs torch)
import torch.distributed as dist  # noqa: E402 (needs torch)
from sparsesync import _units as units  # noqa: E402 (needs torch)
from sparsesync.torch import DistributedDataParallel  # noqa: E402 (needs torch)
from workers import good, run_workers, seeded  # noqa: E402 (needs torch)

ROWS, WIDTH = 4000, 8


def model(sparse: bool = True, rows: int = ROWS) -> torch.nn.Module:
    with seeded(1):
        return torch.nn.Sequential(torch.nn.EmbeddingBag(rows, WIDTH, sparse=sparse), torch.nn.Linear(WIDTH, 2))


def explain(module: torch.nn.Module) -> str:
    """Returns the explanation without line breaks within a sentence or an item."""
    text = sparsesync.torch.explain(module)
    assert all(len(line) <= 100 for line in text.splitlines()), text
    return text.replace("\n  ", " ")


def step(ddp: Any, first: int, count: int, scale: float = 1) -> None:
    """Makes a step that touches `count` rows from `first` on."""
    ddp.zero_grad()
    (ddp(torch.arange(first, first + count).unsqueeze(0)).sum() * scale).backward()


def explained(
    make: Callable[[], torch.nn.Module] = model, steps: int = 2, count: int = 40, shift: int = 20, scale: float = 1, **options: Any
) -> str:
    """Trains two workers, which touch `count` rows each and `count` + `shift` together. Returns what worker 1 alone explains."""

    def work(rank: int, member: sparsesync.torch.LocalMember) -> str:
        with DistributedDataParallel(make(), process_group=member, **{"scheme": "balanced", "deadline": 60, **options}) as ddp:
            for _ in range(steps):
                step(ddp, rank * shift, count, scale)
            text = ""
            if rank == 1:
                before = ddp.synchronizer.session.counters()
                text = explain(ddp)
                assert ddp.synchronizer.session.counters() == before, "it communicates"
            step(ddp, rank * shift, count)  # the workers are still in step
            return text

    text: str = good(run_workers(2, work))[1]
    assert text
    return text


def advice_in(text: str) -> list[str]:
    return [line.removeprefix("- ") for line in text.partition("Advice:\n")[2].splitlines()]


def test_a_wrapper_after_some_steps() -> None:
    text = explained()
    assert text.startswith("Rank 1 of 2 is connected as threads of one process. Gradients are on cpu, and are sent in the host's memory.\n")
    assert "Schedule lazy, scheme balanced, mean over the workers, values sent as they are, sparsifier none, index prefetch off." in text
    assert "2 steps. Buckets, in the order of their gradients:" in text
    assert f"- 0.weight ({ROWS:,} x {WIDTH}, f32): sparse, sent as rows. Scheme balanced: given. " in text
    assert "In the last step, this worker touched 1% of the rows, all workers 1.5%." in text
    assert "- 2 parameters of 72 B (1.bias, 1.weight): dense, sent whole. Scheme dense_direct: " in text
    assert text.endswith("\nNo advice.")


def test_before_the_first_step() -> None:
    text = explained(steps=0)
    assert "No step is complete: buckets and schemes are known after the first one." in text
    assert "Per step" not in text


def test_bytes_and_times_are_those_of_the_statistics() -> None:
    def work(rank: int, member: sparsesync.torch.LocalMember) -> tuple[str, dict[str, Any]]:
        with DistributedDataParallel(model(), process_group=member, scheme="owned") as ddp:
            for _ in range(3):
                step(ddp, rank, 50)
            return explain(ddp), ddp.statistics()

    for text, statistics in good(run_workers(2, work)):
        buckets = {each["bucket"]: each for each in statistics["parameters"].values()}.values()
        found = re.search(r"Per step: (.*) sent, (.*) received, (.*) of communication, of which the program waits (.*)\.", text)
        assert found is not None
        assert found[1] == units.size(sum(each["bytes_sent"] for each in buckets) / 3)
        assert found[2] == units.size(sum(each["bytes_received"] for each in buckets) / 3)
        assert found[3] == units.seconds(statistics["seconds"] / 3)
        assert found[4] == units.seconds(statistics["seconds_exposed"] / 3)


def test_the_reason_of_auto_is_given() -> None:
    text = explained(scheme="auto", steps=5)
    assert re.search(r"0\.weight .*Scheme \w+: (on trial|expected to be the fastest): \w+ [\d.e-]+ ms, ", text)


class Two(torch.nn.Module):
    """An embedding and a layer whose gradients are dense, both large."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(ROWS, WIDTH)
        self.layer = torch.nn.Linear(WIDTH, ROWS)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.table(rows).sum() + self.layer(torch.ones(WIDTH)).sum()


MOST_ARE_ZERO = "most rows of its gradient are zero. Set sparse=True in the embedding"
ADVICE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an embedding with sparse=False": ({"make": lambda: model(sparse=False)}, [f"0.weight: {MOST_ARE_ZERO}"]),
    "a dense layer": ({"make": Two}, [f"table.weight: {MOST_ARE_ZERO}"]),
    "many rows": ({"count": 2400, "shift": 1600}, ["0.weight: all workers together touch 100% of the rows. Above 50%"]),
    "many rows, sent whole": (
        {"count": 2400, "shift": 1600, "scheme": "dense_ring"},
        ["0.weight: this worker touches 60% of the rows. Above 50%"],
    ),
    "few rows, sent whole": ({"scheme": "dense_ring"}, []),
    "no deadline": ({"deadline": None}, ["A worker that hangs is noticed after 30 minutes: pass a shorter deadline"]),
    "find_unused_parameters": ({"find_unused_parameters": True}, ["Leave out find_unused_parameters: it has no effect here."]),
    "nothing sparse": ({"make": lambda: model(sparse=False, rows=100)}, ["No gradient is sparse: torch's DistributedDataParallel"]),
    "overflow": (
        {"wire": "f16", "scale": 1e30},
        ["1.bias and 1 more: 36 summed values were infinite or NaN. With wire='f16', use wire='bf16'.", "0.weight: 960 summed values were"],
    ),
}


@pytest.mark.parametrize("case", ADVICE)
def test_advice(case: str) -> None:
    options, expected = ADVICE[case]
    found = advice_in(explained(**options))
    assert len(found) == len(expected), found
    for text, begins in zip(found, expected, strict=True):
        assert text.startswith(begins), text


def test_options_are_named() -> None:
    text = explained(wire="bf16", gradient="sum", schedule="wfbp", announce=True)
    assert "Schedule wfbp, scheme balanced, sum over the workers, values sent as bf16, sparsifier none, index prefetch on." in text
    sparsifier = sparsesync.torch.TopK(density=0.1, parameters=["0.weight"])
    text = explained(lambda: model(sparse=False, rows=100), count=80, sparsifier=sparsifier)
    assert "sparsifier TopK" in text and "0.weight (100 x 8, f32): dense, of which the sparsifier sends a part" in text


def test_one_worker() -> None:
    with DistributedDataParallel(model(), process_group="alone") as ddp:
        step(ddp, 0, 10)
        text = explain(ddp)
    assert text.startswith("Rank 0 of 1 has no other workers, on cpu: nothing is sent.\n")
    assert text.endswith("\nNo advice.")


def test_gradients_in_transit() -> None:
    """A schedule that gathers under the next forward pass leaves gradients in transit between steps."""

    def work(rank: int, member: sparsesync.torch.LocalMember) -> str:
        with DistributedDataParallel(model(), process_group=member, scheme="balanced", schedule="dear", deadline=60) as ddp:
            optimizer = sparsesync.torch.wrap_optimizer(torch.optim.SGD(ddp.parameters(), lr=0.1), ddp)
            for _ in range(3):
                step(ddp, rank, 40)
                optimizer.step()
            assert any(bucket.submitted for bucket in ddp.synchronizer.buckets), "no gradient is in transit"
            text = explain(ddp)
            assert any(bucket.submitted for bucket in ddp.synchronizer.buckets), "explain() waited"
            ddp.synchronize()
            return text + explain(ddp)

    for text in good(run_workers(2, work)):
        assert text.count("Schedule dear") == 2
        assert text.count("In the last step, this worker touched 1% of the rows") == 1, "rows are counted when all have arrived"


def test_exposed_communication_between_machines() -> None:
    def work(rank: int, member: sparsesync.torch.LocalMember) -> str:
        with DistributedDataParallel(model(), process_group=member, scheme="balanced", deadline=60) as ddp:
            step(ddp, rank, 40)
            exchange = ddp.synchronizer.exchange
            exchange._worker = dataclasses.replace(exchange.worker, one_machine=False)
            buckets = list(exchange.buckets)
            for bucket in buckets:
                bucket._totals.waited_s = 0.8 * bucket.statistics()["seconds"]
            most = explain(ddp)
            for bucket in buckets:
                bucket._totals.waited_s = 0.2 * bucket.statistics()["seconds"]
            return most + explain(ddp)

    for text in good(run_workers(2, work)):
        assert text.count("try schedule='auto'") == 1
        assert "80% of the communication is exposed" in text


def test_wrappers_that_are_closed_or_copied() -> None:
    ddp = DistributedDataParallel(model(), process_group="alone")
    with pytest.raises(sparsesync.OrderError, match="is a copy"):
        explain(copy.deepcopy(ddp))
    ddp.close()
    with pytest.raises(sparsesync.ClosedError):
        explain(ddp)


@pytest.fixture
def gloo() -> Any:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_other_modules_are_refused(gloo: None) -> None:
    for module in (model(), torch.nn.parallel.DistributedDataParallel(model())):
        with pytest.raises(sparsesync.InputError, match=f"^explain: {type(module).__name__} is neither .*: pass the wrapped module$"):
            explain(module)


PROGRAM = """
import json, sys
import sparsesync.torch, torch
import torch.distributed as dist
dist.init_process_group("sparsesync")
rank = dist.get_rank()
def texts(wrapper, sparse):
    torch.manual_seed(1)
    ddp = wrapper(torch.nn.Sequential(torch.nn.EmbeddingBag(4000, 8, sparse=sparse), torch.nn.Linear(8, 2)))
    before = sparsesync.torch.explain(ddp)
    for _ in range(3):
        ddp.zero_grad()
        ddp(torch.arange(40 * rank, 40 * rank + 80).unsqueeze(0)).sum().backward()
    dist.barrier()
    return [before, sparsesync.torch.explain(ddp) if rank == 1 else ""]
torchs, ours = torch.nn.parallel.DistributedDataParallel, sparsesync.torch.DistributedDataParallel
found = [texts(torchs, True), texts(torchs, False), texts(ours, True)]
json.dump(found, open(f"{sys.argv[1]}/{rank}.json", "w"))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("has_ucx", [True, False])
def test_launched_over_the_backend(has_ucx: bool, tmp_path: Path) -> None:
    try:
        sparsesync.ucx_version()
    except sparsesync.Error as error:
        pytest.skip(str(error))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    setting = {} if has_ucx else {"SPARSESYNC_UCX_LIBRARY": "/nonexistent"}
    more = {**setting, "SPARSESYNC_BACKEND_SCHEME": "balanced", "SPARSESYNC_BACKEND_WIRE": "bf16"}
    _, found = launching.outcomes(launching.torchrun(2, program, tmp_path), tmp_path, 2, **more)
    (before, sparse), (_, dense), (_, ours) = [[text.replace("\n  ", " ") for text in pair] for pair in found]
    assert "No sparse all-reduce has run." in before
    assert sparse.startswith("Rank 1 of 2 uses torch's DistributedDataParallel over the backend sparsesync.\n")
    assert "Scheme balanced, values sent as bf16." in sparse
    assert "Sparse gradients, summed by sparsesync: 0.weight (4,000 x 8, f32)." in sparse
    assert "Dense gradients, summed by torch's network: 2 parameters of 72 B (1.weight, 1.bias)." in sparse
    assert re.search(rf"Sparse all-reduces on cpu run over {'UCX' if has_ucx else 'Gloo'}: [\d.]+ k?B sent", sparse)
    assert "- 4000x8 f32, sum: 3 operations. Scheme balanced: given." in sparse
    assert not any("sparse=True" in each for each in advice_in(sparse))
    assert any(each.startswith(f"0.weight: {MOST_ARE_ZERO}") for each in advice_in(dense))
    assert any(each.startswith("No parameter has sparse gradients") for each in advice_in(dense))
    assert ours.startswith(f"Rank 1 of 2 is connected over {'UCX' if has_ucx else 'Gloo'}.")
    for text in (sparse, ours):
        assert ("UCX is not used: worker 0: cannot load UCX from SPARSESYNC_UCX_LIBRARY" in text) is not has_ucx
        assert any(each.startswith("Use UCX, over which steps take as little as half the time") for each in advice_in(text)) is not has_ucx
