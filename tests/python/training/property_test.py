"""Random small models trained with sparsesync.torch.DistributedDataParallel have the gradients, weights, buffers and optimizer states
of training by hand. SPARSESYNC_SEED sets the first seed. SPARSESYNC_FULL=1 runs 300 seeds from a random one."""
# ctest: PROCESSORS 2 SLOW ALL

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import launching  # noqa: E402 (needs nothing, but what it starts does)
import property_cases  # noqa: E402 (needs torch)

FULL = os.environ.get("SPARSESYNC_FULL") == "1"
SEEDS = 300
FEW = 12  # unless SPARSESYNC_FULL is set: about 30 s
FIRST = 20_240_607  # unless SPARSESYNC_FULL is set, as in the tests in C++
PROGRAM = Path(property_cases.__file__)


@pytest.fixture(scope="module")
def first_seed() -> int:
    seed = int(os.environ.get("SPARSESYNC_SEED") or (random.SystemRandom().randrange(1 << 30) if FULL else FIRST))
    print(f"SPARSESYNC_SEED={seed}")
    return seed


def found_by(folder: Path, seed: int, *options: object, timeout: float = 300) -> list[dict[str, Any]]:
    """Runs property_cases.py. Returns the results of each worker."""
    command = launching.torchrun(property_cases.WORKERS, PROGRAM, "--seed", seed, "--folder", folder, *options)
    found: list[dict[str, Any]] = launching.outcomes(command, folder, property_cases.WORKERS, timeout)
    return found


def test_training_is_that_by_hand(first_seed: int, tmp_path: Path) -> None:
    seeds = SEEDS if FULL else FEW
    found = found_by(tmp_path, first_seed, "--seeds", seeds, timeout=3600 if FULL else 300)
    print(f"{found[0]['seeds']} seeds; {', '.join(f'{name}: {count}' for name, count in sorted(found[0]['features'].items()))}")
    failures = [
        f"property_cases.py --seed {seed}, worker {rank}: {problem}"
        for rank, of_worker in enumerate(found)
        for seed, problem in of_worker["failures"].items()
    ]
    assert not failures, "\n".join(failures)
    assert found[0]["seeds"] == seeds


def test_every_feature_is_drawn(first_seed: int) -> None:
    drawn = {feature for seed in range(first_seed, first_seed + SEEDS) for feature in property_cases.draw(seed).features()}
    assert drawn == set(property_cases.FEATURES)


def test_a_seed_draws_the_same_each_time(first_seed: int) -> None:
    assert property_cases.draw(first_seed) == property_cases.draw(first_seed)
    assert property_cases.draw(first_seed) != property_cases.draw(first_seed + 1)


def test_faults_are_found(first_seed: int, tmp_path: Path) -> None:
    breaks = property_cases.BREAKS
    found = found_by(tmp_path, first_seed, "--broken", *breaks)
    for broken in breaks:
        problems = [of_worker["failures"].get(f"{first_seed} {broken}", "") for of_worker in found[:2]]
        assert all(problems), broken
        assert any("and not" in each or "differ between workers" in each for each in problems), problems
