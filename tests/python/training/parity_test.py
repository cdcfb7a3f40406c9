"""Training with sparsesync.torch.DistributedDataParallel has the losses of torch's DDP at each step. Runs ten models, three kinds of
gradients, five optimizers and three regimes on two workers.
"""
# ctest: EMULATED PROCESSORS 2 SLOW ALL

from __future__ import annotations

import math
import os
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/setup")

import launching  # noqa: E402 (needs nothing, but what it starts does)
import parity_cases  # noqa: E402 (needs torch)

WORKERS = 2
CASES = [" ".join(case) for case in parity_cases.cases()]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Runs all cases in one launch. Returns the results of each worker."""
    folder = tmp_path_factory.mktemp("parity")
    full = os.environ.get("SPARSESYNC_FULL") == "1"
    seed = int(os.environ.get("SPARSESYNC_SEED") or (random.SystemRandom().randrange(1 << 30) if full else 20_240_607))
    print(f"SPARSESYNC_SEED={seed}")
    program = Path(parity_cases.__file__)
    return launching.outcomes(launching.torchrun(WORKERS, program, folder, seed), folder, WORKERS, timeout=800)


def is_close(ours: list[float], theirs: list[float]) -> bool:
    return len(ours) == len(theirs) and all(
        math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-9) for a, b in zip(ours, theirs, strict=True)
    )


def test_there_is_every_case(found: list[dict[str, Any]]) -> None:
    # without the cases of SparseAdam and Unused that do not exist
    assert len(CASES) == len(set(CASES)) == 10 * 3 * 5 * 3 - 10 * 2 * 3 - 5 * 3
    assert all(sorted(of_worker) == sorted(CASES) for of_worker in found)


@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_torch(found: list[dict[str, Any]], case: str) -> None:
    for of_worker in found:
        ours, theirs = of_worker[case]["ours"], of_worker[case]["torch"]
        assert is_close(ours["losses"], theirs["losses"])
        assert is_close(ours["norms"], theirs["norms"])
        assert is_close(ours["sums"], theirs["sums"])
        assert ours["sparse"] == theirs["sparse"], "sparse gradients stay sparse, dense ones dense"
    assert found[0][case]["ours"]["bits"] == found[1][case]["ours"]["bits"], "all workers have the same weights"


def test_gradients_are_sent_in_their_form(found: list[dict[str, Any]]) -> None:
    for case in CASES:
        kinds = found[0][case]["kinds"]
        _, kind, *_ = case.split()
        expected = {"sparse": "sparse", "dense_with_zeros": "rows", "dense": "dense"}[kind]
        assert expected in kinds, f"{case}: {kinds}"
