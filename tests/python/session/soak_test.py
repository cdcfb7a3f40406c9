"""A short soak with fixed seeds, and tests of its checks. SPARSESYNC_FULL=1 runs it for three minutes from a random seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import soak_cases
from bindings_support import LOCAL, python_path

FULL = os.environ.get("SPARSESYNC_FULL") == "1"
FIRST = 20_240_607
EPISODES = 200


def soak(tmp_path: Path, *options: object) -> tuple[int, str, dict[str, object]]:
    """Runs soak_cases.py in a separate process. Returns its exit status, output and result."""
    result = tmp_path / "soak.json"
    done = subprocess.run(
        [sys.executable, soak_cases.__file__, "--json", str(result), *map(str, options)],
        env={**os.environ, "PYTHONPATH": python_path(), "PYTHONFAULTHANDLER": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.exists(), done.stdout + done.stderr
    return done.returncode, done.stdout, json.loads(result.read_text(encoding="utf-8"))


def test_random_sessions_have_the_results_of_numpy(tmp_path: Path) -> None:
    options = ("--seconds", 180) if FULL else ("--seed", FIRST, "--episodes", EPISODES)
    status, output, result = soak(tmp_path, *options)
    print(output)
    assert result["findings"] == [], output
    assert status == 0
    assert FULL or result["episodes"] == EPISODES
    assert int(str(result["results"])) > 500 and int(str(result["refused"])) > 20 and int(str(result["left"])) > 0
    assert {"commit", "compiler", "cpu", "date"} <= set(result["provenance"])  # type: ignore[call-overload]
    samples = result["samples"]
    assert isinstance(samples, list) and {"resident_bytes", "descriptors", "threads"} < set(samples[0])


def test_every_kind_of_episode_is_drawn() -> None:
    drawn = [soak_cases.draw(seed) for seed in range(FIRST, FIRST + 1000)]
    assert {each.scheme for each in drawn} == {*LOCAL, "auto"}
    assert {each.event.kind if each.event else "" for each in drawn} == {"", "refuses", "disagrees", "leaves"}
    assert {each.event.moment for each in drawn if each.event} == {"", *soak_cases.MOMENTS}
    assert {each.values for each in drawn} == {"whole", "real", "special"}
    assert {each.wire for each in drawn} == {None, "f32", "f16", "bf16"}
    assert any(None in each.budgets and any(each.budgets) for each in drawn), "a budget of only one worker"
    assert {each.reduction for each in drawn} == {"sum", "mean"}
    assert {each.announce for each in drawn} == {False, True}
    assert drawn[7] == soak_cases.draw(FIRST + 7)


# A seed with three workers and without an event or a budget.
PLAIN = next(
    seed
    for seed in range(FIRST, FIRST + 1000)
    if (each := soak_cases.draw(seed)).event is None and not any(each.budgets) and each.workers == 3 and each.scheme == "owned"
)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ("wrong sum", "elements are wrong"),
        ("different bits", "results differ between workers"),
        ("error", "ZeroDivisionError: unprovoked"),
        ("descriptor", "descriptors and"),
        ("thread", "threads are left"),
        ("hang", "hang"),  # the last case, because its threads continue for a while
    ],
)
def test_the_soak_finds(broken: str, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(soak_cases, "SETTLE_S", 0.2)
    result = soak_cases.soak(PLAIN, 1, 60, broken, hang_s=0.5 if broken == "hang" else 60)
    assert any(problem in each["problem"] for each in result["findings"]), result["findings"]
    assert all(each["seed"] == PLAIN for each in result["findings"])
    assert f"--seed {PLAIN} --episodes 1" in capsys.readouterr().out, "the command that repeats the episode"


def test_breaks_are_all_tested() -> None:
    marks = test_the_soak_finds.pytestmark  # type: ignore[attr-defined]
    assert [each[0] for each in marks[0].args[1]] == soak_cases.BREAKS


def test_growth_counts_after_the_warm_up() -> None:
    samples = [{"seconds": 60.0 * i, "resident_bytes": size} for i, size in enumerate([10.0, 90.0, 100.0, 104.0, 107.0])]
    assert soak_cases.growth_of(samples, warm_up_s=120) == pytest.approx(0.07)
    assert soak_cases.growth_of(samples, warm_up_s=600) is None
