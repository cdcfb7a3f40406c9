"""A short fault matrix with fixed cases, and tests of its checks. SPARSESYNC_FULL=1 runs more cases."""
# ctest: PROCESSORS 2 SLOW ALL

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fault_cases
import pytest
from bindings_support import python_path

FULL = os.environ.get("SPARSESYNC_FULL") == "1"
FIRST = 100
# The first runs of these seeds cover many points and kinds.
SEEDS = {"gloo": 122, "ucx": 122, "threads": 101, "mpi": 107}
RUNS = {"gloo": 36, "ucx": 36, "threads": 12, "mpi": 18} if FULL else {"gloo": 4, "ucx": 6, "threads": 3, "mpi": 3}
# Other tests run at the same time, so a survivor may have to wait for a processor.
GRACE_S = 20


def faults(tmp_path: Path, over: str, runs: int, *options: object, seed: int = FIRST) -> dict[str, Any]:
    """Runs fault_cases.py. Returns its result."""
    result = tmp_path / "faults.json"
    command = [sys.executable, fault_cases.__file__, "--over", over, "--runs", runs, "--seed", seed, "--grace", GRACE_S, "--json", result]
    done = subprocess.run(
        [str(each) for each in [*command, *options]],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    print(done.stdout)
    assert result.exists(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    assert done.returncode == (1 if found["findings"] else 0)
    return found


@pytest.mark.parametrize("over", RUNS)
def test_every_survivor_ends_with_a_typed_error(over: str, tmp_path: Path) -> None:
    if over in fault_cases.OF_TORCH:
        pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
    if over == "mpi" and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    found = faults(tmp_path, over, RUNS[over], seed=SEEDS[over])
    assert found["findings"] == []
    assert found["runs"] == RUNS[over] and found["survivors"] == 2 * RUNS[over]
    assert {"commit", "compiler", "cpu", "date"} <= set(found["provenance"])


@pytest.mark.parametrize("over", fault_cases.OVER)
def test_every_fault_is_drawn(over: str) -> None:
    drawn = [fault_cases.draw(seed, over) for seed in range(FIRST, FIRST + 200)]
    assert {each.kind for each in drawn} == set(fault_cases.KINDS[over])
    assert {each.at for each in drawn} == set(fault_cases.POINTS[over])
    assert {each.victim for each in drawn} == set(range(fault_cases.WORKERS))
    assert drawn[3] == fault_cases.draw(FIRST + 3, over)


# A fault over threads, "raise" within a step: takes a few milliseconds.
QUICK = next(
    seed for seed in range(FIRST, FIRST + 200) if (case := fault_cases.draw(seed, "threads")).kind == "raise" and case.at == "before reduce"
)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ("no fault", "the fault did not happen"),
        ("hang", "processes are left"),
        ("untyped", "RuntimeError"),
        ("late", " after "),
        ("shared memory", "files in /dev/shm are left"),
        ("temporary file", "temporary files are left"),
        ("process", "processes are left"),
    ],
)
def test_the_matrix_finds(broken: str, problem: str, tmp_path: Path) -> None:
    found = faults(tmp_path, "threads", 1, "--broken", broken, "--grace", 1, seed=QUICK)
    assert any(problem in each["problem"] for each in found["findings"]), found["findings"]
    assert all(each["seed"] == QUICK for each in found["findings"])


def test_breaks_are_all_tested() -> None:
    marks = test_the_matrix_finds.pytestmark  # type: ignore[attr-defined]
    assert [each[0] for each in marks[0].args[1]] == fault_cases.BREAKS
