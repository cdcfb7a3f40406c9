"""Starts training as users do: with torchrun, and with mpirun."""
# ctest: EMULATED PROCESSORS 2 SLOW ALL

from __future__ import annotations

import datetime
import json
import os
import re
import types
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import launching
from sparsesync.torch import launch

PROGRAM = Path(__file__).with_name("launch_cases.py")
LAUNCHERS = {"torchrun": launching.torchrun, "mpirun": launching.mpirun}


def found_by(launcher: str, case: str, folder: Path, workers: int) -> list[Any]:
    return launching.outcomes(LAUNCHERS[launcher](workers, PROGRAM, case, folder), folder, workers, PYTHONHASHSEED="0")


def expect_right(of_workers: list[Any]) -> None:
    assert all(each["error"] < 1e-6 for each in of_workers)
    assert all(each["bits"] == of_workers[0]["bits"] for each in of_workers)


def program_of(document: str) -> str:
    """The first Python program of a document."""
    text = (launching.ROOT / document).read_text(encoding="utf-8")
    return [each for each in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if "sparsesync.torch" in each][0]


def lines_of(program: str) -> int:
    return len([line for line in program.splitlines() if line.strip()])


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_program_of_the_readme_runs(launcher: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(program_of("README.md"), encoding="utf-8")
    assert lines_of(program_of("README.md")) == 6
    done = launching.run(LAUNCHERS[launcher](4, program))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_program_of_getting_started_trains(launcher: str, tmp_path: Path) -> None:
    lines = program_of("docs/getting-started/pytorch.md")
    program = tmp_path / "train.py"
    program.write_text(lines, encoding="utf-8")
    assert lines_of(lines) <= 14
    done = launching.run(LAUNCHERS[launcher](4, program))
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(losses) >= 3, done.stdout
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("workers", [1, 3])
def test_every_scheme_is_right(launcher: str, workers: int, tmp_path: Path) -> None:
    found = found_by(launcher, "schemes", tmp_path, workers)
    kind = {"torchrun": "ucx" if workers > 1 else "process_group", "mpirun": "mpi"}[launcher]
    dense_by = "dense_direct" if kind == "ucx" else "dense_native"
    for rank, each in enumerate(found):
        assert (each.pop("rank"), each.pop("transport"), each.pop("dense by")) == (rank, kind, dense_by)
    assert len(found[0]) == 8
    for name in found[0]:
        expect_right([each[name] for each in found])


@pytest.mark.parametrize(
    ("kind", "nodes", "expected"),
    [
        ("process_group", [0, 0], "dense_native"),
        ("process_group", [0, 1], "dense_native"),
        ("nccl", [0, 1], "dense_native"),
        ("mpi", [0, 0, 0], "dense_native"),
        ("mpi", [0, 0, 2], "dense_ring"),
        ("ucx", [0, 0], "dense_ring"),
        ("local", [0, 0], "dense_ring"),
    ],
)
def test_large_dense_gradients_use_the_faster_scheme(kind: str, nodes: list[int], expected: str) -> None:
    transport: Any = types.SimpleNamespace(nodes=nodes)
    assert launch.Connection(transport, kind, datetime.timedelta(1)).dense_scheme == expected


def test_each_transport_between_hosts(tmp_path: Path) -> None:
    found = found_by("torchrun", "transports", tmp_path, 3)
    for asked, kind, dense_by in (
        ("None", "ucx", "dense_direct"),
        ("ucx", "ucx", "dense_direct"),
        ("gloo", "process_group", "dense_native"),
    ):
        expect_right([each[asked] for each in found])
        assert {(each[asked]["kind"], each[asked]["dense by"]) for each in found} == {(kind, dense_by)}
    for each in found:
        assert each["mpi"]["says"] == (
            "UnsupportedError: transport 'mpi': the workers are connected by torch's process group: start them with mpirun"
        )
        assert each["warnings"] == []


def test_each_transport_under_mpirun(tmp_path: Path) -> None:
    found = found_by("mpirun", "transports", tmp_path, 2)
    for asked, kind in (("None", "mpi"), ("ucx", "ucx"), ("mpi", "mpi")):
        expect_right([each[asked] for each in found])
        assert {each[asked]["kind"] for each in found} == {kind}
    for each in found:
        assert each["gloo"]["says"] == (
            "UnsupportedError: transport 'gloo': the workers are connected by MPI: start them with torchrun, or call "
            "torch.distributed.init_process_group() first"
        )


def test_gloo_replaces_ucx_if_a_worker_lacks_it(tmp_path: Path) -> None:
    found = launching.outcomes(launching.torchrun(2, PROGRAM, "transports", tmp_path), tmp_path, 2, SPARSESYNC_TEST_LACKS_UCX="1")
    lacks = "worker 1: "
    for each in found:
        expect_right([each["None"]])
        assert each["None"]["kind"] == "process_group"
        assert each["ucx"]["says"].startswith(f"UnsupportedError: transport 'ucx': {lacks}")
        assert "/missing/libucp.so.0" in each["ucx"]["says"]
    [warning] = found[0]["warnings"]
    assert warning.startswith(f"gradients go over Gloo, where steps take up to twice as long as over UCX: {lacks}")
    assert found[1]["warnings"] == []


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (["1.13.1", "1.13.0"], ""),
        (["1.13.1", None], "worker 1: lacks it"),
        (["1.13.1", "1.13.1", "1.17.0"], "worker 0 has UCX 1.13.1, worker 2 1.17.0: install the same version"),
    ],
)
def test_why_ucx_cannot_connect(versions: list[str | None], expected: str) -> None:
    workers = [launch.Reach("cpu", None, "", "", None, "", False, each, "lacks it") for each in versions]
    assert launch.why_not_ucx(workers) == expected


def test_models_of_several_groups_at_once(tmp_path: Path) -> None:
    found = found_by("torchrun", "groups", tmp_path, 4)
    expect_right([each["all"] for each in found])
    for pair in (found[:2], found[2:]):
        expect_right([each["pair"] for each in pair])
    for each in found:
        assert each["sizes"] == [4, 2]
        assert "is not a ProcessGroup that includes this process" in each["other"]


def test_models_of_some_ranks_beside_one_of_all(tmp_path: Path) -> None:
    """torch's group names would differ between the ranks. Neither sparsesync's groups nor the program's may hang because of that."""
    found = found_by("torchrun", "groups_of_some", tmp_path, 3)
    expect_right([each["all"] for each in found])
    expect_right([each["of 0 and 1"] for each in found[:2]])
    expect_right([each["of 1 and 2"] for each in found[1:]])
    assert [each["of the program's own group"] for each in found] == [3, 3, 3]
    for each in found[:2]:
        assert "worker 2 has not made this DistributedDataParallel after 5 s" in each["says"]
        assert each["seconds"] < 60


def test_a_process_group_of_another_size_than_mpiruns(tmp_path: Path) -> None:
    for each in found_by("mpirun", "other_size", tmp_path, 2):
        assert "mpirun started 2 processes, torch.distributed has 1" in each["error"]


def test_torchrun_within_mpirun(tmp_path: Path) -> None:
    command = [str(launching.ROOT / "cmake/mpirun.sh"), "-np", "1", *launching.torchrun(2, PROGRAM, "who", tmp_path)]
    for rank, each in enumerate(launching.outcomes(command, tmp_path, 2)):
        assert each == {"rank": rank, "workers": 2, "transport": "ucx"}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, True),
        ({"TORCHELASTIC_RUN_ID": "none"}, False),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, True),
        ({"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, False),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, False),
        ({"RANK": "0"}, True),
    ],
)
def test_what_started_a_process(more: dict[str, str], expected: bool) -> None:
    environment = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", **more}
    assert launch.started_by_mpirun(environment) is expected


def test_torchs_wrapper_with_the_hook(tmp_path: Path) -> None:
    found = found_by("torchrun", "hook", tmp_path, 3)
    expect_right([each["all"] for each in found])
    for each in found:
        told = each["statistics"]
        assert (told["0.weight"]["gradient"], told["0.weight"]["scheme"]) == ("rows", "balanced")
        assert told["1.weight"]["gradient"] == "dense"
        assert told["0.weight"]["steps"] == 5, "all steps but the first, which torch synchronizes"


def test_memory_does_not_grow_over_ucx(tmp_path: Path) -> None:
    """2,000 steps of two buckets; 20,000 with SPARSESYNC_FULL=1."""
    steps = 20_000 if os.environ.get("SPARSESYNC_FULL") == "1" else 2_000
    command = launching.torchrun(2, PROGRAM, "long_run", tmp_path)
    for each in launching.outcomes(command, tmp_path, 2, SPARSESYNC_TEST_STEPS=str(steps)):
        early, late = each["resident"]
        assert late < 1.01 * early, each
        assert each["descriptors"] < 60 and each["threads"] < 20, each


def test_a_lost_worker_is_an_error_on_the_others(tmp_path: Path) -> None:
    launching.run(launching.torchrun(3, PROGRAM, "lost", tmp_path))
    told = [json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 2)]
    for each in told:
        assert each["error"] in ("PeerLostError", "DeadlineError", "AbortedError"), each
        assert "worker" in each["says"]
    assert any("worker 1" in each["says"] for each in told)


def test_the_program_finalizes_mpi_after_close(tmp_path: Path) -> None:
    """Also directly after close(), while the other worker may still be open. Later calls are an error, not a hang."""
    for each in found_by("mpirun", "finalize", tmp_path, 2):
        assert each["status"] == 0
        assert "MPI_Finalize" in each["says"]
        assert each["seconds"] < 20
