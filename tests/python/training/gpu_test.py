"""Trains on a GPU: two processes on cuda:0, over Gloo."""
# ctest: LABELS cuda

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import sparsesync  # noqa: E402 (after torch is known to be here)

FACTS = sparsesync.device_facts()
if not FACTS["compiled_in"] or FACTS["emulated"]:
    pytest.skip("this build has no CUDA: cmake -D SPARSESYNC_CUDA=ON", allow_module_level=True)
if FACTS["problem"] or not torch.cuda.is_available():
    pytest.skip(FACTS["problem"] or "torch finds no GPU", allow_module_level=True)

import launching  # noqa: E402
from sparsesync.torch import DistributedDataParallel, local_group  # noqa: E402

PROGRAM = Path(__file__).with_name("gpu_cases.py")
WORKERS = 2


def found_by(case: str, folder: Path) -> list[Any]:
    return launching.outcomes(launching.torchrun(WORKERS, PROGRAM, case, folder), folder, WORKERS, timeout=600)


def is_close(ours: list[float], theirs: list[float]) -> bool:
    return len(ours) == len(theirs) and all(
        math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-5) for a, b in zip(ours, theirs, strict=True)
    )


def test_losses_are_those_of_torch(tmp_path: Path) -> None:
    found = found_by("parity", tmp_path)
    told = [each.pop("payloads") for each in found]
    assert all("workers 0 and 1 share a GPU" in each for each in told), "gradients are staged through the host, which is reported"
    assert len(found[0]) > 60
    for case in found[0]:
        for of_worker in found:
            ours, theirs = of_worker[case]["ours"], of_worker[case]["torch"]
            assert of_worker[case]["device"] == "cuda:0"
            assert is_close(ours["losses"], theirs["losses"]), case
            assert is_close(ours["norms"], theirs["norms"]), case
            assert ours["sparse"] == theirs["sparse"], case
        assert found[0][case]["ours"]["bits"] == found[1][case]["ours"]["bits"], "all workers have the same weights"


def test_amp_trains(tmp_path: Path) -> None:
    found = found_by("autocast", tmp_path)
    assert found[0]["bits"] == found[1]["bits"]
    assert all(each["losses"][-1] < each["losses"][0] for each in found)


def test_sparsifiers_train_in_half_precision(tmp_path: Path) -> None:
    found = found_by("sparsified", tmp_path)
    assert len(found[0]) == 4
    for case, of_first in found[0].items():
        assert of_first["bits"] == found[1][case]["bits"], case
        assert [each[case]["skipped"] for each in found] == [1, 1], case
        assert of_first["losses"][-1] < of_first["losses"][0], case


def test_announced_rows(tmp_path: Path) -> None:
    for each in found_by("announced", tmp_path):
        assert each["announced"]
        assert max(each["errors"]) < 1e-6


def test_workspaces_are_of_torchs_allocator_and_nothing_is_taken_beside_it(tmp_path: Path) -> None:
    mebi = 1 << 20
    for each in found_by("memory", tmp_path):
        before, during = each["before"], each["during"]
        assert each["told"] > mebi and each["high_water"] >= each["told"]
        assert during["allocated"] - before["allocated"] >= each["told"], "all of it is in torch's statistics"
        assert abs(each["after"] - before["allocated"]) <= mebi, "torch gets it back"
        assert each["allocations"][0] == each["allocations"][1], "a steady state allocates nothing"
        # Both processes use this GPU.
        grown = WORKERS * (during["reserved"] - before["reserved"])
        assert during["used"] - before["used"] <= grown + 32 * mebi


def test_nothing_waits_for_the_gpu_in_torchs_calls(tmp_path: Path) -> None:
    for each in found_by("synchronizations", tmp_path):
        assert each["found"], "torch reports calls that wait"
        assert max(each["errors"]) < 1e-6


def test_a_backward_pass_in_another_stream(tmp_path: Path) -> None:
    for each in found_by("side_stream", tmp_path):
        assert max(each["errors"]) < 1e-6


def test_a_program_that_captures_cuda_graphs(tmp_path: Path) -> None:
    for each in found_by("capture", tmp_path):
        assert each["captured"] == 20
        assert "is being captured into a CUDA graph" in each["refused"]


def test_invalid_devices_are_rejected_early(tmp_path: Path) -> None:
    for each in found_by("two_devices", tmp_path):
        mixed, device_ids, array = each["says"]
        assert "parameter '0.weight' is on cuda:0 and parameter '1.weight' on cpu" in mixed
        assert "cuda:7" in device_ids
        assert "in the memory of the host: copy it to cuda:0's memory" in array


def test_workers_that_are_threads() -> None:
    """Threads would take turns at torch's single backward thread for a GPU. An error says so, and it works after
    set_multithreading_enabled(False).
    """
    members = local_group(2)
    outcomes: list[Any] = [None, None]

    def work(rank: int) -> None:
        ddp = DistributedDataParallel(torch.nn.Linear(3, 3).to("cuda:0"), process_group=members[rank], gradient="sum", deadline=60)
        ones = torch.ones(2, 3, device="cuda:0")
        with pytest.raises(sparsesync.UnsupportedError, match="set_multithreading_enabled"):
            ddp(ones)
        with torch.autograd.set_multithreading_enabled(False):
            ddp(ones).sum().backward()
        outcomes[rank] = float(ddp.module.weight.grad.sum()), ddp.statistics()["payloads"]
        ddp.close()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert outcomes == [(36.0, "from GPU to GPU within the process")] * 2
