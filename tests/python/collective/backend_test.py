"""The backend `sparsesync` of torch.distributed, in processes that torchrun starts."""
# ctest: PROCESSORS 2 SLOW ALL

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import launching
import sparsesync
import sparsesync.torch
import torch

PROGRAM = Path(__file__).with_name("backend_cases.py")
WORKERS = 3


def found_by(case: str, folder: Path, workers: int = WORKERS, **more: str) -> list[Any]:
    found = launching.outcomes(launching.torchrun(workers, PROGRAM, case, folder), folder, workers, PYTHONHASHSEED="0", **more)
    assert all(not each.get("threads left") for each in found), found
    return found


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("transport", ["ucx", "gloo"])
def test_sums_of_every_dtype_and_shape_are_exact(transport: str, workers: int, tmp_path: Path) -> None:
    for each in found_by("sums", tmp_path, workers, SPARSESYNC_BACKEND_TRANSPORT=transport):
        assert not each["wrong"] and each["rows of an empty sum"] == 0


def test_many_operations_under_way(tmp_path: Path) -> None:
    assert all(not each["wrong"] for each in found_by("in_flight", tmp_path))


@pytest.mark.parametrize("backend", ["sparsesync", "cpu:sparsesync"])
def test_other_collectives_are_gloos(backend: str, tmp_path: Path) -> None:
    for each in found_by("delegated", tmp_path, SPARSESYNC_TEST_BACKEND=backend):
        assert all(each["found"].values()), each


def test_a_group_of_some_ranks(tmp_path: Path) -> None:
    for each in found_by("groups", tmp_path):
        assert not each["wrong"]
        assert each["threads"] == ["sparsesync finishes", "sparsesync submits"], "those of the group that was destroyed have ended"


@pytest.mark.parametrize("level", ["OFF", "DETAIL"])
@pytest.mark.parametrize("scheme", ["auto", "balanced"])
def test_torchs_own_wrapper_trains(scheme: str, level: str, tmp_path: Path) -> None:
    found = found_by("ddp", tmp_path, SPARSESYNC_BACKEND_SCHEME=scheme, TORCH_DISTRIBUTED_DEBUG=level)
    assert all(each["error"] < 1e-6 and each["bits"] == found[0]["bits"] for each in found), found


def test_checkpoints(tmp_path: Path) -> None:
    assert all(each["equal"] for each in found_by("checkpoint", tmp_path))


def test_mistakes_are_told_on_all_ranks_and_the_group_stays_usable(tmp_path: Path) -> None:
    found = found_by("errors", tmp_path)
    for rank, each in enumerate(found):
        said = each["found"]
        assert said["dtype"].startswith("UnsupportedError: a sparse tensor of torch.int8 cannot be summed over workers: use one of float32")
        assert said["operation"].startswith("UnsupportedError: sparse tensors can be summed or averaged, not reduced by"), said
        assert said["shapes"].startswith("AgreementError: ") and "3000" in said["shapes"], said
        assert said["index"].startswith("InputError: " if rank == 1 else "RefusedError: ") and "3005" in said["index"], said
        assert each["right"]


def test_a_lost_rank_ends_the_operation_on_the_others(tmp_path: Path) -> None:
    command = launching.torchrun(WORKERS, PROGRAM, "lost", tmp_path)
    for each in launching.outcomes(command, tmp_path, WORKERS, SPARSESYNC_BACKEND_DEADLINE="5")[::2]:
        assert each["says"].startswith(("PeerLostError: ", "AbortedError: ", "DeadlineError: ")), each
        assert each["seconds"] < 20  # the deadline, and time of a loaded machine


def test_the_program_of_the_guide_trains(tmp_path: Path) -> None:
    text = (launching.ROOT / "docs/guide/torch-backend.md").read_text(encoding="utf-8")
    program = tmp_path / "train.py"
    program.write_text(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0], encoding="utf-8")
    done = launching.run(launching.torchrun(2, program))
    assert done.returncode == 0, done.stderr


def test_ranks_with_different_options(tmp_path: Path) -> None:
    for each in found_by("starts", tmp_path, SPARSESYNC_TEST_DIFFERS="scheme"):
        assert each["says"].startswith("AgreementError: backend sparsesync: scheme is ") and "on rank 1" in each["says"], each


def test_ranks_with_different_backends(tmp_path: Path) -> None:
    found = found_by("starts", tmp_path, SPARSESYNC_TEST_DIFFERS="backend")
    for rank in (0, 2):
        assert found[rank]["says"].startswith("AgreementError: rank 1 uses another backend than sparsesync"), found


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("SCHEM", "balanced", "SPARSESYNC_BACKEND_SCHEM is unknown: use SPARSESYNC_BACKEND_SCHEME, "),
        ("SCHEME", "fast", "there is no scheme 'fast': use auto, "),
        ("WIRE", "f8", "wire 'f8': use f32, f16 or bf16"),
        ("DEADLINE", "soon", "SPARSESYNC_BACKEND_DEADLINE='soon': give seconds"),
        ("DEADLINE", "-1", "a deadline of -1.0: seconds"),
        ("TRANSPORT", "pigeon", "there is no transport 'pigeon': None, ucx"),
    ],
)
def test_options_in_the_environment_are_checked(name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"SPARSESYNC_BACKEND_{name}", value)
    with pytest.raises(sparsesync.InputError, match=says.replace("'", ".")):
        sparsesync.torch.BackendOptions()


def test_options_of_another_backend_are_refused() -> None:
    store = torch.distributed.HashStore()
    options = torch._C._distributed_c10d.Backend.Options("gloo")
    with pytest.raises(sparsesync.InputError, match="give sparsesync.torch.BackendOptions, not"):
        torch.distributed.init_process_group("sparsesync", store=store, rank=0, world_size=1, pg_options=options)
