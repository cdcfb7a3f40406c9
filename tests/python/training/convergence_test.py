"""Tests bench/python/convergence.py with a short run, and checks its stored results."""
# ctest: PROCESSORS 2 SLOW ALL

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")
pytest.importorskip("sklearn", reason="scikit-learn is not installed; run scripts/setup")

ROOT = Path(__file__).resolve().parents[3]
BENCH = ROOT / "bench/python/convergence.py"
BUILD = Path(os.environ.get("SPARSESYNC_PROGRAM", ROOT / "build/release/bin/sparsesync")).parents[1]
sys.path.insert(0, str(BENCH.parent))

import convergence  # noqa: E402


def test_a_short_training_of_each(tmp_path: Path) -> None:
    words = ["--tasks", "digits", "--seeds", "1", "--part", "0.4", "--build", BUILD, "--out", tmp_path / "out.json"]
    done = subprocess.run(
        [sys.executable, BENCH, *map(str, words), "--picture", str(tmp_path / "out.png")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    told = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    of_ways = told["tasks"]["digits"]
    assert list(of_ways) == list(convergence.LABELS)
    for run in told["runs"]:
        assert run["held_out"][-1] < 0.5 * run["held_out"][0], run["way"]
        assert run["steps"][0] == 0 and run["steps"][-1] == 400
    # After a short training the gap is larger than after a whole one, and by far the largest without error feedback.
    for way in ("dgc", "csc"):
        own, lossy = (of_ways[name]["gap_percent_mean"] for name in (way, f"{way}_lossy"))
        assert own < 5
        assert lossy > 2 * max(own, 1)
        assert of_ways[way]["bytes_over_dense"] < 0.3
    assert (done.returncode == 0) == (done.stderr == "")  # missed targets are printed
    assert (tmp_path / "out.png").stat().st_size > 10_000


def stored() -> dict[str, Any]:
    told: dict[str, Any] = json.loads((ROOT / "bench/results/convergence.json").read_text(encoding="utf-8"))
    return told


def test_stored_results_reach_their_targets() -> None:
    told = stored()
    assert told["provenance"]["part"] == 1 and told["provenance"]["workers"] == 4
    for name, of_ways in told["tasks"].items():
        runs = [run for run in told["runs"] if run["task"] == name]
        assert {run["seed"] for run in runs} == {1, 2, 3}
        assert convergence.summary(runs) == of_ways
        assert list(convergence.missed(of_ways)) == []


def test_the_document_has_the_stored_results() -> None:
    text = (ROOT / "docs/guide/sparsifiers.md").read_text(encoding="utf-8")
    for line in convergence.table(stored()["tasks"]):
        assert line in text


def test_a_gap_is_found() -> None:
    def runs(dgc: float) -> list[dict[str, Any]]:
        ends = {"dense": 1.0, "dgc": dgc, "csc": 1.0, "dgc_lossy": 1.5, "csc_lossy": 1.5}
        return [{"seed": 1, "way": way, "held_out": [2.0, end], "bytes_sent_max": 8} for way, end in ends.items()]

    assert list(convergence.missed(convergence.summary(runs(1.01)))) == []
    assert list(convergence.missed(convergence.summary(runs(1.03)))) == ["DGC, 1%: the gap is 3.00%, the target is 2.0%"]
    wrong = list(convergence.missed(convergence.summary(runs(1.2))))
    assert wrong[1] == "DGC, 1%: without error feedback the gap is 50.00%, expected is 3 times that with it"
